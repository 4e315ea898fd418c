//! Snapshots from one server to another.

use crate::place::{Place, tool};
use std::{
    fs::{self, File},
    io::Write,
    process::Stdio,
};

/// Sends a snapshot into a file.
fn sent(place: &Place, arguments: &[&str], to: &str) -> u64 {
    let out = File::create(place.path(to)).expect("a file");
    let mut command = place.program();
    command.arg("send").args(arguments).stdout(out);
    assert!(command.status().expect("runs").success(), "{arguments:?}");
    fs::metadata(place.path(to)).expect("written").len()
}

/// Has a stream taken; what is said if it is not.
fn taken(place: &Place, stream: &[u8]) -> Result<(), String> {
    let mut command = place.program();
    command.args(["receive", "d"]).stdin(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("runs");
    let mut stdin = child.stdin.take().expect("piped");
    // It may have said before the end what is wrong.
    let _ = stdin.write_all(stream);
    drop(stdin);
    let output = child.wait_with_output().expect("ends");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn a_snapshot_and_what_differs_from_it_reach_another_server_that_is_killed_meanwhile() {
    let (here, mut there) = (Place::new(), Place::new());
    here.ok(&["create", "d", "16M"]);
    let export = here.uri(&here.ok(&["open", "d"]));
    let write = |what: &str| {
        let raw = ["-fraw", "-c", what, "-c", "flush", &export];
        tool("qemu-io", &raw);
    };
    write("write -P 7 1M 6M");
    here.ok(&["snapshot", "d", "one"]);
    sent(&here, &["d", "one"], "one.stream");
    let one = fs::read(here.path("one.stream")).expect("read");
    // Killed in the middle: there is no volume, and the next attempt makes it.
    let mut command = there.program();
    command.args(["receive", "d"]).stdin(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().expect("runs");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(&one[..one.len() / 2]).expect("written");
    there.kill();
    drop(stdin);
    assert!(!child.wait().expect("ends").success());
    there.start(&[]);
    assert_eq!(there.ok(&["ls"]), "");
    let cut = taken(&there, &one[..one.len() - 1]).expect_err("cut off");
    assert!(cut.contains("cut off"), "{cut}");
    assert_eq!(there.ok(&["ls"]), "");
    taken(&there, &one).expect("taken");
    write("write -P 8 2M 100k");
    write("discard 4M 1M");
    here.ok(&["snapshot", "d", "two"]);
    sent(&here, &["d", "two", "--since", "one"], "two.stream");
    let two = fs::read(here.path("two.stream")).expect("read");
    taken(&there, &two).expect("taken");
    let other = there.uri("d@two");
    let mine = here.uri("d@two");
    tool("qemu-img", &["compare", "-fraw", "-Fraw", &mine, &other]);
    tool(
        "qemu-img",
        &["compare", "-fraw", "-Fraw", &mine, &there.uri("d")],
    );
    let again = taken(&there, &two).expect_err("it is there");
    assert!(again.contains("already"), "{again}");
    let none = here.fails(&["send", "d", "three"]);
    assert!(none.contains("three"), "{none}");
}
