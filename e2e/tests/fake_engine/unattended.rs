//! VMs without a user: those that are not used sleep or end, and those that end by themselves are
//! started again, also after their host went down.

use crate::MACHINE;
use forkyard_e2e::{Host, Process, eventually};
use forkyard_types::{VmState, VmView};
use std::{
    net::{Ipv4Addr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

fn sleeps(host: &Host, name: &str, state: VmState) {
    eventually("a VM that sleeps", || {
        let vm = host.vm(name);
        vm.asleep && vm.state == state
    });
}

/// Published ports of the VMs `w` and `c`.
const PORTS: [u16; 2] = [8080, 8081];

/// Datagrams to published ports, ten a second, until this is dropped.
struct Sending {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sending {
    fn to(host: &Host, ports: &'static [u16]) -> Self {
        let here = Ipv4Addr::LOCALHOST;
        let socket = host.within(move || UdpSocket::bind((here, 0)).expect("bound"));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                for port in ports {
                    socket.send_to(b"x", (here, *port)).expect("sent");
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        let thread = Some(thread);
        Self { stop, thread }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(Err(failed)) = self.thread.take().map(JoinHandle::join)
            && !thread::panicking()
        {
            std::panic::resume_unwind(failed);
        }
    }
}

#[test]
fn a_vm_that_is_not_used_sleeps_and_is_woken_by_its_next_use() {
    let host = Host::fake();
    host.with_loopback();
    host.ok(["run", "tiny", "--name", "p", "--idle", "2"]);
    host.sh("p", "poke 1 9 && serve 7");
    // A command that does nothing is a use.
    let used = host.start(["exec", "p", "--", "sh", "-c", "wait"], "");
    // So is what a published port brings.
    let run = |name: &str, port: u16| {
        let published = format!("{port}:80/udp");
        let words = ["run", "tiny", "--name", name, "--idle", "2"];
        let words = words.into_iter().chain(["--publish", &published]);
        host.start(words, "").wait().exited(0);
    };
    run("w", PORTS[0]);
    let sending = Sending::to(&host, &PORTS[..1]);
    // The one that is not used falls asleep, twice, and the others do not.
    run("c", PORTS[1]);
    for _ in 0..2 {
        sleeps(&host, "c", VmState::Paused);
        assert_eq!(host.vm("p").state, VmState::Running);
        assert_eq!(host.vm("w").state, VmState::Running);
        host.sh("c", "true");
    }
    drop(sending);
    used.interrupt();
    drop(used);
    sleeps(&host, "w", VmState::Paused);
    // It wakes a VM, too; what is sent to others, or by the host, does not.
    host.sh("p", "true");
    assert!(host.vm("w").asleep);
    let sending = Sending::to(&host, &PORTS[..1]);
    eventually("it to be woken", || {
        let w = host.vm("w");
        (w.asleep, w.state) == (false, VmState::Running)
    });
    drop(sending);
    sleeps(&host, "w", VmState::Paused);
    // What its user has paused stays so, while the same wakes the other.
    host.ok(["pause", "w"]);
    for _ in 0..2 {
        sleeps(&host, "c", VmState::Paused);
        let _sending = Sending::to(&host, &PORTS);
        eventually("the other to be woken", || !host.vm("c").asleep);
    }
    assert_eq!(host.vm("w").state, VmState::Paused);
    assert!(!host.vm("w").asleep);
    host.ok(["rm", "c"]);
    host.ok(["rm", "w"]);
    sleeps(&host, "p", VmState::Paused);
    assert!(host.ok(["ps"]).contains("asleep"));
    // Clones are told when to sleep as their parent is, and do not begin so.
    let clone = host.fork("p", 1).remove(0);
    assert_eq!((clone.asleep, clone.idle), (false, host.vm("p").idle));
    let never = ["update", "--restart", "always", "p-1"];
    let refused = host.start(never, "").wait().exited(1);
    assert!(refused.stderr.contains("is a clone"), "{}", refused.stderr);
    host.ok(["rm", "p-1"]);
    host.kill_9("forkyardd");
    assert!(host.vm("p").asleep, "it is recorded");
    assert_eq!(host.sh("p", "peek 1"), "9");
    let p = host.vm("p");
    assert_eq!((p.asleep, p.state), (false, VmState::Running));

    sleeps(&host, "p", VmState::Paused);
    let connects = "import forkyard_host as f; print(f.Forkyard().vm('p').connect(7).recv(1))";
    assert_eq!(
        host.python(connects).trim(),
        "b'p'",
        "a connection wakes it"
    );
    assert_eq!(host.vm("p").state, VmState::Running);

    // What its user has paused stays so.
    sleeps(&host, "p", VmState::Paused);
    host.ok(["pause", "p"]);
    assert!(!host.vm("p").asleep);
    let refused = host.start(["exec", "p", "true"], "").wait().exited(125);
    assert!(refused.stderr.contains("paused"), "{}", refused.stderr);
    host.ok(["resume", "p"]);

    assert_eq!(
        host.ok(["idle", "p", "1:stop"]),
        "p: stop after 1 s without use"
    );
    sleeps(&host, "p", VmState::Stopped);
    assert_eq!(host.sh("p", "hostname"), "p", "it boots for its next use");
    host.ok(["idle", "p", "--never"]);
    assert_eq!(host.vm("p").idle, None);

    host.ok(["run", "tiny", "--name", "q", "--idle", "1:checkpoint"]);
    host.ok(["run", "tiny", "--name", "r", "--idle", "1:rm"]);
    eventually("a checkpoint, and one less", || {
        let all: Vec<VmView> = host.json(["ps"]);
        let seen: Vec<_> = all.iter().map(|vm| (vm.name.as_str(), vm.state)).collect();
        seen == [("p", VmState::Running), ("q", VmState::Checkpoint)]
    });
    let wrong = host.start(["idle", "p", "0"], "").wait().exited(2);
    assert!(
        wrong.stderr.contains("at least a second"),
        "{}",
        wrong.stderr
    );
    host.end();
}

#[test]
fn a_vm_that_ends_by_itself_is_started_again_if_it_is_to_and_after_its_host_went_down() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p", "--restart", "always"]);
    host.ok(["run", "tiny", "--name", "q", "--restart", "always"]);
    host.ok(["update", "--restart", "no", "q"]);
    host.ok(["run", "tiny", "--name", "r", "--restart", "on-failure:1"]);
    let runs_anew = |name: &str, before: Option<u32>| {
        eventually("a VM that runs again", || {
            let vm = host.vm(name);
            vm.state == VmState::Running && vm.pid.is_some() && vm.pid != before
        });
    };
    let machine = |name: &str| {
        let pid = host.vm(name).pid;
        let all = host.processes(MACHINE);
        let found = all.into_iter().find(|process| Some(process.pid) == pid);
        found.expect("a machine")
    };
    // Its guest powers off: a failure for none.
    let (p, r) = (host.vm("p").pid, host.vm("r").pid);
    for name in ["p", "q", "r"] {
        host.start(["exec", name, "poweroff"], "").wait();
    }
    runs_anew("p", p);
    host.wait_stopped("q");
    host.wait_stopped("r");
    host.ok(["start", "r"]);
    // Its machine is killed.
    let r = host.vm("r").pid.or(r);
    machine("r").kill();
    runs_anew("r", r);
    let failed_again = machine("r");
    failed_again.kill();
    host.wait_stopped("r");
    assert_eq!(host.vm("r").starts, None, "once is enough");
    host.ok(["start", "r"]);
    // One that its user stops stays stopped.
    host.ok(["run", "tiny", "--name", "s"]);
    let updated: Vec<VmView> = host.json(["update", "--restart", "always", "s"]);
    assert_eq!(updated.len(), 1);
    host.ok(["stop", "s"]);

    // The host goes down, with all that runs there.
    let before = [host.vm("p").pid, host.vm("r").pid];
    host.kill_9("forkyardd");
    Process::kill_all(&host.processes(MACHINE));
    host.kill_whole_pager();
    eventually("nothing that runs", || host.processes(MACHINE).is_empty());
    // The daemon of the service, after the boot.
    runs_anew("p", before[0]);
    runs_anew("r", before[1]);
    assert_eq!(host.sh("p", "hostname"), "p");
    for name in ["q", "s"] {
        assert_eq!(host.vm(name).state, VmState::Stopped, "{name}");
    }

    // It has a daemon that died while it was due; its user has it no more.
    host.ok(["rm", "q", "r", "s"]);
    machine("p").kill();
    eventually("an end", || host.vm("p").state != VmState::Running);
    host.kill_9("forkyardd");
    runs_anew("p", None);
    host.end();
}
