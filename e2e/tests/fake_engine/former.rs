//! A state folder that a former version has left: `e2e/tests/fixtures/former`.

use forkyard_e2e::Host;
use forkyard_types::VmState;
use std::{fs, path::Path, process::Command};

const OLD: &str = "mqdfcd4hhhn";
const KEPT: &str = "h2bgs78kgh5";

fn run(program: &str, words: &[&str]) -> String {
    let ran = Command::new(program).args(words).output().expect(program);
    assert!(ran.status.success(), "{words:?}: {ran:?}");
    String::from_utf8(ran.stdout).expect("text")
}

/// Changes the records of a host whose daemon has ended.
pub fn sql(state: &Path, text: &str) {
    const CARRY_OUT: &str =
        "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(sys.argv[2])";
    let database = state.join("forkyard.db");
    let database = database.to_str().expect("text");
    run("python3", &["-c", CARRY_OUT, database, text]);
}

/// Ends the daemon, and has the state folder be as a former version has left it.
fn go_back(host: &Host) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/former");
    let (state, run_dir) = (host.folder().join("state"), host.folder().join("run"));
    // Disks of that version lie over the image's, as this one's do; and devices are its engine's.
    host.ok(["run", "tiny", "--name", "q"]);
    let of = |name: &str| state.join("vms").join(host.vm(name).id.as_str());
    let slice = of("q").join("0.qcow2");
    let info = run(
        "qemu-img",
        &["info", "-U", "--output=json", slice.to_str().expect("text")],
    );
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    let base = info["backing-filename"]
        .as_str()
        .expect("a base")
        .to_owned();
    let size = info["virtual-size"].to_string();
    host.ok(["checkpoint", "q", "--name", "c"]);
    let devices = fs::read(of("c").join("devices")).expect("devices");
    host.ok(["rm", "q", "c"]);
    host.kill_9("forkyardd");
    for file in ["forkyard.db", "forkyard.db-wal", "forkyard.db-shm"] {
        let _ = fs::remove_file(state.join(file));
    }
    let text = fs::read_to_string(fixture.join("forkyard.sql")).expect("the fixture");
    let text = text.replace("/STATE/", &format!("{}/", state.display()));
    sql(
        &state,
        &text.replace("/RUN/", &format!("{}/", run_dir.display())),
    );
    let (old, kept) = (state.join("vms").join(OLD), state.join("vms").join(KEPT));
    for folder in [&old, &kept] {
        fs::create_dir_all(folder).expect("made");
    }
    let [lower, upper] = ["0.qcow2", "1.qcow2"].map(|name| old.join(name).display().to_string());
    // The image's is served again by the next daemon.
    let create = ["create", "-q", "-u", "-f", "qcow2", "-b"];
    run(
        "qemu-img",
        &[&create[..], &[&base, "-F", "raw", &lower, &size]].concat(),
    );
    run(
        "qemu-img",
        &[&create[..], &[&lower, "-F", "qcow2", &upper, &size]].concat(),
    );
    fs::copy(fixture.join("memory.pages"), kept.join("memory.pages")).expect("copied");
    fs::write(kept.join("devices"), devices).expect("written");
}

#[test]
fn what_a_former_version_left_is_shown_as_it_is_and_goes_on_as_far_as_it_can() {
    let host = Host::fake();
    go_back(&host);
    let state = |name: &str| host.vm(name).state;
    assert_eq!(
        state("old"),
        VmState::Stopped,
        "its process is another's by now"
    );
    assert_eq!(state("kept"), VmState::Checkpoint);
    assert_eq!(host.vm("kept").parent, Some(host.vm("old").id));
    // The agent in its memory would not understand this version, and is not waited for.
    let refused = host.fails(["fork", "kept"]);
    assert!(refused.contains("an earlier version"), "{refused}");
    assert!(refused.contains("image commit"), "{refused}");
    assert_eq!(host.vms().len(), 2, "nothing is left of that");
    // Its disk is whole, and boots with an agent of this one.
    host.ok(["start", "old"]);
    assert_eq!(host.sh("old", "hostname"), "old");
    host.ok(["checkpoint", "old", "--name", "new"]);
    // Memory and disk of a checkpoint are as they were written; that of an agent that speaks as
    // this version does is forked.
    host.kill_9("forkyardd");
    sql(&host.folder().join("state"), "DELETE FROM agent");
    let clone = host.fork("kept", 1).remove(0);
    let clone = clone.name.as_str();
    assert_eq!(host.sh(clone, "peek 7 && peek 4000 && peek 8"), "42\n9\n0");
    assert_eq!(host.sh(clone, "hostname"), clone);
    assert_eq!(host.fork("new", 1).len(), 1);
    host.end();
}
