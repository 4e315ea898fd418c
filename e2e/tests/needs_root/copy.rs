//! Files in and out, and what a guest says on its console.

use forkyard_e2e::{Host, eventually};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
};
use std::{
    ffi::OsStr,
    fs::{self, File},
    os::{
        fd::AsFd,
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, PermissionsExt},
            net::UnixListener,
        },
    },
};

#[test]
fn files_pass_in_and_out_and_words_on_the_console_out() {
    let host = Host::with_woken_p([]);
    files_and_folders_are_copied_in_and_out_whole_or_not_at_all(&host);
    what_a_guest_says_on_its_console_is_kept_and_can_be_followed(&host);
    host.end();
}

#[track_caller]
fn files_and_folders_are_copied_in_and_out_whole_or_not_at_all(host: &Host) {
    let here = tempfile::tempdir().expect("a folder");
    let path = |name: &str| here.path().join(name).display().to_string();
    fs::create_dir_all(here.path().join("in/deep")).expect("made");
    // More than one piece, and not a round number of them.
    let large: Vec<u8> = (0..9_999_999_u32).map(|n| n.to_le_bytes()[1]).collect();
    fs::write(here.path().join("in/deep/large"), &large).expect("written");
    fs::write(here.path().join("in/run"), "#!/bin/sh\necho ran\n").expect("written");
    fs::set_permissions(
        here.path().join("in/run"),
        fs::Permissions::from_mode(0o755),
    )
    .expect("set");
    std::os::unix::fs::symlink("deep/large", here.path().join("in/link")).expect("linked");

    host.ok(["cp", &path("in"), "p:/m/there"]);
    assert_eq!(
        host.sh("p", "/m/there/run; readlink /m/there/link"),
        "ran\ndeep/large"
    );
    // A name of any bytes.
    let odd = here.path().join(OsStr::from_bytes(b"na\xffme"));
    fs::write(&odd, "odd\n").expect("written");
    let words = [OsStr::new("cp"), odd.as_os_str(), OsStr::new("p:/m")];
    host.start(words, "").wait().exited(0);
    assert_eq!(host.sh("p", "cat /m/na?me && rm /m/na?me"), "odd");
    fs::remove_file(odd).expect("removed");
    host.fork("p", 1);
    host.ok(["cp", "p-1:/m/there", &path("out")]);
    assert_eq!(
        fs::read(here.path().join("out/link")).expect("there"),
        large
    );
    let mode = fs::metadata(here.path().join("out/run"))
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o755);
    // Into a folder that exists, and a file over a file.
    host.ok(["cp", &path("in/run"), "p:/m"]);
    host.ok(["cp", &path("in/run"), "p:/m/there/run"]);
    host.ok(["cp", "p:/m/run", &path("out")]);
    assert_eq!(host.sh("p", "/m/run"), "ran");

    // What no size is known of, holes, what is no file, and no program of the image's.
    host.ok(["cp", "p:/proc/cpuinfo", &path("out")]);
    assert!(
        fs::read(here.path().join("out/cpuinfo"))
            .expect("there")
            .len()
            > 50
    );
    let made = "mkdir /m/odd; mkfifo /m/odd/fifo; echo x >/m/odd/x; truncate -s 200M /m/odd/holes;";
    host.sh("p", made);
    host.ok(["cp", "p:/m/odd/.", &path("out/odd")]);
    let holes = fs::metadata(here.path().join("out/odd/holes")).expect("there");
    assert!(holes.len() == 200 << 20 && holes.blocks() < 100);
    let _listens = UnixListener::bind(here.path().join("out/odd/socket")).expect("bound");
    host.ok(["cp", &path("out/odd"), "p:/m/back"]);
    let held =
        "[ $(du -k /m/back/holes | cut -f1) -lt 100 ] && ls /m/back | xargs; rm -r /m/odd /m/back";
    assert_eq!(host.sh("p", held), "holes x");

    for (words, why) in [
        (["cp", "p:/nowhere/x", &path("x")], "nowhere"),
        (["cp", &path("in"), "p:/nowhere/x"], "nowhere"),
        (["cp", &path("nothing"), "p:/m"], "cannot read"),
        (["cp", &path("in"), &path("x")], "VM:PATH"),
    ] {
        let told = host.fails(words);
        assert!(told.contains(why), "{told}");
    }
    // Of the kernel's: what cannot be read says why, a setting is written.
    fs::write(here.path().join("in/name"), "copied").expect("written");
    host.ok(["cp", &path("in/name"), "p:/proc/sys/kernel/hostname"]);
    let set = "cat /proc/sys/kernel/hostname; hostname p";
    assert_eq!(host.sh("p", set), "copied");
    fs::remove_file(here.path().join("in/name")).expect("removed");
    host.sh("p", "mkfifo /m/fifo");
    for (words, why) in [
        (["cp", "p:/proc/kmsg", &path("x")], "more may come"),
        (["cp", "p:/proc/kcore", &path("x")], "its size says nothing"),
        (["cp", "p:/dev/zero", &path("x")], "it is a device"),
        (["cp", &path("in/run"), "p:/m/fifo"], "nothing reads"),
    ] {
        let told = host.fails(words);
        assert!(told.contains(why), "{words:?}: {told}");
    }
    host.sh("p", "rm /m/fifo");
    // A reader that takes nothing does not keep it from being ended.
    let fifo = path("fifo");
    nix::unistd::mkfifo(fifo.as_str(), nix::sys::stat::Mode::S_IRWXU).expect("made");
    let reader = File::options().read(true).write(true).open(&fifo);
    let reader = reader.expect("opened");
    let copying = host.start(["cp", "p:/m/there/deep/large", &fifo], "");
    eventually("it to write", || {
        let mut some = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        poll(&mut some, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    });
    copying.signal(Signal::SIGTERM);
    copying.wait().exited(143);
    drop(reader);
    fs::remove_file(&fifo).expect("removed");
    // As a tar stream.
    let stream = host.start(["cp", "p:/m/run", "-"], "").wait().exited(0);
    host.sh("p", "mkdir /m/tar");
    let unpacked = host.start(["cp", "-", "p:/m/tar"], stream.stdout);
    unpacked.wait().exited(0);
    assert_eq!(host.sh("p", "/m/tar/run; rm -r /m/tar"), "ran");
    let told = host.fails(["cp", "-", "p:/m/run"]);
    assert!(told.contains("a folder that exists"), "{told}");
    let left = || fs::read_dir(here.path()).expect("there").count();
    assert_eq!(left(), 2, "nothing half done is left here");
    assert_eq!(host.sh("p", "ls -A /m | sort | xargs"), "run there");
}

#[track_caller]
fn what_a_guest_says_on_its_console_is_kept_and_can_be_followed(host: &Host) {
    host.sh("p", "echo the first word >/dev/console");
    let following = host.start(["logs", "p", "--follow"], "");
    while !host.ok(["logs", "p"]).contains("the first word") {}
    host.sh("p", "echo the last word >/dev/console");
    host.ok(["stop", "p"]);
    let heard = following.wait().exited(0).text();
    assert!(
        heard.contains("the first word") && heard.contains("the last word"),
        "{heard}"
    );
    let kept = host.ok(["logs", "p"]);
    assert!(
        kept.contains("the last word"),
        "a stopped VM's words are still there"
    );
}
