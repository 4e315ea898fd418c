//! Commands that outlive their clients, labels, and VMs that are wanted for a time.

use base64::{Engine, prelude::BASE64_STANDARD};
use forkyard_e2e::{Host, eventually};
use forkyard_types::{KeptCommand, ListedVm};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use std::io::Write as _;

/// The commands that a VM keeps and that run.
fn running(host: &Host, vm: &str) -> Vec<KeptCommand> {
    let mut all: Vec<KeptCommand> = host.json(["sessions", "ls", vm]);
    all.retain(|command| command.exit.is_none());
    all
}

#[test]
fn commands_go_on_without_their_clients_and_daemons_and_are_kept_in_clones() {
    let host = Host::with_p([
        "--label",
        "user=ada",
        "--label",
        "job=1",
        "--env",
        "COLOUR=red",
    ]);

    // The last of what it writes is kept; it reads nothing.
    host.sh("p", "mkdir -p /m && mount -t tmpfs m /m && mkfifo /m/go");
    let script = "echo first $COLOUR; yes 0123456789abcdef | head -n 20000; read line </m/go; echo last >&2; exit 7";
    let pid = host.ok(["exec", "-d", "--tag", "work", "p", "sh", "-c", script]);
    let pid = pid.trim();
    eventually("it has written", || {
        let written = |it: &KeptCommand| u64::from(it.kept) + it.lost;
        running(&host, "p")
            .iter()
            .any(|command| written(command) == 10 + 20_000 * 17)
    });
    let [kept] = &running(&host, "p")[..] else {
        panic!("one command");
    };
    assert_eq!(kept.pid.to_string(), pid);
    assert_eq!(kept.tag.as_deref(), Some("work"));
    assert!(kept.lost > 0);
    assert!(usize::try_from(kept.kept).is_ok_and(|kept| kept <= KeptCommand::OUTPUT));

    // A client that is attached gets all that comes, however much, and may leave.
    let small = host.ok([
        "exec",
        "-d",
        "p",
        "sh",
        "-c",
        "echo hello $COLOUR; sleep 1000",
    ]);
    let small = small.trim();
    let first = host.start(["sessions", "attach", "p", small], "");
    eventually("what was said before is told", || {
        first.said().trim() == "hello red"
    });
    first.interrupt();
    first.wait();

    over_websockets(&host);

    // A command that a client follows ends with the daemon that carried it, whatever it ignores; what came of its
    // input until then is not taken for the whole.
    let fed = "trap '' HUP; cat >/m/part; touch /m/whole; sleep 1001";
    let mut client = host.talk_to(["exec", "-i", "p", "sh", "-c", fed]);
    let mut input = client.stdin.take().expect("a pipe");
    input.write_all(b"part").expect("written");
    host.wait_in("p", "[ -s /m/part ]");
    for daemon in host.processes("forkyardd") {
        let pid = Pid::from_raw(daemon.pid.try_into().expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("told");
    }
    assert_eq!(client.wait().expect("waited for").code(), Some(125));
    host.wait_in("p", "! grep -qs sleep.100[1] /proc/[0-9]*/cmdline");
    host.sh("p", "[ ! -e /m/whole ]");

    // Neither the daemon's end nor a fork ends those that are kept.
    host.kill_9("forkyardd");
    let told = "touch /m/up; until [ -e /m/say ]; do sleep 0.1; done; echo said-$(hostname)";
    let client = host.start(["exec", "p", "sh", "-c", told], "");
    host.wait_in("p", "[ -e /m/up ]");
    host.ok(["fork", "p"]);
    // What a client's command says is on the console of a clone, which has no client.
    host.sh("p-1", "touch /m/say");
    eventually("it is in the clone's log", || {
        host.ok(["logs", "p-1"]).contains("sh: said-p-1")
    });
    host.sh("p", "touch /m/say");
    assert_eq!(client.wait().exited(0).text(), "said-p");
    for vm in ["p", "p-1"] {
        assert_eq!(running(&host, vm).len(), 2, "{vm}");
    }
    let attached = host.start(["sessions", "attach", "p-1", pid], "");
    eventually("its output comes", || attached.said().len() > 60_000);
    host.sh("p-1", "echo >/m/go");
    let ended = attached.wait().exited(7);
    assert_eq!(ended.stderr, "last\n");
    let size = u32::try_from(ended.text().len()).expect("small");
    assert!(size + 1 >= kept.kept, "{size} of {} bytes", kept.kept);
    assert_eq!(running(&host, "p-1").len(), 1, "it has ended in the clone");
    assert_eq!(running(&host, "p").len(), 2, "and goes on in the parent");

    // Killed with all that it started, and told apart from one that there never was.
    host.ok(["sessions", "kill", "p", small]);
    eventually("it is gone", || running(&host, "p").len() == 1);
    let gone = host.fails(["sessions", "kill", "p", small]);
    assert!(gone.contains("has ended"), "{gone}");
    let gone = host.fails(["sessions", "attach", "p", "1"]);
    assert!(gone.contains("has no session 1"), "{gone}");

    // Labels are the clones' as well; a time that is up ends a VM.
    let labelled: Vec<ListedVm> = host.json(["ps", "--label", "user=ada", "--label", "job=1"]);
    assert_eq!(labelled.len(), 2);
    let none: Vec<ListedVm> = host.json(["ps", "--label", "user=bob"]);
    assert!(none.is_empty());
    host.ok(["keepalive", "p", "--ttl", "1", "--at-end", "pause"]);
    host.ok(["keepalive", "p-1", "--ttl", "1"]);
    eventually("one is paused, the other is gone", || {
        let all: Vec<ListedVm> = host.json(["ps"]);
        let states: Vec<_> = all.iter().map(|vm| vm.vm.state.to_string()).collect();
        states == ["paused"]
    });
    host.ok(["resume", "p"]);
    let all: Vec<ListedVm> = host.json(["ps"]);
    assert_eq!(all[0].vm.ends, None, "its time has been up once");
    host.ok(["keepalive", "p", "--ttl", "1h"]);
    host.ok(["keepalive", "p", "--forever"]);
    host.end();
}

/// A client that closes its WebSocket ends its command, and none that is kept.
fn over_websockets(host: &Host) {
    let mut socket = host.socket("/v1/vms/p/exec").expect("opened");
    socket.say(&json!({ "argv": ["sleep", "1002"] }));
    host.wait_in("p", "grep -qs sleep.100[2] /proc/[0-9]*/cmdline");
    socket.close();
    host.wait_in("p", "! grep -qs sleep.100[2] /proc/[0-9]*/cmdline");

    let size = json!({ "rows": 30, "cols": 90 });
    let mut socket = host.socket("/v1/vms/p/exec").expect("opened");
    socket.say(&json!({ "argv": ["sh"], "tty": size, "keep": true }));
    let started = socket.told().expect("started");
    let pid = &started["started"]["pid"];
    drop(socket);
    // One types, the other reads.
    let at = format!("/v1/vms/p/sessions/{pid}");
    let mut typing = host.socket(&format!("{at}?output=false")).expect("opened");
    let mut reading = host.socket(&at).expect("opened");
    typing.say(&json!({ "resize": { "rows": 31, "cols": 91 } }));
    typing.say(&json!({ "stdin": BASE64_STANDARD.encode("stty size; exit 5\n") }));
    let mut said = Vec::new();
    let ended = loop {
        let event = reading.told().expect("its end comes first");
        match event["stdout"].as_str() {
            Some(text) => said.extend(BASE64_STANDARD.decode(text).expect("base64")),
            None if event.get("started").is_some() => {}
            None => break event,
        }
    };
    assert_eq!(ended, json!({ "exit": { "code": 5 } }));
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("31 91"), "{said}");
    assert_eq!(reading.told(), None);
}
