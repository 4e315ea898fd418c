//! Volumes that move between hosts without a VM. Exactly one host has each afterwards, with all that was
//! flushed, whatever dies and whenever.

use forkyard_e2e::{Cluster, Host, eventually, is_sound, steps};
use forkyard_types::{Term, VolumeMoved, VolumeView};
use std::{
    fs,
    process::{Command, Stdio},
};

/// Bytes of the volume of these tests.
const SIZE: usize = 1 << 20;
/// Steps that are tried, spread evenly; `FORKYARD_E2E_STEPS=1` tries all.
const SOME: u64 = 4;

pub fn volume(host: &Host, name: &str) -> VolumeView {
    host.json(["volume", "inspect", name])
}

/// Content of the volume at first: no two blocks are the same.
pub fn content(seed: u32) -> Vec<u8> {
    let mut state = seed;
    let words = (0..SIZE / 4).flat_map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()
    });
    words.collect()
}

/// Makes volume `d` of some content at a host.
pub fn make(host: &Host, content: &[u8]) {
    let file = host.folder().join("content.img");
    fs::write(&file, content).expect("written");
    host.ok(["volume", "import", "d", file.to_str().expect("text")]);
    fs::remove_file(file).expect("ours");
}

/// Reads `d` at a host, or a snapshot of it.
pub fn read(host: &Host, snapshot: Option<&str>) -> Vec<u8> {
    let file = host.folder().join("read.img");
    let mut words = vec!["volume", "export", "d", file.to_str().expect("text")];
    words.extend(snapshot.iter().flat_map(|it| ["--snapshot", it]));
    host.start(words.iter(), "").wait().exited(0);
    let content = fs::read(&file).expect("exported");
    fs::remove_file(file).expect("ours");
    content
}

pub fn blockd(host: &Host, words: &[&str]) -> String {
    let program = host.dist().join("bin/forkyard-blockd");
    let mut blockd = Command::new(program);
    blockd
        .arg("--socket")
        .arg(host.folder().join("run/blockd.sock"));
    let output = blockd.args(words).output().expect("run");
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

/// Writes a block of `d` at a host, as a VM would, and flushes it.
pub fn write(host: &Host, content: &mut [u8], block: usize, byte: u8) {
    let export = blockd(host, &["open", "d"]);
    let socket = host.folder().join("run/volumes/nbd.sock");
    let written = Command::new("qemu-io")
        .args(["-f", "raw", "-c"])
        .arg(format!("write -P {byte} {} 4096", block * 4096))
        .args(["-c", "flush"])
        .arg(format!("nbd+unix:///{export}?socket={}", socket.display()))
        .stdout(Stdio::null())
        .status();
    assert!(written.expect("qemu-io").success());
    blockd(host, &["close", "d"]);
    content[block * 4096..][..4096].fill(byte);
}

/// Checks that `d` is at home at one host, and at most a copy at the other.
fn is_at(cluster: &Cluster, at: usize) {
    assert_eq!(volume(cluster.host(at), "d").at, None);
    let other = volume(cluster.host(1 - at), "d");
    assert_eq!(other.at, Some(format!("h{at}")));
}

#[test]
fn a_volume_moves_with_its_snapshots_and_comes_back_as_what_differs() {
    let cluster = Cluster::fake_with_steps(2);
    let (here, there) = (cluster.host(0), cluster.host(1));
    let monday = content(1);
    let mut now = monday.clone();
    make(here, &now);
    here.ok(["volume", "snapshot", "d", "monday"]);
    write(here, &mut now, 7, b'a');
    let moved: VolumeMoved = here.json(["volume", "move", "d", "--to", "h1"]);
    assert!(moved.report.sent.0 > SIZE as u64, "{moved:?}");
    assert_eq!((moved.report.snapshots, moved.report.term), (1, Term(2)));
    assert_eq!(moved.volume.at.as_deref(), Some("h1"));
    is_at(&cluster, 1);
    assert!(read(there, None) == now && read(there, Some("monday")) == monday);
    // What is here is a copy, and nothing but the way back.
    let run = ["run", "tiny", "--name", "p", "--data", "d"];
    let why = here.fails(run);
    assert!(
        why.contains("is at h1") && why.contains("volume bring"),
        "{why}"
    );
    here.fails(["volume", "move", "d", "--to", "h1"]);
    // A VM has it there: it moves with that alone.
    there.ok(run);
    for words in [
        ["volume", "bring", "d"].as_slice(),
        &["volume", "bring", "d", "--from", "h1"],
    ] {
        let why = here.start(words.iter(), "").wait();
        assert_ne!(why.code, Some(0));
        assert!(why.stderr.contains("p has volume d"), "{}", why.stderr);
    }
    there.ok(["rm", "p"]);
    write(there, &mut now, 9, b'b');
    there.ok(["volume", "snapshot", "d", "monday", "--rm"]);
    there.ok(["volume", "snapshot", "d", "monday"]);
    there.ok(["volume", "snapshot", "d", "tuesday"]);
    let back: VolumeMoved = here.json(["volume", "bring", "d"]);
    // Two snapshots, and the volume.
    assert!(back.report.sent.0 < 64 << 10, "{back:?}");
    assert_eq!((back.report.snapshots, back.report.term), (2, Term(3)));
    is_at(&cluster, 0);
    assert!(read(here, None) == now && read(here, Some("monday")) == now);
    here.ok(["volume", "snapshot", "d", "monday", "--rm"]);
    write(here, &mut now, 11, b'c');
    // By its address, and what is there already is not sent again.
    let address = cluster.address(1).to_string();
    let moved: VolumeMoved = here.json(["volume", "move", "d", "--to", &address]);
    assert_eq!((moved.report.snapshots, moved.report.term), (0, Term(4)));
    let snapshots = volume(there, "d").snapshots.into_iter().map(|it| it.name);
    let users: Vec<_> = snapshots.filter(|it| !it.starts_with("sent-")).collect();
    assert_eq!(users, ["tuesday"]);
    assert!(read(there, None) == now);
    for (words, wanted) in [
        (&["move", "nosuch", "--to", "h1"][..], "nosuch"),
        (&["move", "d", "--to", "nosuch"], "nosuch"),
        (&["move", "d", "--to", "here"], "it is here"),
        (&["bring", "nosuch"], "say --from"),
        (&["bring", "d", "--from", "here"], "another host"),
    ] {
        let words = [&["volume"], words].concat();
        let said = here.start(words.iter(), "").wait();
        assert_ne!(said.code, Some(0), "{words:?}");
        assert!(said.stderr.contains(wanted), "{words:?}: {}", said.stderr);
    }
    assert!(
        there
            .fails(["volume", "bring", "d"])
            .contains("at home here")
    );
    for host in [here, there] {
        is_sound(host);
        host.ok(["volume", "rm", "d"]);
    }
    cluster.end();
}

/// Hosts that have `d` at home, or may have it.
fn homes(cluster: &Cluster) -> Vec<usize> {
    let at_home = |number: &usize| {
        let all: Vec<VolumeView> = cluster.host(*number).json(["volume", "ls"]);
        // In a cluster those of all nodes are listed.
        let node = format!("h{number}");
        let mut all = all
            .into_iter()
            .filter(|it| it.name.as_str() == "d" && it.node.as_ref().is_none_or(|it| *it == node));
        all.any(|it| it.at.is_none())
    };
    (0..2).filter(at_home).collect()
}

/// Waits until exactly one host has `d`, checks that it has all of it, and has it be at the first.
fn comes_home(cluster: &Cluster, now: &[u8]) {
    eventually("exactly one of them to have it", || {
        let homes = homes(cluster);
        homes.len() == 1 && volume(cluster.host(homes[0]), "d").moving.is_none()
    });
    let at = homes(cluster)[0];
    assert!(
        read(cluster.host(at), None) == now,
        "what was flushed is there"
    );
    assert!(read(cluster.host(at), Some("monday")) == content(1));
    if at == 1 {
        cluster.host(0).ok(["volume", "bring", "d", "--from", "h1"]);
    }
    assert_eq!(homes(cluster), [0]);
}

/// Program that dies in the middle of a move.
#[derive(Clone, Copy, Debug)]
pub enum Dying {
    Daemon(usize),
    Blockd(usize),
}

/// Moves `d` again and again, and kills a program meanwhile. Returns how often the daemon that was left did
/// not know whether the other host has it.
pub fn sweep(cluster: &mut Cluster, (dying, some): (Dying, u64), now: &mut [u8]) -> u32 {
    let (number, is_blockd) = match dying {
        Dying::Daemon(number) => (number, false),
        Dying::Blockd(number) => (number, true),
    };
    let words = ["volume", "move", "d", "--to", "h1"];
    cluster.host(number).steps().are_of_blockd(is_blockd);
    // Once all of it is there: what differs takes fewer steps.
    cluster.host(0).ok(words);
    comes_home(cluster, now);
    cluster.host(number).steps().count_only();
    cluster.host(0).ok(words);
    let total = cluster.host(number).steps().stop();
    comes_home(cluster, now);
    let (mut reached, mut unsettled) = (0, 0);
    // The hand-over is at the end.
    let mut chosen = steps::chosen(total, some);
    chosen.extend([3, 2, 1, 0].map(|before| total.saturating_sub(before).max(1)));
    for (count, step) in (0u8..).zip(chosen) {
        write(cluster.host(0), now, usize::from(count) + 20, count + 1);
        cluster.host(number).steps().kill_at(step);
        let outcome = cluster.host(0).start(words, "").wait();
        cluster.host(number).steps().stop();
        let call = cluster.host(number).steps().died_before();
        eprintln!("{dying:?}: {step} of {total}, {call}: {:?}", outcome.code);
        reached += u32::from(!call.is_empty());
        if !call.is_empty() && !is_blockd {
            cluster.buried(number);
        }
        if outcome.stderr.contains("may be at home") || outcome.stderr.contains("did not say") {
            unsettled += 1;
            // Nothing opens it until that is known.
            let why = cluster
                .host(0)
                .fails(["run", "tiny", "--name", "p", "--data", "d"]);
            assert!(why.contains("h1"), "{why}");
        }
        cluster.replace_daemon(number);
        if outcome.code == Some(0) {
            eventually("it to be where it was said to be", || homes(cluster) == [1]);
        }
        comes_home(cluster, now);
    }
    assert!(reached > 0, "{dying:?} was never killed");
    unsettled
}

#[test]
fn a_program_killed_at_any_step_of_a_move_leaves_a_volume_at_exactly_one_host() {
    let mut cluster = Cluster::fake_with_steps(2);
    let mut now = content(1);
    make(cluster.host(0), &now);
    cluster.host(0).ok(["volume", "snapshot", "d", "monday"]);
    sweep(&mut cluster, (Dying::Daemon(0), SOME), &mut now);
    let unsettled = sweep(&mut cluster, (Dying::Daemon(1), SOME), &mut now);
    assert!(unsettled > 0, "its answer was never lost");
    sweep(&mut cluster, (Dying::Blockd(0), 2), &mut now);
    sweep(&mut cluster, (Dying::Blockd(1), 2), &mut now);
    for number in [0, 1] {
        is_sound(cluster.host(number));
        cluster.host(number).ok(["volume", "rm", "d"]);
    }
    cluster.end();
}

#[test]
fn nothing_opens_a_volume_that_is_being_sent_away() {
    let cluster = Cluster::fake_with_steps(2);
    let (here, there) = (cluster.host(0), cluster.host(1));
    let mut now = content(1);
    make(here, &now);
    write(here, &mut now, 3, b'a');
    // It cannot get on.
    cluster.cut(1);
    let moves = here.start(["volume", "move", "d", "--to", "h1"], "");
    eventually("it to be on its way", || volume(here, "d").moving.is_some());
    for words in [
        &["run", "tiny", "--name", "p", "--data", "d"][..],
        &["run", "tiny", "--name", "p", "--volume", "d"],
        &["run", "tiny", "--name", "p", "--data", "d:ro"],
        &["volume", "resize", "d", "2M"],
        &["volume", "snapshot", "d", "s"],
        &["volume", "rm", "d"],
        &["volume", "move", "d", "--to", "h1"],
        &["volume", "mirror", "d", "h1"],
    ] {
        let said = here.start(words.iter(), "").wait();
        assert_ne!(said.code, Some(0), "{words:?}");
        assert!(said.stderr.contains("on its way to h1"), "{}", said.stderr);
    }
    cluster.mend(1);
    // Cut off for long, it is given up, and can be asked for again.
    if moves.wait().code != Some(0) {
        eventually("it to be settled", || volume(here, "d").moving.is_none());
        here.ok(["volume", "move", "d", "--to", "h1"]);
    }
    assert_eq!(homes(&cluster), [1]);
    assert!(read(there, None) == now);
    here.ok(["volume", "rm", "d"]);
    there.ok(["volume", "rm", "d"]);
    cluster.end();
}

#[test]
fn a_link_cut_at_any_step_of_a_move_leaves_a_volume_at_exactly_one_host() {
    let mut cluster = Cluster::fake_with_steps(2);
    let mut now = content(1);
    make(cluster.host(0), &now);
    cluster.host(0).ok(["volume", "snapshot", "d", "monday"]);
    let words = ["volume", "move", "d", "--to", "h1"];
    cluster.host(0).ok(words);
    comes_home(&cluster, &now);
    // What is asked of a host that is cut off is soon given up.
    cluster.tell(0, "FORKYARD_PATIENCE", "3");
    cluster.kill_daemon(0);
    cluster.start(0);
    cluster.host(0).steps().count_only();
    cluster.host(0).ok(words);
    let total = cluster.host(0).steps().stop();
    comes_home(&cluster, &now);
    cluster.host(0).steps().stand_still(true);
    let mut cut = 0;
    for (count, step) in (0u8..).zip(steps::chosen(total, SOME)) {
        write(
            cluster.host(0),
            &mut now,
            usize::from(count) + 20,
            count + 1,
        );
        let host = cluster.host(0);
        host.steps().kill_at(step);
        let moves = host.start(words, "");
        let stands_still = || !host.steps().died_before().is_empty();
        eventually("it to stand still, or be done", || {
            stands_still() || moves.is_over()
        });
        if stands_still() {
            cut += 1;
            cluster.cut(1);
            cluster.go_on(0);
        }
        let outcome = moves.wait();
        host.steps().stop();
        cluster.mend(1);
        eprintln!(
            "cut at {step} of {total}: {:?} {}",
            outcome.code, outcome.stderr
        );
        comes_home(&cluster, &now);
    }
    assert!(cut > 0, "it was never cut off");
    for number in [0, 1] {
        is_sound(cluster.host(number));
        cluster.host(number).ok(["volume", "rm", "d"]);
    }
    cluster.end();
}
