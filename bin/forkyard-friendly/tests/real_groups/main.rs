//! The agent on real control groups with busy processes in them. Needs root.
//!
//! Congestion is made certain, or impossible, by the configuration: nothing here
//! depends on how busy the machine is or how long anything takes.

mod scene;

use nix::sys::signal::Signal;
use scene::{AGENT, BUSY, Scene, find, mount, processes_are_told, ticks, until};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Whenever more than one may run, some wait for a CPU, and that is called
/// congestion. At the slowest, the last runs half of the time.
const CONGESTED: &str = "
[monitor]
period-s = 0.1
window-s = 1
tick-ms = 1
signals = [\"cpu-pressure\"]
pressure-threshold = 0.000001
[rate]
floor-hz = 10
ceiling-hz = 10
[threads]
patience = 1
turn = 1
look-ms = 20
below = \"always\"
";
/// Nothing is ever called congestion.
const CALM: &str = "
[monitor]
period-s = 0.1
window-s = 1
tick-ms = 1
threshold = 1000000
[threads]
start = 1
patience = 1
turn = 1
look-ms = 20
";

/// Nothing is ever called congestion, and the average is that of one period.
const TICKS: &str = "
[monitor]
period-s = 1
window-s = 10
rest = 1
ewma = 1.0
threshold = 1000000
";

/// One may run, and processes that begin over that wait; and a second look is so far off that it
/// stops none.
const WAITS: &str = "
[monitor]
period-s = 3600
window-s = 3600
threshold = 1000000
[threads]
start = 1
most = 1
new = \"wait\"
look-ms = 60000
";

/// Checks the properties of any freezer.
fn freezes_and_lets_go(controller: Option<&str>, threads: &str) {
    let Some(mount) = mount(controller) else {
        return;
    };
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut scene = Scene::new(&[&mount]);
        let group = scene.groups[0].clone();
        let held = group.join("forkyard-friendly");
        scene.start(CONGESTED);
        // One may run, and the whole group sleeps at times.
        let most = u64::try_from(BUSY - 1).expect("few");
        until("one runs at most", || scene.standing_still() >= Some(most));
        let inside =
            || fs::read_to_string(held.join(threads)).map_or(0, |text| text.lines().count());
        until("they are held", || inside() >= BUSY - 1);
        // By turns.
        scene.all_get_on();
        let ended_well = scene.end(signal);
        assert_eq!(ended_well, signal == Signal::SIGTERM);
        until("the group is gone", || !held.exists());
        let inside = fs::read_to_string(group.join(threads)).expect("read");
        assert_eq!(inside.lines().count(), BUSY, "all are back");
        scene.all_get_on();
    }
}

#[test]
fn v2_freezes_by_turns_and_all_go_on_afterwards_also_after_kill_9() {
    freezes_and_lets_go(None, "cgroup.threads");
}

#[test]
fn v1_freezes_by_turns_and_all_go_on_afterwards_also_after_kill_9() {
    freezes_and_lets_go(Some("freezer"), "tasks");
}

#[test]
fn without_a_freezer_signals_do() {
    let Some(mount) = mount(Some("pids")) else {
        return;
    };
    let mut scene = Scene::new(&[&mount]);
    scene.start(CONGESTED);
    let stopped = |scene: &Scene| {
        let stopped = scene.busy.iter().filter(|child| scene.state(child) == 'T');
        stopped.count()
    };
    until("they stand still", || stopped(&scene) >= BUSY - 1);
    scene.all_get_on();
    scene.end(Signal::SIGKILL);
    until("none stands still", || stopped(&scene) == 0);
    scene.all_get_on();
}

/// A process waits in a group by these constants, until there is room or the agent ends.
fn keeps_waiting(
    controller: Option<&str>,
    threads: &str,
    config: &str,
    who: fn(&mut Scene, &Path) -> u32,
    gets_on: fn(&mut Scene, u32),
) {
    let Some(mount) = mount(controller) else {
        return;
    };
    if !processes_are_told() {
        return;
    }
    for ends in [None, Some(Signal::SIGTERM), Some(Signal::SIGKILL)] {
        let mut scene = Scene::new(&[&mount]);
        let held = scene.groups[0].join("forkyard-friendly").join(threads);
        scene.start(config);
        let one = who(&mut scene, &held);
        match ends {
            Some(signal) => {
                scene.end(signal);
            }
            // Then there is room.
            None => scene.end_others(&[one]),
        }
        until("its turn comes", || !is_in(&held, one));
        gets_on(&mut scene, one);
    }
}

fn keeps_who_begins_waiting(controller: Option<&str>, threads: &str) {
    keeps_waiting(controller, threads, WAITS, one_that_waits, |_, one| {
        let before = ticks(one);
        until("it gets on", || ticks(one) > before + 1);
    });
}

/// One that begins and waits, once no more are let in.
fn one_that_waits(scene: &mut Scene, held: &Path) -> u32 {
    let mut one = None;
    until("one that begins waits", || {
        // Until the first look all go: those run for a while.
        let number = scene.begin();
        until("it waits, or runs", || {
            is_in(held, number) || ticks(number) > 50
        });
        one = is_in(held, number).then_some(number);
        one.is_some()
    });
    one.expect("it waits")
}

/// Tells whether a file lists this thread.
fn is_in(list: &Path, number: u32) -> bool {
    let inside = fs::read_to_string(list).unwrap_or_default();
    inside.lines().any(|line| line == number.to_string())
}

fn keeps_who_makes_others_waiting(controller: Option<&str>, threads: &str) {
    const WANTED: usize = 100;
    // It is by a look that those are forgotten that end while they wait.
    let config = WAITS.replace("60000", "2000");
    let maker = |scene: &mut Scene, held: &Path| {
        one_that_waits(scene, held);
        let maker = scene.make(WANTED);
        until("who makes them waits", || is_in(held, maker));
        let made = fs::read_to_string(format!("/proc/{maker}/task/{maker}/children"));
        let made = made.expect("alive").split_whitespace().count();
        assert!((4..WANTED).contains(&made), "{made}");
        maker
    };
    // Each that goes ends by itself, and makes room for another.
    keeps_waiting(controller, threads, &config, maker, |scene, maker| {
        until("all are made", || scene.has_ended(maker));
    });
}

#[test]
fn v2_keeps_who_makes_others_waiting_while_these_do() {
    keeps_who_makes_others_waiting(None, "cgroup.threads");
}

#[test]
fn v1_keeps_who_makes_others_waiting_while_these_do() {
    keeps_who_makes_others_waiting(Some("freezer"), "tasks");
}

#[test]
fn v2_keeps_who_begins_over_the_limit_waiting() {
    keeps_who_begins_waiting(None, "cgroup.threads");
}

#[test]
fn v1_keeps_who_begins_over_the_limit_waiting() {
    keeps_who_begins_waiting(Some("freezer"), "tasks");
}

#[test]
fn limits_are_set_and_put_back_after_kill_9() {
    let (Some(v2), Some(pids), Some(cpu)) = (mount(None), mount(Some("pids")), mount(Some("cpu")))
    else {
        return;
    };
    let mut scene = Scene::new(&[&v2, &pids, &cpu]);
    let read = |path: &Path| fs::read_to_string(path).expect("a limit").trim().to_owned();
    let births = scene.groups[1].join("pids.max");
    let quota = scene.groups[2].join("cpu.cfs_quota_us");
    let before = (read(&births), read(&quota));
    // It keeps them waiting whatever is allowed.
    scene.neighbour(&["yes"]);
    scene.start(CONGESTED);
    // One may run, and more want to.
    let room = BUSY.to_string();
    until("more new threads are refused", || read(&births) == room);
    until("the last is slowed down", || read(&quota) != before.1);
    scene.end(Signal::SIGKILL);
    until("all is as it was", || {
        (read(&births), read(&quota)) == before
    });
}

/// Tests that a limit the guard of a killed agent has not put back yet is not taken for
/// one that was there before.
#[test]
fn who_comes_after_one_that_was_killed_waits_for_its_guard() {
    let Some(v2) = mount(None) else {
        return;
    };
    let Some(pids) = mount(Some("pids")) else {
        return;
    };
    let mut scene = Scene::new(&[&v2, &pids]);
    let births = scene.groups[1].join("pids.max");
    let read = || fs::read_to_string(&births).expect("read").trim().to_owned();
    let before = read();
    scene.start(CONGESTED);
    until("more new threads are refused", || read() != before);
    // By a group: a process that is stopped by a signal, and loses its parent, is ended by the
    // kernel.
    let slow = scene.groups[0].with_extension("guard");
    fs::create_dir(&slow).expect("made");
    scene.groups.push(slow.clone());
    let freeze = |word| fs::write(slow.join("cgroup.freeze"), word).expect("told");
    fs::write(slow.join("cgroup.procs"), scene.guard()).expect("moved");
    freeze("1");
    scene.end(Signal::SIGKILL);
    scene.start(CONGESTED);
    until("it waits", || scene.agent_waits_with(&scene.groups[0]));
    assert_ne!(read(), before, "nothing is undone yet");
    freeze("0");
    until("the guard has ended", || fs::remove_dir(&slow).is_ok());
    until("it adapts", || {
        scene.standing_still() >= Some(BUSY as u64 - 1)
    });
    until("it has its say", || read() == BUSY.to_string());
    scene.end(Signal::SIGKILL);
    until("all is as it was", || read() == before);
    scene.all_get_on();
}

/// While a VM is forked its user code stands still, the agent with it.
#[test]
fn to_be_stopped_is_not_to_be_late() {
    let Some(mount) = mount(None) else {
        return;
    };
    let mut scene = Scene::new(&[&mount]);
    let home = scene.groups[0].with_extension("home");
    scene.groups.push(home.clone());
    scene.start_at(TICKS, Some(&home));
    until("it has ticked", || average(&scene).is_some());
    let stop = |word| fs::write(home.join("cgroup.freeze"), word).expect("told");
    stop("1");
    let events = home.join("cgroup.events");
    let frozen = || fs::read_to_string(&events).is_ok_and(|text| text.contains("frozen 1"));
    until("it stands still", frozen);
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs(4));
    fs::remove_file(scene.status_file()).expect("removed");
    let stood = begun.elapsed();
    stop("0");
    let mut took = None;
    until("a period has ended", || {
        took = all_ticks(&scene);
        took.is_some()
    });
    assert!(scene.end(Signal::SIGTERM));
    fs::remove_dir(home).expect("nobody is in it");
    // It would be a part of them: however late the others were, they are of one second.
    let took = took.expect("told");
    assert!(took < stood, "{took:?} of ticks, after {stood:?}");
}

/// Time that the ticks of the last period took.
fn all_ticks(scene: &Scene) -> Option<Duration> {
    let told = scene.status()?;
    let all = told["vct_ms"].as_f64()? * told["ticks"].as_f64()?;
    Some(Duration::from_secs_f64(all / 1000.0))
}

fn average(scene: &Scene) -> Option<f64> {
    scene.status()?["vct_ms"].as_f64()
}

#[test]
fn without_congestion_all_may_run_until_a_constant_is_changed() {
    let Some(mount) = mount(None) else {
        return;
    };
    let mut scene = Scene::new(&[&mount]);
    scene.start(CALM);
    until("few may run at first, then all", || {
        scene.standing_still() == Some(0)
            && scene
                .status()
                .is_some_and(|told| told["allowed"].as_u64() >= Some(6))
    });
    let changed = Command::new(AGENT)
        .args(["set", "--config"])
        .arg(scene.config())
        .args([
            "monitor.signals=[\"cpu-pressure\"]",
            "monitor.pressure-threshold=0.000001",
        ])
        .status();
    assert!(changed.expect("set").success());
    until("one runs at most", || scene.standing_still() >= Some(5));
    assert!(scene.end(Signal::SIGTERM));
    assert!(!scene.status_file().exists());
}

/// Groups in which one that is never to be stopped is among those that are, with all
/// means there are; when as little as can be is allowed.
fn spared_while_others_sleep(add: fn(&mut Scene) -> u32, exempt: &str) {
    let Some(v2) = mount(None) else {
        return;
    };
    let cpu = find(Some("cpu"));
    let mounts: Vec<&Path> = [Some(&v2), cpu.as_ref()]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let mut scene = Scene::new(&mounts);
    let spared = add(&mut scene);
    let quotas: Vec<PathBuf> = scene
        .groups
        .iter()
        .flat_map(|group| [group.join("cpu.max"), group.join("cpu.cfs_quota_us")])
        .filter(|quota| quota.exists())
        .collect();
    let read = || -> Vec<String> {
        let read = |path: &PathBuf| fs::read_to_string(path).expect("a limit");
        quotas.iter().map(read).collect()
    };
    let before = read();
    scene.neighbour(&["yes"]);
    scene.start(&format!("{CONGESTED}exempt = {exempt}\n"));
    until("as little as can be is allowed", || {
        let told = scene.status();
        let rate = told.and_then(|told| told["state"]["rate_hz"].as_f64());
        rate.is_some()
    });
    let held = scene.groups[0].join("forkyard-friendly/cgroup.threads");
    let inside = || fs::read_to_string(&held).expect("read");
    until("all others stand still at times", || {
        assert_eq!(read(), before, "a quota would hold it up, too");
        let inside = inside();
        assert!(
            !inside.lines().any(|one| one == spared.to_string()),
            "{inside}, {spared}"
        );
        inside.lines().count() == BUSY
    });
    let before = ticks(spared);
    until("it gets on", || ticks(spared) > before + 1);
    scene.all_get_on();
}

#[test]
fn who_is_exempt_is_never_stopped_nor_slowed_down() {
    spared_while_others_sleep(|scene| scene.add(&["yes"]), "[\"yes\"]");
}

/// Of a container that is adapted from outside.
#[test]
fn the_first_process_of_a_container_is_never_stopped_nor_slowed_down() {
    spared_while_others_sleep(Scene::add_init, "[]");
}

#[test]
fn a_group_has_one_agent_at_a_time() {
    let Some(mount) = mount(None) else {
        return;
    };
    let mut scene = Scene::new(&[&mount]);
    scene.start(CALM);
    until("it runs", || scene.status().is_some());
    let second = Command::new(AGENT)
        .arg("run")
        .arg("--cgroup")
        .arg(&scene.groups[0])
        .output()
        .expect("started");
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("another"), "{said}");
    assert!(scene.status().is_some(), "the first is not disturbed");
}
