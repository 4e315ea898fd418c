//! The agent on real control groups with busy processes in them. Needs root.
//!
//! Congestion is made certain, or impossible, by the configuration: nothing here
//! depends on how busy the machine is or how long anything takes.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use std::{
    cell::Cell,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

const AGENT: &str = env!("CARGO_BIN_EXE_forkyard-friendly");
/// So many threads that would run always.
const BUSY: usize = 6;
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

/// Waits for what must come, however long this machine takes.
fn until(what: &str, mut come: impl FnMut() -> bool) {
    const PATIENCE: Duration = Duration::from_secs(240);
    let began = Instant::now();
    while !come() {
        assert!(began.elapsed() < PATIENCE, "not yet: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Where a hierarchy is mounted, if it is: v2, or that of a controller of v1.
fn find(controller: Option<&str>) -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    text.lines().find_map(|line| {
        let (place, what) = line.split_once(" - ")?;
        let mut what = what.split(' ');
        let fits = match (what.next()?, controller) {
            ("cgroup2", None) => true,
            ("cgroup", Some(name)) => what.nth(1)?.split(',').any(|one| one == name),
            _ => false,
        };
        fits.then(|| place.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// The same for a test that cannot be done without it. That is reported past what keeps a
/// test's words back: `cargo xtask test` counts such lines.
fn mount(controller: Option<&str>) -> Option<PathBuf> {
    thread_local!(static SAID: Cell<bool> = const { Cell::new(false) });
    let found = find(controller);
    if found.is_none() && !SAID.replace(true) {
        let thread = thread::current();
        let name = thread.name().unwrap_or("a test");
        let line =
            format!("\nskipped: {name}: this host has no hierarchy {controller:?} of groups\n");
        std::io::stdout().write_all(line.as_bytes()).expect("said");
    }
    found
}

/// A CPU that this process may run on.
fn first_cpu() -> String {
    let text = fs::read_to_string("/proc/self/status").expect("status");
    let list = text
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = list.expect("a list").trim().to_owned();
    list.split([',', '-']).next().expect("one").to_owned()
}

/// Groups of one test alone, with busy processes, all removed with it.
struct Scene {
    groups: Vec<PathBuf>,
    busy: Vec<Child>,
    /// Those that are in no group, and start who is.
    outside: Vec<Child>,
    agent: Option<Child>,
    dir: tempfile::TempDir,
}

impl Scene {
    /// In these hierarchies; the first is the one that is told to the agent.
    fn new(mounts: &[&Path]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forkyard-friendly-test-{}-{number}", std::process::id());
        let groups: Vec<PathBuf> = mounts.iter().map(|mount| mount.join(&name)).collect();
        let mut scene = Self {
            groups: Vec::new(),
            busy: Vec::new(),
            outside: Vec::new(),
            agent: None,
            dir: tempfile::tempdir().expect("a folder"),
        };
        for group in groups {
            fs::create_dir(&group).expect("root");
            scene.groups.push(group);
        }
        for _ in 0..BUSY {
            scene.add(&["sh", "-c", "while :; do :; done"]);
        }
        scene
    }

    /// One more that would run always; its number.
    fn add(&mut self, words: &[&str]) -> u32 {
        let number = self.neighbour(words);
        for group in &self.groups {
            fs::write(group.join("cgroup.procs"), number.to_string()).expect("moved");
        }
        number
    }

    /// The same, in none of the groups.
    fn neighbour(&mut self, words: &[&str]) -> u32 {
        // On one CPU, so that two of them always wait for each other.
        let child = Command::new("nice")
            .args(["-n", "19", "taskset", "-c", &first_cpu()])
            .args(words)
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        let number = child.id();
        self.busy.push(child);
        // It is that program by now, so that its name is that.
        until("it runs", || {
            let name = fs::read_to_string(format!("/proc/{number}/comm"));
            name.is_ok_and(|name| name.trim_end() == words[0]) && ticks(number) > 0
        });
        number
    }

    /// One that is the first of a container.
    fn add_init(&mut self) -> u32 {
        let outside = Command::new("nice")
            .args(["-n", "19", "taskset", "-c", &first_cpu()])
            .args(["unshare", "--pid", "--fork", "--kill-child", "yes"])
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        let children = format!("/proc/{0}/task/{0}/children", outside.id());
        self.outside.push(outside);
        let mut first = None;
        until("it runs", || {
            let inside = fs::read_to_string(&children).expect("alive");
            first = inside.trim().parse().ok();
            first.is_some_and(|first| ticks(first) > 0)
        });
        let first = first.expect("it runs");
        for group in &self.groups {
            fs::write(group.join("cgroup.procs"), first.to_string()).expect("moved");
        }
        first
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("friendly.toml")
    }

    fn start(&mut self, config: &str) {
        fs::write(self.config(), config).expect("written");
        let agent = Command::new(AGENT)
            .arg("run")
            .arg("--cgroup")
            .arg(&self.groups[0])
            .arg("--config")
            .arg(self.config())
            .arg("--status")
            .arg(self.status_file())
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        self.agent = Some(agent);
    }

    fn status_file(&self) -> PathBuf {
        self.dir.path().join("status.json")
    }

    fn status(&self) -> Option<Value> {
        let text = fs::read_to_string(self.status_file()).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn standing_still(&self) -> Option<u64> {
        self.status()?["standing_still"].as_u64()
    }

    /// The agent's end, by a signal.
    fn end(&mut self, signal: Signal) -> bool {
        let mut agent = self.agent.take().expect("runs");
        let pid = Pid::from_raw(i32::try_from(agent.id()).expect("a pid"));
        kill(pid, signal).expect("it is there");
        agent.wait().expect("reaped").success()
    }

    /// All of them get on.
    fn all_get_on(&self) {
        for child in &self.busy {
            let before = ticks(child.id());
            until("it gets on", || ticks(child.id()) > before + 1);
        }
    }

    fn state(&self, child: &Child) -> char {
        let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("alive");
        let (_, rest) = text.rsplit_once(") ").expect("a stat");
        rest.chars().next().expect("a state")
    }
}

/// Time a process has run, in the kernel's ticks.
fn ticks(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("alive");
    let (_, rest) = text.rsplit_once(") ").expect("a stat");
    let mut fields = rest.split(' ').skip(11);
    let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok());
    next().expect("user time") + next().expect("system time")
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        for child in self.busy.iter_mut().chain(&mut self.outside) {
            let _ = child.kill();
            let _ = child.wait();
        }
        for group in &self.groups {
            let began = Instant::now();
            while fs::remove_dir(group).is_err() && began.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// What is true of any freezer.
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
