//! Priority of the threads that make forks: before all guests while they do.
//!
//! Clones that run already take all the processors there are, and the daemon
//! that makes the others would wait for its turn behind them. It sleeps most of
//! the time: no guest is kept waiting for long.

use forkyard_sys_host::sched::{OWN, SchedBoost};
use std::{
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Counts the forks in progress, and holds the priority they were given.
#[derive(Debug, Default)]
pub(crate) struct ForkPriority {
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    forks: usize,
    given: Option<SchedBoost>,
}

/// Lasts for as long as one fork needs it.
#[derive(Debug)]
#[must_use = "precedence ends when this is dropped"]
pub(crate) struct Raised<'a>(&'a ForkPriority);

impl ForkPriority {
    /// Has them go first until what this gives, and all that it gave before, is
    /// dropped.
    pub(crate) fn raise(&self) -> Raised<'_> {
        let mut now = self.now();
        if now.forks == 0 {
            now.given = Some(SchedBoost::give(own_threads(), OWN));
        }
        now.forks += 1;
        Raised(self)
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        // Nothing is left half done in it.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        let mut now = self.0.now();
        now.forks -= 1;
        if now.forks == 0 {
            now.given = None;
        }
    }
}

/// Those there are now; what they start later is scheduled as usual.
fn own_threads() -> Vec<u32> {
    let all = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells whether the kernel runs this thread before all ordinary ones.
    fn is_first() -> bool {
        let stat = fs::read_to_string("/proc/thread-self/stat").expect("stat");
        let (_, rest) = stat.rsplit_once(") ").expect("a name");
        // Field 41 of the whole, counted from 1; two are gone.
        rest.split(' ').nth(38).expect("a policy") != "0"
    }

    #[test]
    fn precedence_lasts_as_long_as_the_last_fork_that_needs_it() {
        let fork_priority = ForkPriority::default();
        assert!(!is_first());
        let one = fork_priority.raise();
        assert!(is_first());
        let other = fork_priority.raise();
        drop(one);
        assert!(is_first());
        drop(other);
        assert!(!is_first());
    }
}
