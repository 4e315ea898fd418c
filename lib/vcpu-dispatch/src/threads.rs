//! The vCPU threads of a QEMU: which they are, and what each does.

use crate::DispatchError;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
};

/// A vCPU thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The guest's number of the vCPU.
    pub index: u32,
    /// Number on the host.
    pub tid: u32,
}

/// State of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// The thread runs or would run.
    Runnable,
    /// The thread sleeps, waits or is stopped.
    Asleep,
    /// The thread is no more.
    Gone,
}

/// The vCPU threads of a process, by their names, in the guest's order.
pub fn vcpus(pid: u32) -> Result<Vec<Thread>, DispatchError> {
    let folder = PathBuf::from(format!("/proc/{pid}/task"));
    let entries = fs::read_dir(&folder).map_err(DispatchError::of_process(pid, "list"))?;
    let mut found: Vec<Thread> = entries
        .filter_map(|entry| {
            let tid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(folder.join(format!("{tid}/comm"))).ok()?;
            let index = index(name.trim_end())?;
            Some(Thread { index, tid })
        })
        .collect();
    found.sort_by_key(|thread| (thread.index, thread.tid));
    match found.is_empty() {
        true => Err(DispatchError::NoVcpus(pid)),
        false => Ok(found),
    }
}

/// The vCPU threads of a process, as told, for one that does not name them: in the
/// guest's order. None may be the process' first thread, which is QEMU's main.
pub fn given(pid: u32, tids: &[u32]) -> Result<Vec<Thread>, DispatchError> {
    let folder = PathBuf::from(format!("/proc/{pid}/task"));
    let is_one = |tid: u32| tid != pid && folder.join(tid.to_string()).exists();
    let mut known = BTreeSet::new();
    let strange = { tids.iter().copied() }.find(|&tid| !is_one(tid) || !known.insert(tid));
    match (strange, tids.is_empty()) {
        (Some(tid), _) => Err(DispatchError::NoThread { pid, tid }),
        (None, true) => Err(DispatchError::NoVcpus(pid)),
        (None, false) => Ok((0..)
            .zip(tids)
            .map(|(index, &tid)| Thread { index, tid })
            .collect()),
    }
}

/// The vCPU's number in the name QEMU gives its thread.
fn index(name: &str) -> Option<u32> {
    let (number, kind) = name.strip_prefix("CPU ")?.split_once('/')?;
    matches!(kind, "KVM" | "TCG").then_some(())?;
    number.parse().ok()
}

/// Returns the start of a process, in ticks since boot: with its number, it names
/// one process for ever.
pub fn started(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let field = after.split(' ').nth(19).and_then(|f| f.parse().ok());
    field.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Watches one thread.
#[derive(Debug)]
pub struct Watch {
    stat: File,
    schedstat: File,
    status: File,
}

impl Watch {
    /// Begins to.
    pub fn of(pid: u32, tid: u32) -> Result<Self, DispatchError> {
        let open = |name: &str| {
            let path = format!("/proc/{pid}/task/{tid}/{name}");
            File::open(&path).map_err(DispatchError::host("open", path))
        };
        Ok(Self {
            stat: open("stat")?,
            schedstat: open("schedstat")?,
            status: open("status")?,
        })
    }

    /// Returns its state. Not to be asked of one that is frozen.
    pub fn doing(&self) -> Doing {
        let mut text = [0; 128];
        let Ok(length) = self.stat.read_at(&mut text, 0) else {
            return Doing::Gone;
        };
        // The name may hold anything; the state follows the last bracket.
        let text = &text[..length];
        let bracket = text.iter().rposition(|&byte| byte == b')');
        match bracket.and_then(|at| text.get(at + 2)) {
            Some(b'R') => Doing::Runnable,
            Some(b'X' | b'Z') | None => Doing::Gone,
            Some(_) => Doing::Asleep,
        }
    }

    /// Returns its niceness.
    pub fn niceness(&self) -> Option<i32> {
        let text = read(&self.stat)?;
        let (_, after) = text.rsplit_once(") ")?;
        after.split(' ').nth(16)?.parse().ok()
    }

    /// Time it has run and time it has waited, in ns, as of the last tick.
    pub fn times(&self) -> Option<(u64, u64)> {
        let text = read(&self.schedstat)?;
        let mut numbers = text.split_whitespace().map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }

    /// Returns the number of times it has gone to sleep of its own accord.
    pub fn sleeps(&self) -> Option<u64> {
        let text = read(&self.status)?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse().ok()
    }
}

fn read(file: &File) -> Option<String> {
    let mut text = vec![0; 4096];
    let length = file.read_at(&mut text, 0).ok()?;
    text.truncate(length);
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpus_are_told_from_other_threads() {
        assert_eq!(index("CPU 0/TCG"), Some(0));
        assert_eq!(index("CPU 12/KVM"), Some(12));
        for other in [
            "qemu-system-x86",
            "IO iothread0",
            "CPU x/KVM",
            "CPU 1/XYZ",
            "worker",
        ] {
            assert_eq!(index(other), None, "{other}");
        }
        assert!(matches!(
            vcpus(std::process::id()),
            Err(DispatchError::NoVcpus(_))
        ));
        assert!(matches!(vcpus(0), Err(DispatchError::NoProcess(0))));
    }

    #[test]
    fn threads_that_are_told_must_be_of_the_process_and_not_its_first() {
        let pid = std::process::id();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw()).expect("told");
            wait.recv().expect_err("nothing is sent");
        });
        let tid = u32::try_from(told.recv().expect("its number")).expect("positive");
        let found = given(pid, &[tid]).expect("its thread");
        assert_eq!(found, [Thread { index: 0, tid }]);
        for wrong in [pid, 1, u32::MAX] {
            let error = given(pid, &[tid, wrong]).expect_err("not one");
            assert!(matches!(error, DispatchError::NoThread { tid, .. } if tid == wrong));
        }
        let twice = given(pid, &[tid, tid]).expect_err("twice");
        assert!(matches!(twice, DispatchError::NoThread { .. }));
        assert!(matches!(given(pid, &[]), Err(DispatchError::NoVcpus(_))));
        drop(done);
        thread.join().expect("no panic");
    }

    #[test]
    fn one_that_waits_is_asleep_and_counts_it() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw()).expect("told");
            while wait.recv().is_ok() {}
        });
        let tid = u32::try_from(told.recv().expect("its number")).expect("positive");
        let watch = Watch::of(std::process::id(), tid).expect("there");
        while watch.doing() != Doing::Asleep {
            std::thread::yield_now();
        }
        let before = watch.sleeps().expect("counted");
        done.send(()).expect("waits");
        while watch.sleeps().expect("counted") == before {
            std::thread::yield_now();
        }
        drop(done);
        thread.join().expect("no panic");
        while watch.doing() != Doing::Gone {
            std::thread::yield_now();
        }
    }
}
