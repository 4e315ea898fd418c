//! Groups with busy processes in them, and the agent that adapts one.

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

pub const AGENT: &str = env!("CARGO_BIN_EXE_forkyard-friendly");
/// So many threads that would run always.
pub const BUSY: usize = 6;

/// Waits for what must come, however long this machine takes.
pub fn until(what: &str, mut come: impl FnMut() -> bool) {
    const PATIENCE: Duration = Duration::from_secs(240);
    let began = Instant::now();
    while !come() {
        assert!(began.elapsed() < PATIENCE, "not yet: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Finds where a hierarchy is mounted, if it is: v2, or that of a controller of v1.
pub fn find(controller: Option<&str>) -> Option<PathBuf> {
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

/// Mounts a hierarchy for a test that cannot be done without it. That is reported past
/// what keeps a test's words back: `cargo xtask test` counts such lines.
pub fn mount(controller: Option<&str>) -> Option<PathBuf> {
    thread_local!(static SAID: Cell<bool> = const { Cell::new(false) });
    let found = find(controller);
    if found.is_none() && !SAID.replace(true) {
        skipped(&format!(
            "this host has no hierarchy {controller:?} of groups"
        ));
    }
    found
}

fn skipped(why: &str) {
    let thread = thread::current();
    let name = thread.name().unwrap_or("a test");
    let line = format!("\nskipped: {name}: {why}\n");
    std::io::stdout().write_all(line.as_bytes()).expect("said");
}

/// Tells whether the kernel reports processes here; else the test is reported as one
/// that cannot be done. A container has a namespace of processes of its own.
pub fn processes_are_told() -> bool {
    let own = fs::read_link("/proc/self/ns/pid").expect("a namespace");
    let first = own.as_os_str() == "pid:[4026531836]";
    if !first {
        skipped("in a container the kernel tells nothing of processes");
    }
    first
}

/// A CPU that this process may run on.
pub fn first_cpu() -> String {
    let text = fs::read_to_string("/proc/self/status").expect("status");
    let list = text
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = list.expect("a list").trim().to_owned();
    list.split([',', '-']).next().expect("one").to_owned()
}

/// Groups of one test alone, with busy processes, all removed with it.
pub struct Scene {
    pub groups: Vec<PathBuf>,
    pub busy: Vec<Child>,
    /// Processes in no group that start those in one.
    pub outside: Vec<Child>,
    agent: Option<Child>,
    dir: tempfile::TempDir,
}

impl Scene {
    /// In these hierarchies; the first is the one that is told to the agent.
    pub fn new(mounts: &[&Path]) -> Self {
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
    pub fn add(&mut self, words: &[&str]) -> u32 {
        let number = self.neighbour(words);
        for group in &self.groups {
            fs::write(group.join("cgroup.procs"), number.to_string()).expect("moved");
        }
        number
    }

    /// Starts a process in none of the groups.
    pub fn neighbour(&mut self, words: &[&str]) -> u32 {
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

    /// One that begins in the group as a shell's command does, and would run always.
    pub fn begin(&mut self) -> u32 {
        let enter = format!("echo $$ >{}/cgroup.procs", self.groups[0].display());
        let child = Command::new("sh")
            .args(["-c", &format!("{enter} && exec yes")])
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        let number = child.id();
        self.outside.push(child);
        number
    }

    /// One in the group that starts so many short programs at once, and ends with the last.
    pub fn make(&mut self, count: usize) -> u32 {
        let enter = format!("echo $$ >{}/cgroup.procs", self.groups[0].display());
        let work = format!("n=0; while [ $n -lt {count} ]; do env true & n=$((n + 1)); done; wait");
        let child = Command::new("sh")
            .args(["-c", &format!("{enter} && {work}")])
            .spawn()
            .expect("started");
        let number = child.id();
        self.outside.push(child);
        number
    }

    /// Ends all but these.
    pub fn end_others(&mut self, spared: &[u32]) {
        let all = self.busy.iter_mut().chain(&mut self.outside);
        let mut others: Vec<&mut Child> =
            all.filter(|child| !spared.contains(&child.id())).collect();
        // Frozen by v1 they end once they are let go.
        for child in &mut others {
            child.kill().expect("it is there");
        }
        for child in others {
            child.wait().expect("reaped");
        }
    }

    /// Tells whether one that is in no group, or was not at first, has ended
    /// well.
    pub fn has_ended(&mut self, number: u32) -> bool {
        let mut outside = self.outside.iter_mut();
        let child = outside.find(|child| child.id() == number);
        let ended = child.expect("started").try_wait().expect("ours");
        ended.is_some_and(|ended| {
            assert!(ended.success(), "{ended}");
            true
        })
    }

    /// One that is the first of a container.
    pub fn add_init(&mut self) -> u32 {
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

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("friendly.toml")
    }

    pub fn start(&mut self, config: &str) {
        self.start_at(config, None);
    }

    /// In a group of its own.
    pub fn start_at(&mut self, config: &str, home: Option<&Path>) {
        fs::write(self.config(), config).expect("written");
        let mut agent = Command::new(AGENT);
        agent.arg("run").arg("--cgroup").arg(&self.groups[0]);
        agent.arg("--config").arg(self.config());
        agent.arg("--status").arg(self.status_file());
        if let Some(home) = home {
            agent.arg("--home").arg(home);
        }
        agent.stdout(Stdio::null());
        self.agent = Some(agent.spawn().expect("started"));
    }

    /// The agent's process.
    pub fn agent(&self) -> u32 {
        self.agent.as_ref().expect("runs").id()
    }

    /// Tells whether the agent sleeps, and has opened this.
    pub fn agent_waits_with(&self, path: &Path) -> bool {
        let agent = self.agent.as_ref().expect("runs");
        let files = fs::read_dir(format!("/proc/{}/fd", agent.id())).expect("alive");
        let opened = files
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok());
        opened.into_iter().any(|opened| opened == path) && self.state(agent) == 'S'
    }

    /// The number of the agent's guard.
    pub fn guard(&self) -> String {
        let agent = self.agent();
        let children = fs::read_to_string(format!("/proc/{agent}/task/{agent}/children"));
        children.expect("alive").trim().to_owned()
    }

    pub fn status_file(&self) -> PathBuf {
        self.dir.path().join("status.json")
    }

    pub fn status(&self) -> Option<Value> {
        let text = fs::read_to_string(self.status_file()).ok()?;
        serde_json::from_str(&text).ok()
    }

    pub fn standing_still(&self) -> Option<u64> {
        self.status()?["standing_still"].as_u64()
    }

    /// The agent's end, by a signal.
    pub fn end(&mut self, signal: Signal) -> bool {
        let mut agent = self.agent.take().expect("runs");
        let pid = Pid::from_raw(i32::try_from(agent.id()).expect("a pid"));
        kill(pid, signal).expect("it is there");
        agent.wait().expect("reaped").success()
    }

    /// All of them get on.
    pub fn all_get_on(&self) {
        for child in &self.busy {
            let before = ticks(child.id());
            until("it gets on", || ticks(child.id()) > before + 1);
        }
    }

    pub fn state(&self, child: &Child) -> char {
        let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("alive");
        let (_, rest) = text.rsplit_once(") ").expect("a stat");
        rest.chars().next().expect("a state")
    }
}

/// Time a process has run, in the kernel's ticks.
pub fn ticks(pid: u32) -> u64 {
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
            while fs::remove_dir(group).is_err()
                && group.exists()
                && began.elapsed() < Duration::from_secs(60)
            {
                // Processes left that members of it have started.
                let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
                for number in inside.lines().filter_map(|line| line.parse().ok()) {
                    let _ = kill(Pid::from_raw(number), Signal::SIGKILL);
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
