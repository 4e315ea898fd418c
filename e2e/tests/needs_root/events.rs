//! Events of a host, by each way that they can be read.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{HostEvent, Occurrence, VmState};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    process::Child,
    sync::mpsc,
    thread,
};

/// A line for each event of VMs, forks and checkpoints: what it is about, and what happened.
fn told(event: &HostEvent) -> Option<String> {
    let name = event.subject.vm.as_ref()?.name.to_string();
    let what = match &event.what {
        Occurrence::VmCreated(vm) => format!("created {}", vm.state),
        Occurrence::VmChanged(vm) => format!("{} -> {}", vm.from, vm.to),
        Occurrence::VmRemoved(_) => "removed".into(),
        Occurrence::ForkBegun(fork) => format!("fork of {}", fork.clones),
        Occurrence::ForkOver(fork) => format!("forked {} and not {}", fork.ready, fork.failed),
        Occurrence::CheckpointMade(_) => "kept".into(),
        Occurrence::CheckpointRemoved(_) => "dropped".into(),
        // How far a fork is, and what a busy host is late with.
        Occurrence::ForkReached(_)
        | Occurrence::VmSilence(_)
        | Occurrence::MigrationReached(_)
        | Occurrence::MigrationOver(_)
        | Occurrence::TicketChanged(_)
        | Occurrence::ImageChanged(_)
        | Occurrence::NodeChanged(_)
        | Occurrence::TransferOver(_)
        | Occurrence::Lagged(_) => return None,
    };
    Some(format!("{name}: {what}"))
}

/// Events of a VM, a fork, a clone and a checkpoint, in order.
const STORY: [&str; 10] = [
    "p: created starting",
    "p: starting -> running",
    "p: fork of 1",
    "p-1: created running",
    "p: forked 1 and not 0",
    "p-1: running -> stopped",
    "c: kept",
    "c: dropped",
    "p-1: removed",
    "p: removed",
];

/// Events by HTTP, as they come, until the connection is cut.
struct Stream {
    socket: UnixStream,
    events: mpsc::Receiver<HostEvent>,
}

impl Stream {
    /// Reads from a position on: `query` or a header, as browsers resume.
    fn open(host: &Host, query: &str, header: &str) -> Self {
        let path = host.folder().join("run/api.sock");
        let mut socket = UnixStream::connect(path).expect("a daemon");
        // No chunks in an answer by HTTP/1.0.
        let request = format!("GET /v1/events{query} HTTP/1.0\r\n{header}\r\n");
        socket.write_all(request.as_bytes()).expect("asked");
        let mut lines = BufReader::new(socket.try_clone().expect("the same")).lines();
        let status = lines.next().expect("an answer").expect("read");
        assert!(status.contains(" 200 "), "{status}");
        let (sender, events) = mpsc::channel();
        thread::spawn(move || {
            let mut id = String::new();
            for line in lines.map_while(Result::ok) {
                if let Some(told) = line.strip_prefix("id: ") {
                    id = told.to_owned();
                } else if let Some(data) = line.strip_prefix("data: ") {
                    let event: HostEvent = serde_json::from_str(data).expect("an event");
                    assert_eq!(event.cursor().to_string(), id);
                    let _ = sender.send(event);
                }
            }
        });
        Self { socket, events }
    }

    /// The next so many; none is late.
    fn take(&self, count: usize) -> Vec<HostEvent> {
        let within = std::time::Duration::from_secs(60);
        let next = || self.events.recv_timeout(within).expect("an event");
        (0..count).map(|_| next()).collect()
    }

    fn cut(self) {
        self.socket.shutdown(Shutdown::Both).expect("cut");
    }
}

/// Whatever a command still writes, up to its end.
fn rest(mut child: Child) -> (Option<i32>, Vec<HostEvent>) {
    let mut out = String::new();
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_to_string(&mut out).expect("text");
    let status = child.wait().expect("ended");
    let read = |line: &str| serde_json::from_str(line).expect("an event");
    (status.code(), out.lines().map(read).collect())
}

#[test]
fn what_happens_is_told_in_order_to_each_reader_and_nothing_is_lost_by_a_cut() {
    let host = Host::new();
    // Two that are there before anything is. The daemon that the first one starts stays for it.
    let command = host.talk_to(["events", "-o", "json", "--since", "0"]);
    eventually("a daemon", || host.folder().join("run/api.sock").exists());
    let stream = Stream::open(&host, "?since=0", "");
    let told_to_python = thread::scope(|scope| {
        let python = scope.spawn(|| {
            host.python(
                r#"
from forkyard_host import Forkyard
with Forkyard().events(since=0, kinds=["vm", "checkpoint"]) as events:
    for event in events:
        if event.what != "vm_silence":
            print(event.kind, event.vm, event.what)
        if (event.vm, event.what) == ("p", "vm_removed"):
            break
    again = Forkyard().events(since=events.position, follow=False)
    assert list(again) == [], "nothing came after"
"#,
            )
        });
        host.ok(["run", "tiny", "--name", "p"]);
        let fork = host.fork("p", 1);
        assert_eq!(fork[0].name.as_str(), "p-1");
        host.ok(["stop", "p-1"]);
        assert_eq!(host.vm("p-1").state, VmState::Stopped);
        host.ok(["checkpoint", "p", "--name", "c"]);
        host.ok(["rm", "c"]);
        host.ok(["rm", "p-1"]);
        host.ok(["rm", "p"]);
        python.join().expect("no panic")
    });

    // One that is cut after every event and resumes sees each once.
    let mut resumed: Vec<HostEvent> = stream.take(1);
    stream.cut();
    while resumed
        .last()
        .and_then(told)
        .is_none_or(|last| last != "p: removed")
    {
        let last = resumed.last().expect("one").cursor();
        let header = format!("Last-Event-ID: {last}\r\n");
        // The header counts: browsers repeat the address they began with.
        let stream = Stream::open(&host, "?since=0", &header);
        resumed.extend(stream.take(1));
        stream.cut();
    }
    let seqs: Vec<_> = resumed.iter().map(|event| event.seq).collect();
    let all: Vec<_> = (1..).take(seqs.len()).collect();
    assert_eq!(seqs, all);
    assert_eq!(resumed.iter().filter_map(told).collect::<Vec<_>>(), STORY);
    let python: Vec<_> = told_to_python.lines().collect();
    assert_eq!(
        python,
        [
            "vm p vm_created",
            "vm p vm_changed",
            "vm p-1 vm_created",
            "vm p-1 vm_changed",
            "checkpoint c checkpoint_made",
            "checkpoint c checkpoint_removed",
            "vm p-1 vm_removed",
            "vm p vm_removed",
        ]
    );

    // The command's stream ends with the daemon, and it says so.
    for daemon in host.processes("forkyardd") {
        let pid = Pid::from_raw(daemon.pid.try_into().expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("told");
    }
    let (code, events) = rest(command);
    assert_eq!(code, Some(4));
    assert_eq!(events, resumed);
    host.nothing_left();
}

#[test]
fn a_reader_that_comes_late_is_told_how_many_it_missed() {
    let host = Host::new();
    let told = [("FORKYARD_EVENTS", "4")];
    let words = ["run", "tiny", "--name", "p"];
    host.start_with(words, told).wait().exited(0);
    for _ in 0..3 {
        host.ok(["pause", "p"]);
        host.ok(["resume", "p"]);
    }
    let read = |since: &str| -> Vec<HostEvent> {
        let out = host.ok(["events", "--no-follow", "--since", since, "-o", "json"]);
        let lines = out.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("an event"))
            .collect()
    };
    let events = read("1");
    assert_eq!(events.len(), 5, "{events:?}");
    let Occurrence::Lagged(lagged) = events[0].what else {
        panic!("{:?}", events[0]);
    };
    // It knows of one; the others are the four that are kept.
    let newest = events[4].seq;
    assert_eq!(lagged.missed, Some(newest - 4 - 1));
    let again = read(&events[0].cursor().to_string());
    assert_eq!(again, events[1..]);
    // Another daemon has another stream: what was missed is not known.
    host.kill_9("forkyardd");
    host.ok(["ps"]);
    let events = read(&events[4].cursor().to_string());
    assert!(
        matches!(&events[0].what, Occurrence::Lagged(lagged) if lagged.missed.is_none()),
        "{events:?}"
    );
    host.end();
}
