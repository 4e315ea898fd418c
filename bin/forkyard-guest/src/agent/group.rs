//! The cgroup of one command: whatever it starts can be killed with it.

use super::userland::door;
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

/// How long a command may take to end after it was hung up on.
const GRACE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);
/// Looks for processes of a cgroup that the kernel cannot kill at once: one that has forked since
/// the last look is seen by the next.
const LOOKS: u32 = 100;

/// The cgroup of a command.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes one below this cgroup, and removes those there that nothing is left of.
    pub fn create(above: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for group in fs::read_dir(above)?.flatten() {
            // Fails for one that has processes, and for a file.
            let _ = fs::remove_dir(group.path());
        }
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = above.join(number.to_string());
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                // Of an agent that has died.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens its door.
    pub fn procs(&self) -> io::Result<File> {
        door(&self.path)
    }

    /// Kills all processes in it.
    pub fn kill(&self) {
        // Since Linux 5.14.
        if File::options()
            .write(true)
            .open(self.path.join("cgroup.kill"))
            .and_then(|mut file| io::Write::write_all(&mut file, b"1"))
            .is_ok()
        {
            return;
        }
        for _ in 0..LOOKS {
            if self.signal(Signal::SIGKILL) == 0 {
                return;
            }
        }
    }

    /// Tells all processes in it that nobody listens any more, and kills those that are left after
    /// a while. Waits for it.
    pub fn hang_up(&self) {
        self.signal(Signal::SIGHUP);
        // One that is stopped hears of it as well.
        self.signal(Signal::SIGCONT);
        let begun = Instant::now();
        while !self.processes().is_empty() {
            if begun.elapsed() > GRACE {
                return self.kill();
            }
            sleep(LOOK);
        }
    }

    /// Removes it, if nothing is left of the command; if something is, the next one that is made
    /// may find that it has ended.
    pub fn retire(&self) {
        let _ = fs::remove_dir(&self.path);
    }

    /// Sends all processes in it a signal; how many there were.
    fn signal(&self, signal: Signal) -> usize {
        let all = self.processes();
        let sent = all.iter().map(|process| kill(*process, signal));
        sent.filter(|sent| *sent != Err(Errno::ESRCH)).count()
    }

    fn processes(&self) -> Vec<Pid> {
        let inside = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        let ids = inside.lines().filter_map(|id| id.parse().ok());
        ids.filter(|id| *id > 0).map(Pid::from_raw).collect()
    }
}
