//! A state folder that a former version has left: `e2e/tests/fixtures/former`.

use forkyard_e2e::{Host, is_sound};
use forkyard_types::VmState;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const OLD: &str = "mqdfcd4hhhn";
const KEPT: &str = "h2bgs78kgh5";
const FAMILY: &str = "87w4himhmgb";

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

/// Looks one row of the records up.
fn row(state: &Path, query: &str) -> Vec<Value> {
    const LOOK_UP: &str = "import json, sqlite3, sys; \
        print(json.dumps(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchone()))";
    let database = state.join("forkyard.db");
    let database = database.to_str().expect("text");
    let told = run("python3", &["-c", LOOK_UP, database, query]);
    serde_json::from_str(&told).expect("a row")
}

/// Has the records of a host whose daemon has ended be the former version's.
fn put_fixture(host: &Host) {
    let (state, run_dir) = (host.folder().join("state"), host.folder().join("run"));
    for file in ["forkyard.db", "forkyard.db-wal", "forkyard.db-shm"] {
        let _ = fs::remove_file(state.join(file));
    }
    let text = fs::read_to_string(fixture().join("forkyard.sql")).expect("the fixture");
    let text = text.replace("/STATE/", &format!("{}/", state.display()));
    sql(
        &state,
        &text.replace("/RUN/", &format!("{}/", run_dir.display())),
    );
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/former")
}

/// Ends the daemon, and has the state folder be as a former version has left it.
fn go_back(host: &Host) {
    let state = host.folder().join("state");
    // Disks of that version lie over the image's, as this one's do; and devices are its engine's.
    host.ok(["run", "tiny", "--name", "q"]);
    let of = |name: &str| state.join("vms").join(host.vm(name).id.as_str());
    let slice = of("q").join("0.qcow2");
    let info = run(
        "qemu-img",
        &["info", "-U", "--output=json", slice.to_str().expect("text")],
    );
    let info: Value = serde_json::from_str(&info).expect("JSON");
    let base = info["backing-filename"]
        .as_str()
        .expect("a base")
        .to_owned();
    let size = info["virtual-size"].to_string();
    host.ok(["checkpoint", "q", "--name", "c"]);
    let devices = fs::read(of("c").join("devices")).expect("devices");
    host.ok(["rm", "q", "c"]);
    host.kill_9("forkyardd");
    put_fixture(host);
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
    fs::copy(fixture().join("memory.pages"), kept.join("memory.pages")).expect("copied");
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

#[test]
fn a_machine_that_a_former_version_left_running_is_taken_over_and_runs_on() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "q"]);
    host.sh("q", "poke 7 3");
    let q = host.vm("q");
    let pid = q.pid.expect("it runs");
    host.kill_9("forkyardd");
    // The daemon dies, its machine runs on: so does an update of the daemon begin.
    let state = host.folder().join("state");
    let of_q = "SELECT epoch, uid, chain, memory, number FROM vm, family \
        WHERE vm.name = 'q' AND family.id = vm.family";
    let of_q = row(&state, of_q);
    let [epoch, uid, chain, memory, number] = &of_q[..] else {
        panic!("{of_q:?}");
    };
    // As that version's `MachineRecord` is written: what it has, in its order.
    let started = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, after_name) = started.rsplit_once(") ").expect("a name");
    let start = after_name.split(' ').nth(19).expect("its start");
    let machine = format!(
        r#"{{"id":"{id}","dir":"{dir}","process":{{"pid":{pid},"start":{start}}},"memory":{memory},"accel":"tcg","state_fd":null,"track_fd":7}}"#,
        id = q.id,
        dir = host.folder().join("run/vms").join(q.id.as_str()).display(),
    );
    put_fixture(&host);
    sql(
        &state,
        &format!(
            "DELETE FROM fork; DELETE FROM vm WHERE id = '{KEPT}'; \
             UPDATE family SET id = '{family}', number = {number} WHERE id = '{FAMILY}'; \
             UPDATE vm SET id = '{id}', name = 'q', family = '{family}', epoch = '{epoch}', uid = {uid}, \
             memory = {memory}, chain = '{chain}', machine = '{machine}' WHERE id = '{OLD}'",
            id = q.id,
            family = q.family,
            epoch = epoch.as_str().expect("text"),
            chain = chain.as_str().expect("text"),
        ),
    );
    assert_eq!(row(&state, "PRAGMA user_version"), [json!(9)]);

    let adopted = host.vm("q");
    assert_eq!(
        (adopted.id, adopted.state, adopted.pid),
        (q.id, VmState::Running, Some(pid)),
        "{adopted:?}"
    );
    assert_eq!(adopted.silence, None);
    assert_eq!(host.sh("q", "hostname && peek 7"), "q\n3");
    // It is as good as one of this version's: it is forked, and paused.
    let clone = host.fork("q", 1).remove(0);
    assert_eq!(host.sh(clone.name.as_str(), "peek 7"), "3");
    host.ok(["pause", "q"]);
    host.ok(["resume", "q"]);
    assert_eq!(host.sh("q", "peek 7"), "3");
    is_sound(&host);
    host.end();
}
