//! A VM's life, as far as it is the same with any machine.

use crate::MACHINE;
use forkyard_e2e::Host;
use forkyard_types::{VmState, VmView};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

#[test]
fn clones_have_the_memory_of_their_parent_as_it_was_and_their_own_from_then_on() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", "poke 7 1");
    let clones = host.fork("p", 3);
    host.sh("p", "poke 7 2");
    for clone in &clones {
        let name = clone.name.as_str();
        assert_eq!(host.sh(name, "peek 7 && hostname"), format!("1\n{name}"));
    }
    let first = clones[0].name.as_str();
    host.sh(first, "poke 7 3");
    // A clone of a clone.
    let second = host.fork(first, 1).remove(0);
    assert_eq!(host.sh(second.name.as_str(), "peek 7"), "3");
    assert_eq!(host.sh(clones[1].name.as_str(), "peek 7"), "1");
    assert_eq!(host.sh("p", "peek 7"), "2");
    assert_eq!(host.processes(MACHINE).len(), 5);
    // Another of its name has none of its forks.
    host.ok(["rm", "p"]);
    host.ok(["run", "tiny", "--name", "p"]);
    let asked = "from forkyard_host import Forkyard, _calls; print(Forkyard()._end.ask(_calls.Call('GET', '/v1/vms/p/forks')))";
    assert_eq!(host.python(asked).trim(), "[]");
    host.end();
}

#[test]
fn a_checkpoint_is_forked_long_after_its_parent_has_gone() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", "poke 1 9");
    host.ok(["checkpoint", "p", "--name", "c"]);
    host.sh("p", "poke 1 8");
    host.ok(["rm", "p"]);
    // By another daemon and another pager.
    host.kill_9("forkyardd");
    host.kill_whole_pager();
    let clone = host.fork("c", 1).remove(0);
    assert_eq!(host.sh(clone.name.as_str(), "peek 1"), "9");
    host.end();
}

#[test]
fn one_that_shows_events_ends_when_nobody_reads_them() {
    let host = Host::fake();
    host.ok(["ps"]);
    let mut shown = host.talk_to(["events"]);
    // No event comes: it notices by itself.
    drop(shown.stdout.take());
    let ended = shown.wait().expect("waited for");
    assert_eq!(ended.code(), Some(141));
    host.end();
}

#[test]
fn what_stops_can_be_started_and_what_is_paused_goes_on() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p"]);
    host.ok(["pause", "p"]);
    assert_eq!(host.vm("p").state, VmState::Paused);
    let clone = host.fork("p", 1).remove(0);
    assert_eq!(
        host.sh(clone.name.as_str(), "hostname"),
        clone.name.as_str()
    );
    host.ok(["resume", "p"]);
    assert_eq!(host.sh("p", "hostname"), "p");
    host.ok(["stop", "p"]);
    assert_eq!(host.vm("p").state, VmState::Stopped);
    host.ok(["start", "p"]);
    assert_eq!(host.sh("p", "hostname"), "p");
    // A restart by its guest is one, too.
    let before = host.vm("p").pid;
    host.start(["exec", "p", "reboot"], "").wait();
    forkyard_e2e::eventually("a restart", || {
        let p = host.vm("p");
        p.state == VmState::Running && p.pid != before
    });
    host.end();
}

#[test]
fn vms_and_what_they_know_outlive_their_daemon() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p", "--warm", "2"]);
    host.wait_warm("p", 2);
    host.sh("p", "poke 3 5");
    let clone = host.fork("p", 1).remove(0);
    let pids = [host.vm("p").pid, clone.pid];
    host.kill_9("forkyardd");
    assert_eq!([host.vm("p").pid, host.vm(clone.name.as_str()).pid], pids);
    assert_eq!(host.sh(clone.name.as_str(), "peek 3"), "5");
    host.wait_warm("p", 2);
    host.end();
}

#[test]
fn a_vm_is_waited_for_until_it_is_as_it_is_wanted() {
    let host = Host::fake();
    // It need not exist yet.
    let running = host.start(["wait", "p"], "");
    host.ok(["run", "tiny", "--name", "p"]);
    assert_eq!(running.wait().exited(0).text(), "p is running");
    let first = host.vm("p");
    let stopped = host.start(["wait", "p", "--until", "stopped", "-o", "json"], "");
    host.ok(["stop", "p"]);
    let told: VmView = serde_json::from_slice(&stopped.wait().exited(0).stdout).expect("a VM");
    assert_eq!((told.id, told.state), (first.id, VmState::Stopped));
    let long = ["wait", "p", "--until", "paused", "--timeout", "1"];
    let late = host.start(long, "").wait().exited(5);
    assert!(
        late.stderr.contains("not done within 1 s"),
        "{}",
        late.stderr
    );
    host.ok(["start", "p"]);

    host.ok(["restart", "p"]);
    let again = host.vm("p");
    assert_eq!((again.id, again.state), (first.id, VmState::Running));
    assert_ne!(again.pid, first.pid);
    let none = host.start(["restart", "p", "nobody"], "").wait().exited(3);
    assert!(none.stderr.contains("nobody"), "{}", none.stderr);
    host.fork("p", 1);
    let (p, clone) = (host.vm("p").pid, host.vm("p-1").pid);
    let refused = host.fails(["restart", "p", "p-1"]);
    assert!(refused.contains("nothing was stopped"), "{refused}");
    assert_eq!((host.vm("p").pid, host.vm("p-1").pid), (p, clone));
    host.ok(["rm", "p-1"]);
    let removed = host.start(["wait", "p", "--until", "removed"], "");
    host.ok(["rm", "p"]);
    removed.wait().exited(0);
    host.end();
}

#[test]
fn ports_are_published_and_closed_while_a_vm_runs_and_outlive_the_daemon() {
    let host = Host::fake();
    host.with_loopback();
    host.ok(["run", "tiny", "--name", "p"]);
    host.fork("p", 1);
    let shown = |name: &str| {
        let ports = host.vm(name).published;
        let ports: Vec<_> = ports.iter().map(ToString::to_string).collect();
        ports.join(" ")
    };
    let is_free = |port: u16| {
        let listen = move || std::net::TcpListener::bind(("0.0.0.0", port)).is_ok();
        host.within(listen)
    };
    host.ok([
        "publish",
        "p",
        "8080:80",
        "127.0.0.1:8081:81",
        "8080:53/udp",
    ]);
    host.ok(["publish", "p-1", "8082:80"]);
    assert_eq!(shown("p"), "8080:80/tcp 127.0.0.1:8081:81/tcp 8080:53/udp");
    assert_eq!(shown("p-1"), "8082:80/tcp");
    let taken = host.start(["publish", "p-1", "8090:1", "8080:1"], "");
    assert!(taken.wait().exited(1).stderr.contains("another port"));
    assert_eq!(shown("p-1"), "8082:80/tcp");
    assert!(is_free(8090), "all of them or none");

    host.kill_9("forkyardd");
    assert_eq!(shown("p"), "8080:80/tcp 127.0.0.1:8081:81/tcp 8080:53/udp");
    assert_eq!(shown("p-1"), "8082:80/tcp");
    assert!(!is_free(8080) && !is_free(8082));
    let rules = || {
        let list = || {
            let nft = ["list", "table", "ip", "forkyard"];
            let said = std::process::Command::new("nft").args(nft).output();
            String::from_utf8(said.expect("nft").stdout).expect("text")
        };
        host.within(list)
    };
    let led = |name: &str, port: u16| {
        let to = format!("dnat to {}:{port}", host.vm(name).address.ip);
        rules().contains(&to)
    };
    assert!(
        led("p", 80) && led("p", 53) && led("p-1", 80),
        "{}",
        rules()
    );

    host.ok(["unpublish", "p", "8080"]);
    assert_eq!(shown("p"), "127.0.0.1:8081:81/tcp 8080:53/udp");
    assert!(is_free(8080) && !led("p", 80) && led("p", 53) && led("p-1", 80));
    let none = host.start(["unpublish", "p", "8080"], "").wait().exited(1);
    assert!(none.stderr.contains("8080/tcp"), "{}", none.stderr);
    host.ok(["rm", "p-1"]);
    assert!(is_free(8082), "it ends with its VM");
    // A founder that boots again has those that it had; a clone of it has none.
    host.ok(["restart", "p"]);
    assert_eq!(shown("p"), "127.0.0.1:8081:81/tcp 8080:53/udp");
    let clone = host.fork("p", 1).remove(0);
    assert_eq!(clone.published, []);
    host.ok(["pause", "p"]);
    host.start(["publish", "p", "8083:1"], "").wait().exited(1);
    host.end();
}

#[test]
fn a_vm_has_another_name_that_no_other_has_from_then_on() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p"]);
    host.fork("p", 1);
    let id = host.vm("p").id;
    host.ok(["rename", "p", "q"]);
    assert_eq!(host.vm("q").id, id);
    host.start(["inspect", "p"], "").wait().exited(1);
    let taken = host.start(["rename", "q", "p-1"], "").wait().exited(1);
    assert!(taken.stderr.contains("p-1"), "{}", taken.stderr);
    host.start(["rename", "q", "no name"], "").wait().exited(2);
    host.kill_9("forkyardd");
    assert_eq!(host.vm("q").id, id);
    assert_eq!(host.fork("q", 1)[0].parent, Some(id));
    host.ok(["run", "tiny", "--name", "p"]);
    host.end();
}

#[test]
fn a_vm_whose_time_is_up_is_kept_as_a_checkpoint_of_its_name() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p", "--label", "user=ada"]);
    host.sh("p", "poke 1 9");
    host.ok(["keepalive", "p", "--ttl", "1", "--at-end", "checkpoint"]);
    forkyard_e2e::eventually("a checkpoint of its name", || {
        let listed: Vec<VmView> = host.json(["ps", "--label", "user=ada"]);
        let [kept] = &listed[..] else { return false };
        kept.name.as_str() == "p" && kept.state == VmState::Checkpoint && kept.ends.is_none()
    });
    assert_eq!(host.processes(MACHINE).len(), 0);
    let clone = host.fork("p", 1).remove(0);
    assert_eq!(host.sh(clone.name.as_str(), "peek 1"), "9");
    assert_eq!(clone.ends, None);
    host.end();
}

#[test]
fn what_a_family_may_reach_is_changed_while_it_runs_and_outlives_the_daemon() {
    let host = Host::fake();
    host.with_loopback();
    host.ok(["run", "tiny", "--name", "p"]);
    host.fork("p", 1);
    let rules = || {
        let list = || {
            let nft = ["list", "table", "ip", "forkyard"];
            let said = std::process::Command::new("nft").args(nft).output();
            String::from_utf8(said.expect("nft").stdout).expect("text")
        };
        host.within(list)
    };
    assert_eq!(host.ok(["egress", "p"]), "none");
    // By a clone: it is the family's.
    let wanted = [
        "egress",
        "p-1",
        "--allow",
        "192.0.2.0/24:443",
        "--deny",
        "192.0.2.7",
    ];
    let said = "nat, allow 192.0.2.0/24:443, deny 192.0.2.7/32";
    assert_eq!(host.ok(wanted), said);
    let holds = |rules: &str| {
        let denied = rules.find("ip daddr 192.0.2.7 reject");
        let allowed = rules.find("ip daddr 192.0.2.0/24 meta l4proto { tcp, udp }");
        denied.is_some() && denied < allowed
    };
    assert!(holds(&rules()), "{}", rules());
    host.kill_9("forkyardd");
    assert_eq!(host.ok(["egress", "p"]), said);
    assert!(holds(&rules()), "{}", rules());

    // What is wrong changes nothing.
    let none = ["egress", "p", "--net", "none", "--allow", "192.0.2.1"];
    let wrong = host.start(none, "").wait().exited(1);
    assert!(
        wrong.stderr.contains("without a way out"),
        "{}",
        wrong.stderr
    );
    let open = "import forkyard_host as f; print(f.Forkyard().vm('p').egress(deny=['198.51.100.0/24'])['deny'])";
    assert_eq!(host.python(open).trim(), "['198.51.100.0/24']");
    assert!(!rules().contains("192.0.2.0/24"), "{}", rules());
    host.ok(["egress", "p", "--net", "none"]);
    assert!(!rules().contains("198.51.100.0/24"), "{}", rules());
    assert_eq!(host.ok(["egress", "p"]), "none");
    host.end();
}

#[test]
fn what_makes_no_sense_is_refused_in_words_of_its_user() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p"]);
    let here = tempfile::tempdir().expect("a folder");
    let path = |name: &str| here.path().join(name).display().to_string();
    nix::unistd::mkfifo(&here.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("made");
    for (words, why) in [
        (vec!["exec", "-u", "", "p", "hostname"], "the user is empty"),
        (
            vec!["exec", "-u", ":", "p", "hostname"],
            "the user is empty",
        ),
        (
            vec!["exec", "-u", ":0", "p", "hostname"],
            "the user is empty",
        ),
        (vec!["run", "tiny", "--memory", "0"], "0 B of memory"),
        (
            vec!["run", "tiny", "--kernel", &path("fifo")],
            "no file that can be booted",
        ),
        (
            vec!["run", "tiny", "--kernel", &path("")],
            "no file that can be booted",
        ),
        (
            vec!["run", "tiny", "--kernel", "/dev/zero"],
            "no file that can be booted",
        ),
        (
            vec!["image", "import", "x", "/nope"],
            "cannot read /nope: No such file",
        ),
        (vec!["fork", "p", "--count", "x"], "wanted a whole number"),
        (vec!["cp", "p:/f", "a:b"], "./a:b"),
    ] {
        let outcome = host.start(&words, "").wait();
        let said = outcome.stderr;
        assert!(
            outcome.code != Some(0) && said.contains(why),
            "{words:?}: {said}"
        );
        for theirs in ["memory_mib", "could not be built", "digit"] {
            assert!(!said.contains(theirs), "{words:?}: {said}");
        }
    }
    // All of them together are too long, none is.
    let long = "x".repeat(120_000);
    let words = ["exec", "p", "echo"].into_iter();
    let words: Vec<_> = words.chain([long.as_str(); 12]).collect();
    let outcome = host.start(&words, "").wait().exited(125);
    let said = outcome.stderr;
    assert!(
        said.contains("arguments") && said.contains("standard input"),
        "{said}"
    );
    host.end();
}

/// Lists all in pages of two while the last of the first page goes away.
const PAGES: &str = r#"
from forkyard_host import Forkyard, ForkyardError
fy = Forkyard()
names = [vm.name for vm in fy.vms()]
first = fy.vms(limit=2)
second = fy.vms(limit=2, after=first[-1])
first[-1].remove()
again = fy.vms(limit=2, after=first[-1])
assert [vm.id for vm in again] == [vm.id for vm in second]
pages = first + second + fy.vms(limit=2, after=second[-1])
assert len(names) == 5 and [vm.name for vm in pages] == names, (names, pages)
"#;

/// Facts of a VM that both clients can tell, and wait for.
const TOLD: &str = r#"
import asyncio
from forkyard_host import AsyncForkyard, Forkyard, ForkyardError

def refused(kind, call):
    try:
        call()
    except ForkyardError as error:
        assert error.kind == kind, (error.kind, error)
    else:
        raise AssertionError(kind)

fy = Forkyard()
p, c = fy.vm("p"), fy.checkpoints()[0]
assert [c.name] == ["c"] and [vm.name for vm in fy.vms(state="paused,stopped")] == ["q"]
assert [vm.name for vm in fy.vms(labels={"user": "ada", "odd": "a,b"}, state="running")] == ["p"]
used = p.usage()
assert used["private"] > 0 and "vm" not in used, used
assert {one["vm"]["name"] for one in fy.usage()["vms"]} == {"p", "q", "c"}
assert p.inspect()["vm"]["id"] == p.id and p.forks() == [] and fy.hosts() == []
refused("conflict", c.wait)
refused("timeout", lambda: p.wait("stopped", timeout=0.1))
assert p.wait() is p

async def on_the_loop():
    fy = AsyncForkyard()
    p, q = await fy.vm("p"), (await fy.vms(state="paused"))[0]
    waiting = asyncio.create_task(q.wait(timeout=60))
    await asyncio.sleep(0.1)
    await q.resume()
    assert (await waiting).state == "running"
    assert [vm.name for vm in await fy.checkpoints()] == ["c"]
    assert (await p.usage())["at_us"] > used["at_us"] and (await p.inspect())["vm"]["id"] == p.id
    gone = asyncio.create_task(q.wait("removed"))
    await q.remove()
    await gone
    try:
        await q.wait("running")
    except ForkyardError as error:
        assert error.kind == "conflict", error

asyncio.run(on_the_loop())
"#;

/// The whole answer to a GET.
fn get(host: &Host, path: &str) -> String {
    let mut socket = UnixStream::connect(host.folder().join("run/api.sock")).expect("a daemon");
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn vms_are_listed_by_state_and_in_pages_though_one_goes_away_meanwhile() {
    let host = Host::fake();
    for name in ["a", "b", "c", "d", "e"] {
        host.ok(["run", "tiny", "--name", name]);
    }
    host.python(PAGES);
    let first = get(&host, "/v1/vms?labels=&limit=3");
    let link = first.lines().find(|line| line.starts_with("link: "));
    let link = link.expect("the next page").to_owned();
    let next = link.trim_start_matches("link: <");
    let (next, rest) = next.split_once('>').expect("an address");
    assert_eq!(rest, "; rel=\"next\"");
    let last = get(&host, next);
    let listed = last.matches("\"epoch\":").count();
    assert!(!last.contains("link: ") && listed == 1, "{last}");
    let left: Vec<VmView> = host.json(["ps"]);
    let paused = left[0].name.to_string();
    host.ok(["pause", &paused]);
    host.ok(["checkpoint", left[1].name.as_str(), "--name", "kept"]);
    let listed = |states: &[&str]| {
        let mut words = vec!["ps"];
        words.extend(states.iter().flat_map(|state| ["--state", state]));
        let all: Vec<VmView> = host.json(words);
        let names: Vec<_> = all.iter().map(|vm| vm.name.to_string()).collect();
        names.join(" ")
    };
    assert_eq!(listed(&["checkpoint"]), "kept");
    assert_eq!(listed(&["paused", "checkpoint"]), format!("{paused} kept"));
    for wrong in ["state=asleep", "limit=0", "after=x", "label=a=b"] {
        let told = get(&host, &format!("/v1/vms?{wrong}"));
        assert!(told.contains("\"kind\":\"invalid\""), "{wrong}: {told}");
    }
    host.end();
}

#[test]
fn both_python_clients_tell_of_what_a_vm_uses_and_wait_for_its_state() {
    let host = Host::fake();
    host.ok([
        "run", "tiny", "--name", "p", "--label", "user=ada", "--label", "odd=a,b",
    ]);
    host.ok(["run", "tiny", "--name", "q"]);
    host.ok(["pause", "q"]);
    host.ok(["checkpoint", "p", "--name", "c"]);
    host.python(TOLD);
    host.end();
}
