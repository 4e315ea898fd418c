//! A place where a host's processes see no network, no mount and no cgroup but
//! their own, so that what they leave behind is found, and found to be theirs.
//!
//! One thread is in the namespaces; whatever it starts is born into them. The
//! place lasts as long as this thread or a process in it. Its processes are known
//! by the namespace of host names, by a cgroup below the place's, for QEMUs leave that
//! namespace, or by the process that started them: what belongs to the host next to it is
//! never taken for its own.

use forkyard_sys_host::process::PidFd;
use nix::{
    mount::{MsFlags, mount},
    poll::{PollFd, PollFlags, poll},
    sched::{CloneFlags, unshare},
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::{fd::AsFd, linux::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Milliseconds within which whatever was killed is gone.
const TO_DIE: u16 = 60_000;
/// The thread's own view; `/proc/self` would be the test program's.
const MOUNTS: &str = "/proc/thread-self/mountinfo";

/// The switch of the reader's own network.
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

type Work = Box<dyn FnOnce() + Send>;

/// Namespaces, and the thread in them.
#[derive(Debug)]
pub struct Place {
    work: mpsc::Sender<Work>,
    /// The namespace by which most of its processes are known: they may leave its
    /// network and its mounts.
    mark: u64,
    cgroup: PathBuf,
}

/// A process in a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Process id of the parent.
    pub parent: u32,
    /// Command line, words apart by spaces.
    pub command: String,
}

impl Process {
    /// Kills it as a crash would; see [`Process::end`].
    #[track_caller]
    pub fn kill(&self) {
        self.end().expect("root may kill, and what is killed dies");
    }

    /// Stops it where it is, until it is told to go on or ends; waits until no
    /// thread of it runs, which takes a while where processors are scarce.
    #[track_caller]
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        // In D, too: it waits in the kernel, perhaps for a page of a pager that was stopped
        // before it, and stops on its way out.
        let stands = |stat: String| {
            let state = stat.rsplit_once(") ").map(|(_, after)| after);
            state.is_none_or(|state| state.starts_with(['T', 't', 'D', 'Z', 'X']))
        };
        crate::eventually("its standing still", || {
            let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
            let threads = threads.into_iter().flatten().flatten();
            let stats = threads.filter_map(|it| fs::read_to_string(it.path().join("stat")).ok());
            stats.into_iter().all(stands)
        });
    }

    /// Lets it go on after a stop.
    #[track_caller]
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Asks it to end, as Ctrl-C does.
    #[track_caller]
    pub fn interrupt(&self) {
        self.signal(Signal::SIGINT);
    }

    /// Tells it that its terminal is gone.
    #[track_caller]
    pub fn hang_up(&self) {
        self.signal(Signal::SIGHUP);
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid).expect("a pid"));
        match kill(pid, signal) {
            // One that has ended already is told nothing.
            Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
            Err(error) => panic!("root may: {error}"),
        }
    }

    /// Kills it, and waits until it is gone with all it had open. One that has
    /// ended already is no error.
    pub fn end(&self) -> io::Result<()> {
        self.strike()?.map_or(Ok(()), |process| wait(&process))
    }

    /// Kills all of them at once, so that none acts on another's end. They are held
    /// still first; but the kernel lets a process that is stopped go on when the
    /// one that started it dies: so those that were started die before it.
    #[track_caller]
    pub fn kill_all(processes: &[Self]) {
        processes.iter().for_each(Self::stop);
        let above = |process: &Self| {
            let mut above = 0;
            let mut at = process;
            while let Some(parent) = processes.iter().find(|it| it.pid == at.parent) {
                (at, above) = (parent, above + 1);
            }
            above
        };
        let mut processes: Vec<_> = processes.iter().collect();
        processes.sort_by_key(|process| std::cmp::Reverse(above(process)));
        let struck: io::Result<Vec<_>> = processes.into_iter().map(Self::strike).collect();
        let mut struck = struck.expect("root may kill").into_iter().flatten();
        let gone = struck.try_for_each(|process| wait(&process));
        gone.expect("what is killed dies");
    }

    /// Kills it and does not wait; none if it has ended already.
    fn strike(&self) -> io::Result<Option<PidFd>> {
        match PidFd::open(self.pid) {
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => Ok(None),
            process => {
                let process = process?;
                process.kill()?;
                Ok(Some(process))
            }
        }
    }

    /// Numbers of the processes it has started and that have not been reaped.
    pub fn children(&self) -> BTreeSet<u32> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
        let threads = threads.into_iter().flatten().flatten();
        let lists = threads.filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
        let numbers = |list: String| -> Vec<u32> {
            let words = list.split_whitespace();
            words.filter_map(|word| word.parse().ok()).collect()
        };
        lists.flat_map(numbers).collect()
    }

    /// Tells whether it runs this program.
    pub fn is(&self, program: &str) -> bool {
        let path = self.command.split(' ').next().unwrap_or_default();
        Path::new(path)
            .file_name()
            .is_some_and(|name| name == program)
    }
}

/// Waits until a process is gone.
fn wait(process: &PidFd) -> io::Result<()> {
    let mut ends = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    match poll(&mut ends, TO_DIE)? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

impl Place {
    /// Makes one; `name` becomes that of its cgroup. Panics without root.
    pub fn new(name: &str) -> Self {
        assert!(geteuid().is_root(), "whole-system tests take root");
        let cgroup = cgroups().join(name);
        fs::create_dir(&cgroup).expect("a cgroup of version 2");
        let (work, inbox) = mpsc::channel::<Work>();
        let (born, mark) = mpsc::channel();
        let own = cgroup.clone();
        thread::spawn(move || {
            enter(&own);
            // No receiver is left if the place was dropped meanwhile.
            let _ = born.send(mark_of(Path::new("/proc/thread-self")).expect("own namespace"));
            inbox.iter().for_each(|work| work());
        });
        Self {
            work,
            mark: mark.recv().expect("the thread enters its namespaces"),
            cgroup,
        }
    }

    /// Does something in the place and waits for it.
    pub fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let work = Box::new(move || {
            let _ = done.send(work());
        });
        self.work.send(work).expect("the place's thread lives");
        result.recv().expect("the work does not panic")
    }

    /// Every process in it.
    pub fn processes(&self) -> Vec<Process> {
        let name = self.cgroup.file_name().unwrap_or_default();
        processes(|folder| {
            mark_of(folder).is_ok_and(|it| it == self.mark) || is_grouped_below(folder, name)
        })
    }

    /// Mount points at or under a folder.
    pub fn mounts_under(&self, folder: &Path) -> Vec<String> {
        let folder = folder.to_owned();
        self.within(move || {
            let mounts = fs::read_to_string(MOUNTS).expect("own mounts");
            let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
            points
                .filter(|point| Path::new(point).starts_with(&folder))
                .map(str::to_owned)
                .collect()
        })
    }

    /// The cgroup that its processes take for the root.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }
}

impl Drop for Place {
    /// Ends what is still in it, and takes its cgroups away.
    fn drop(&mut self) {
        // What is killed cannot start anything more; what it has just started
        // is seen the next time.
        while let left @ [_, ..] = self.processes().as_slice() {
            if let Err(error) = left.iter().try_for_each(Process::end) {
                return eprintln!("{left:?} stay: {error}");
            }
        }
        remove_groups(&self.cgroup);
    }
}

/// Every process whose folder in `/proc` is one of those wanted, and what these have started.
fn processes(wanted: impl Fn(&Path) -> bool) -> Vec<Process> {
    let (mut found, mut others): (Vec<_>, Vec<_>) = all_processes()
        .into_iter()
        .partition(|process| wanted(Path::new(&format!("/proc/{}", process.pid))));
    loop {
        let of_them = |process: &Process| found.iter().any(|it| it.pid == process.parent);
        let (started, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(of_them);
        if started.is_empty() {
            return found;
        }
        found.extend(started);
        others = rest;
    }
}

fn all_processes() -> Vec<Process> {
    let numbers = fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|pid: u32| {
            let folder = PathBuf::from(format!("/proc/{pid}"));
            let words = fs::read(folder.join("cmdline")).ok()?;
            let words = String::from_utf8_lossy(&words);
            let command = words.trim_end_matches('\0').replace('\0', " ");
            let stat = fs::read_to_string(folder.join("stat")).ok()?;
            // After the name, which may hold anything, come state and parent.
            let parent = stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?;
            // A process that has ended and waits for its parent has no words.
            (!command.is_empty()).then_some(Process {
                pid,
                parent,
                command,
            })
        })
        .collect()
}

fn enter(cgroup: &Path) {
    let all = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS;
    unshare(all).expect("namespaces");
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("mounts of its own");
    mount(Some(cgroup), &cgroups(), none, MsFlags::MS_BIND, none).expect("cgroups of its own");
    // A new network has what the machine's has now, whatever turned that on.
    fs::write(FORWARDING, "0").expect("a switch of its own");
}

/// Number of the namespace by which a process, given as its folder in `/proc`,
/// is known.
fn mark_of(process: &Path) -> io::Result<u64> {
    Ok(fs::metadata(process.join("ns/uts"))?.st_ino())
}

/// Tells whether a process is in a cgroup of version 2 below one of this name.
fn is_grouped_below(process: &Path, name: &OsStr) -> bool {
    let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    let mut own = groups.lines().filter_map(|line| line.strip_prefix("0::"));
    own.any(|path| Path::new(path).iter().any(|part| part == name))
}

/// Returns the folder of cgroups of version 2.
pub(crate) fn cgroups() -> PathBuf {
    let mounts = fs::read_to_string(MOUNTS).expect("own mounts");
    let found = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let point = place.split(' ').nth(4)?;
        kind.starts_with("cgroup2 ").then(|| PathBuf::from(point))
    });
    found.expect("cgroups of version 2 are mounted")
}

/// Ends whatever is in a cgroup and in those in it, and removes them.
fn remove_groups(group: &Path) {
    for pid in fs::read_to_string(group.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
    {
        let inside = |folder: &Path| folder.ends_with(pid);
        for process in processes(inside) {
            if let Err(error) = process.end() {
                eprintln!("{process:?} stays: {error}");
            }
        }
    }
    let children = fs::read_dir(group).into_iter().flatten().flatten();
    for child in children.filter(|child| child.path().is_dir()) {
        remove_groups(&child.path());
    }
    // One that has ended leaves its group a moment after it was seen to.
    let begun = Instant::now();
    loop {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) if begun.elapsed() < Duration::from_millis(TO_DIE.into()) => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return eprintln!("{} stays: {error}", group.display()),
            Ok(()) => return,
        }
    }
}
