//! What `/proc` says of threads.

use std::fs;

/// A thread, by its number and by when it started: numbers are given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId {
    /// Its number; a process's is that of its first thread.
    pub number: u32,
    /// When it started, in the kernel's ticks.
    pub started: u64,
}

/// A thread that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Which.
    pub id: TaskId,
    /// Number of its process.
    pub process: u32,
    /// Whether it runs, would run, or waits for a disk.
    pub runnable: bool,
}

/// The state of a thread, and when it started. None if there is none.
pub fn stat(number: u32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // Names may hold anything, brackets too.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    // The 22nd field of all, counted from 1.
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

/// When a thread started.
pub fn started(number: u32) -> Option<u64> {
    stat(number).map(|(_, started)| started)
}

/// Looks at a thread. None if it is gone, or dead and not reaped yet.
pub fn look(number: u32) -> Option<Task> {
    let (state, started) = stat(number)?;
    if matches!(state, 'Z' | 'X') {
        return None;
    }
    let status = fs::read_to_string(format!("/proc/{number}/status")).ok()?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    Some(Task {
        id: TaskId { number, started },
        process: process.trim().parse().ok()?,
        runnable: matches!(state, 'R' | 'D'),
    })
}

/// The name of a process.
pub fn name(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Whether a process is the first of the machine, or of a container: by its number in the
/// innermost namespace that it is in.
pub fn is_init(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status"));
    process == 1 || status.is_ok_and(|text| innermost(&text) == Some(1))
}

fn innermost(status: &str) -> Option<u32> {
    let numbers = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_is_seen_as_it_is() {
        let me = std::process::id();
        let task = look(me).expect("alive");
        assert_eq!((task.id.number, task.process), (me, me));
        assert_eq!(started(me), Some(task.id.started));
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let number = nix::unistd::gettid().as_raw();
            tell.send(number).expect("heard");
            look(u32::try_from(number).expect("a number")).expect("alive")
        });
        let number = told.recv().expect("told");
        let task = thread.join().expect("no panic");
        assert_eq!(i64::from(task.id.number), i64::from(number));
        assert_eq!(task.process, me);
        assert!(task.runnable, "it looked at itself");
    }

    #[test]
    fn nobody_is_not_seen() {
        assert_eq!(look(u32::MAX), None);
        assert_eq!(name(u32::MAX), "");
    }

    #[test]
    fn inits_of_containers_are_inits() {
        assert_eq!(innermost("Tgid:\t70\nNSpid:\t70\t12\t1\nx: 1"), Some(1));
        assert_eq!(innermost("NSpid:\t70\t1\t12\n"), Some(12));
        assert_eq!(innermost("Tgid:\t1\n"), None);
        assert!(is_init(1));
        assert!(!is_init(u32::MAX));
    }
}
