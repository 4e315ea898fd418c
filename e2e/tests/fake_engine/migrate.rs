//! A daemon is killed before the Nth thing it does for a VM that moves: that of the host it
//! leaves, and that of the host it comes to. Exactly one of the two has it afterwards.

use forkyard_e2e::{Cluster, eventually, is_sound, steps};
use forkyard_types::{VmState, VmView, VolumeView};
use std::{
    io::{BufRead, BufReader, Read, Write},
    process::Child,
};

/// Steps that are tried, spread evenly; `FORKYARD_E2E_STEPS=1` tries all.
const SOME: u64 = 5;

/// Hosts that have `p`, and the state it is in there.
fn places(cluster: &Cluster) -> Vec<(usize, VmState)> {
    let at = |number: usize| {
        let own = |vm: &VmView| vm.host.is_none() && vm.name.as_str() == "p";
        let vms = cluster.host(number).vms().into_iter();
        vms.filter(own).map(move |vm| (number, vm.state))
    };
    (0..2).flat_map(at).collect()
}

/// Checks that its volumes, if it has any, are where it is, and at most copies elsewhere. Of `f`,
/// which stays where it was, it reads a snapshot; what that is for it is not listed.
fn its_volumes_are_with_it(cluster: &Cluster) {
    let volumes = |number: usize| -> Vec<VolumeView> {
        let all: Vec<VolumeView> = cluster.host(number).json(["volume", "ls"]);
        let own = |it: &VolumeView| it.name.as_str() != "f" && !it.name.as_str().ends_with("-f");
        all.into_iter().filter(own).collect()
    };
    eventually("its volumes to be with it, and nowhere else", || {
        let [(at, _)] = places(cluster)[..] else {
            return false;
        };
        let (with, other) = (volumes(at), volumes(1 - at));
        let is_with = |it: &VolumeView| {
            it.at.is_none() && it.vm.as_ref().is_some_and(|vm| vm.as_str() == "p")
        };
        let is_copy = |it: &VolumeView| it.at == Some(format!("h{at}")) && it.vm.is_none();
        with.iter().all(is_with) && other.iter().all(is_copy) && with.len() >= other.len()
    });
}

/// Ports of the host that lead to `p`, at either.
fn ports(cluster: &Cluster) -> [usize; 2] {
    [0, 1].map(|number| {
        let vms = cluster.host(number).vms().into_iter();
        let own = vms.filter(|vm| vm.host.is_none() && vm.name.as_str() == "p");
        own.map(|vm| vm.published.len()).sum()
    })
}

/// Moves `p` home, if it is not there. It is in this state wherever it is.
fn home_as(cluster: &Cluster, state: VmState) {
    eventually(
        "exactly one of them to have it",
        || matches!(places(cluster)[..], [(_, is)] if is == state),
    );
    its_volumes_are_with_it(cluster);
    if places(cluster)[0].0 == 1 {
        cluster.host(1).ok(["migrate", "p", "--to", "h0"]);
    }
    assert_eq!(places(cluster), [(0, state)]);
    eventually("the other to know of nothing", || {
        cluster.host(1).vms().iter().all(|vm| vm.host.is_some())
    });
}

fn home(cluster: &Cluster) {
    home_as(cluster, VmState::Running);
}

/// Moves `p` again and again, and kills one of the daemons meanwhile. `more` is what else is said;
/// a copy that it asks for is called `c`.
fn sweep(cluster: &mut Cluster, dying: usize, more: &[&str]) {
    let words = [&["migrate", "p", "--to", "h1"], more].concat();
    let drop_copy = |cluster: &Cluster| {
        let copies = cluster.host(0).vms().into_iter();
        for copy in copies.filter(|vm| vm.name.as_str() == "c") {
            assert_eq!(copy.state, VmState::Checkpoint);
            cluster.host(0).ok(["rm", "c"]);
        }
    };
    let (epoch, state) = (cluster.host(0).vm("p").epoch, cluster.host(0).vm("p").state);
    let [published, _] = ports(cluster);
    cluster.host(dying).steps().count_only();
    cluster.host(0).start(words.iter(), "").wait().exited(0);
    let total = cluster.host(dying).steps().stop();
    drop_copy(cluster);
    assert_eq!(ports(cluster), [0, published]);
    home_as(cluster, state);
    let mut reached = 0;
    for step in steps::chosen(total, SOME) {
        cluster.host(dying).steps().kill_at(step);
        let outcome = cluster.host(0).start(words.iter(), "").wait();
        cluster.host(dying).steps().stop();
        let call = cluster.host(dying).steps().died_before();
        let code = outcome.code;
        eprintln!("migrate, host {dying}: {step} of {total}, {call}: {code:?}");
        reached += u32::from(!call.is_empty());
        cluster.replace_daemon(dying);
        if outcome.code == Some(0) {
            eventually("it to be where it was said to be", || {
                places(cluster) == [(1, state)]
            });
        }
        // It lies over what the VM would bring back.
        drop_copy(cluster);
        home_as(cluster, state);
        assert_eq!(cluster.host(0).vm("p").epoch, epoch);
        assert_eq!(ports(cluster), [published, 0]);
        for host in [0, 1] {
            is_sound(cluster.host(host));
        }
    }
    assert!(reached > 0, "the daemon was never killed");
}

#[test]
fn a_daemon_killed_at_any_step_of_a_migration_leaves_its_vm_on_exactly_one_host() {
    let mut cluster = Cluster::fake_with_steps(2);
    cluster.host(0).ok(["volume", "create", "f", "1M"]);
    for (words, paused) in [
        (
            &[
                "--publish",
                "7070:80",
                "--net",
                "routed",
                "--ip",
                "203.0.113.7",
            ][..],
            false,
        ),
        (&["--volume", "d", "--data", "e:1M", "--data", "f:ro"], true),
    ] {
        let words = [&["run", "tiny", "--name", "p"], words].concat();
        cluster.host(0).start(words.iter(), "").wait().exited(0);
        if paused {
            cluster.host(0).ok(["pause", "p"]);
        }
        let copy: &[_] = if paused {
            &["--keep-copy", "c", "--disk", "on-demand"]
        } else {
            &[]
        };
        sweep(&mut cluster, 0, copy);
        sweep(&mut cluster, 1, copy);
        cluster.host(0).ok(["resume", "p"]);
        assert_eq!(cluster.host(0).sh("p", "echo here"), "here");
        cluster.host(0).ok(["rm", "p"]);
    }
    // Of neither host's copy does anything need the other.
    for host in [0, 1] {
        let left: Vec<VolumeView> = cluster.host(host).json(["volume", "ls"]);
        for volume in left {
            // The other may be fetching the last of its blocks yet.
            eventually("a copy that nothing needs to go", || {
                let words = ["volume", "rm", volume.name.as_str()];
                cluster.host(host).start(words, "").wait().code == Some(0)
            });
        }
    }
    cluster.end();
}

/// A command that says what it hears, and its client at a host.
struct Copying {
    client: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Copying {
    fn at(host: &forkyard_e2e::Host) -> Self {
        let mut client = host.talk_to(["exec", "-i", "p", "--", "sh", "-c", "cat; end 7"]);
        let said = BufReader::new(client.stdout.take().expect("piped"));
        let mut this = Self { client, said };
        this.says_again("first\n");
        this
    }

    fn say(&mut self, text: &str) {
        let input = self.client.stdin.as_mut().expect("piped");
        input.write_all(text.as_bytes()).expect("it listens");
        input.flush().expect("it listens");
    }

    #[track_caller]
    fn says_again(&mut self, line: &str) {
        self.say(line);
        let mut said = String::new();
        self.said.read_line(&mut said).expect("it says something");
        assert_eq!(said, line);
    }

    /// Ends its input; what it says after that, and its exit code.
    fn ends(mut self) -> (Vec<u8>, Option<i32>) {
        drop(self.client.stdin.take());
        let mut rest = Vec::new();
        self.said.read_to_end(&mut rest).expect("its end");
        (rest, self.client.wait().expect("ended").code())
    }
}

#[test]
fn a_command_under_way_goes_on_across_moves_and_its_client_misses_and_repeats_nothing() {
    let mut cluster = Cluster::fake_with_steps(2);
    cluster.host(0).ok(["run", "tiny", "--name", "p"]);
    let mut one = Copying::at(cluster.host(0));
    let words = ["exec", "p", "--", "sh", "-c", "echo begun; wait"];
    let left = cluster.host(0).start(words, "");
    eventually("it has begun", || left.said() == "begun\n");
    cluster.host(0).ok(["migrate", "p", "--to", "h1"]);
    one.says_again("there\n");
    // Over two hosts, and back at the first: its client is still served by the way it came.
    let mut two = Copying::at(cluster.host(1));
    cluster.host(1).ok(["migrate", "p", "--to", "h0"]);
    one.says_again("and back\n");
    two.says_again("from there\n");
    // More than the windows on the way hold without being opened again.
    for number in 0..50 {
        two.says_again(&format!("{number}\n"));
    }
    assert_eq!(one.ends(), (Vec::new(), Some(7)));
    assert_eq!(two.ends(), (Vec::new(), Some(7)));
    // Where the way breaks, the client is told where the VM is.
    cluster.host(0).ok(["migrate", "p", "--to", "h1"]);
    cluster.kill_daemon(1);
    let told = left.wait();
    assert!(told.stderr.contains("has moved to h1"), "{}", told.stderr);
    // The command's own failure is another code.
    assert_eq!(told.code, Some(125));
    cluster.replace_daemon(1);
    home(&cluster);
    cluster.host(0).ok(["rm", "p"]);
    cluster.end();
}

#[derive(serde::Deserialize)]
struct Evacuated {
    plan: Plan,
    moved: Vec<Moved>,
    stays: Vec<Stays>,
}

#[derive(serde::Deserialize)]
struct Plan {
    moves: Vec<Moved>,
    stays: Vec<Stays>,
}

#[derive(serde::Deserialize)]
struct Moved {
    vm: String,
    to: String,
}

#[derive(serde::Deserialize)]
struct Stays {
    vm: String,
    why: String,
}

fn names(moves: &[Moved]) -> Vec<&str> {
    moves.iter().map(|it| it.vm.as_str()).collect()
}

#[test]
fn an_evacuation_moves_what_it_can_by_priority_and_says_beforehand_what_stays() {
    let cluster = Cluster::fake_with_steps(3);
    let (here, there) = (cluster.host(0), cluster.host(1));
    for (name, label) in [("a", "tier=web"), ("b", "tier=db"), ("c", "tier=web")] {
        here.ok(["run", "tiny", "--name", name, "--label", label]);
    }
    here.ok(["run", "tiny", "--name", "still"]);
    here.ok(["stop", "still"]);
    // One that its first host refuses gets to the other.
    there.ok(["run", "tiny", "--name", "b"]);
    let words = [
        "evacuate",
        "--to",
        "h1,h2",
        "--priority",
        "tier=db",
        "-o",
        "json",
    ];
    let all = |more: &[&str]| -> (Option<i32>, String) {
        let words = words.iter().chain(more);
        let outcome = here.start(words, "").wait();
        (outcome.code, outcome.text())
    };
    let (code, said) = all(&["--plan"]);
    let plan: Plan = serde_json::from_str(&said).expect("a plan");
    assert_eq!(code, Some(3), "one stays");
    // The others by size, which is about the same.
    assert_eq!(names(&plan.moves)[0], "b");
    assert_eq!(plan.moves.len(), 3);
    assert!(
        plan.stays
            .iter()
            .all(|it| it.vm == "still" && it.why.contains("stopped"))
    );
    assert_eq!(here.vms().iter().filter(|vm| vm.host.is_some()).count(), 0);
    // There is no time at all.
    let (_, said) = all(&["--plan", "--deadline", "1s"]);
    let late: Plan = serde_json::from_str(&said).expect("a plan");
    assert!(late.moves.is_empty());
    let is_late = |it: &&Stays| it.why.contains("too late");
    assert_eq!(late.stays.iter().filter(is_late).count(), 3);

    let (code, said) = all(&["--at-once", "2"]);
    let done: Evacuated = serde_json::from_str(&said).expect("an outcome");
    assert_eq!(code, Some(3));
    assert_eq!(names(&done.plan.moves)[0], "b");
    assert_eq!(done.moved.len(), 3);
    let b = done.moved.iter().find(|it| it.vm == "b").expect("it moved");
    assert_eq!(b.to, "h2");
    assert_eq!(done.stays.len(), 1);
    for moved in &done.moved {
        let number = if moved.to == "h1" { 1 } else { 2 };
        let at = cluster.host(number).vm(&moved.vm);
        assert_eq!(
            (at.state, at.host),
            (VmState::Running, None),
            "{}",
            moved.vm
        );
    }
    // Again: there is nothing left to do but what could not be done before.
    here.ok(["start", "still"]);
    let (code, said) = all(&[]);
    let done: Evacuated = serde_json::from_str(&said).expect("an outcome");
    assert_eq!((code, names(&done.moved)), (Some(0), vec!["still"]));
    assert!(here.vms().iter().all(|vm| vm.host.is_some()));
    for number in [1, 2] {
        cluster.host(number).ok(["rm", "--all"]);
    }
    cluster.end();
}

#[test]
fn a_host_whose_cpu_lacks_something_refuses_a_vm_before_anything_is_sent() {
    let cluster = Cluster::fake_with_steps(2);
    let (here, there) = (cluster.host(0), cluster.host(1));
    let has = |host: &forkyard_e2e::Host, features: &str| {
        std::fs::write(host.folder().join("run/cpu"), features).expect("written");
    };
    has(here, "sse avx avx2");
    has(there, "sse avx");
    here.ok(["run", "tiny", "--name", "p"]);
    here.ok(["run", "tiny", "--name", "q", "--volume", "d"]);
    for words in [
        ["migrate", "p", "--to", "h1"],
        ["migrate", "q", "--to", "h1"],
        ["fork", "p", "--to", "h1"],
    ] {
        let why = here.start(words, "").wait();
        assert_ne!(why.code, Some(0), "{words:?}");
        assert!(why.stderr.contains("avx2"), "{words:?}: {}", why.stderr);
    }
    assert!(there.json::<Vec<VolumeView>>(["volume", "ls"]).is_empty());
    // What has more will do.
    has(there, "sse avx avx2 avx512f");
    here.ok(["migrate", "p", "--to", "h1"]);
    // Programs that began there may use that.
    assert!(
        there
            .fails(["migrate", "p", "--to", "h0"])
            .contains("avx512f")
    );
    there.ok(["rm", "p"]);
    // One that has only what both have goes both ways, and so do its clones.
    has(here, "sse avx avx2 sha_ni");
    here.ok(["run", "tiny", "--name", "p", "--cpu-baseline", "peers"]);
    here.ok(["run", "tiny", "--name", "r", "--cpu-baseline", "h1"]);
    here.ok(["run", "tiny", "--name", "s"]);
    let why = here.fails(["migrate", "s", "--to", "h1"]);
    assert!(why.contains("sha_ni"), "{why}");
    here.ok(["fork", "p", "--to", "h1"]);
    has(there, "sse avx avx512f");
    for name in ["p", "r"] {
        let why = here.fails(["migrate", name, "--to", "h1"]);
        assert!(why.contains("avx2"), "{why}");
    }
    has(there, "sse avx avx2 avx512f");
    here.ok(["migrate", "p", "--to", "h1"]);
    there.ok(["migrate", "p", "--to", "h0"]);
    let why = here.fails(["run", "tiny", "--cpu-baseline", "nosuch"]);
    assert!(why.contains("nosuch"), "{why}");
    for host in [here, there] {
        host.ok(["rm", "--all"]);
    }
    here.ok(["volume", "rm", "d"]);
    for host in [here, there] {
        std::fs::remove_file(host.folder().join("run/cpu")).expect("removed");
    }
    cluster.end();
}
