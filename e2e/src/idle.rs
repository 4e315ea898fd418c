//! Processors that have nothing to do.
//!
//! ```text
//! looked at --WINDOW later, idle enough--> claimed: looked at anew, for the claim makes work
//!     ^------------ else -----------'
//! ```
//!
//! Work of low priority counts as idleness: it gives way to all other.

use std::{
    fs,
    sync::Mutex,
    time::{Duration, Instant},
};

/// Time over which processors are watched; what begins is at work within it.
const WINDOW: Duration = Duration::from_secs(2);
/// One of so many parts of all processors' time is idle, or more.
const PART: u64 = 4;

/// Ticks of all processors since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
}

/// State of the watch, common to all threads.
static WATCH: Mutex<Option<(Instant, Ticks)>> = Mutex::new(None);

/// Claims idle processors for something more to do. False where there are none, or where the last
/// claim was a moment ago.
pub(crate) fn claim() -> bool {
    let mut watch = WATCH.lock().expect("no look panics");
    let Some((since, before)) = *watch else {
        *watch = look();
        return false;
    };
    if since.elapsed() < WINDOW {
        return false;
    }
    *watch = look();
    watch.is_some_and(|(_, now)| now.is_idle_since(before))
}

fn look() -> Option<(Instant, Ticks)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    Some((Instant::now(), Ticks::of(&stat)?))
}

impl Ticks {
    /// Reads `cpu user nice system idle iowait …`, the first line of `/proc/stat`.
    fn of(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let fields: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
        // What comes after the eighth is counted among the others as well.
        let fields = fields.ok().filter(|fields| fields.len() >= 8)?;
        Some(Self {
            idle: fields[1] + fields[3] + fields[4],
            all: fields[..8].iter().sum(),
        })
    }

    fn is_idle_since(self, before: Self) -> bool {
        let idle = self.idle.saturating_sub(before.idle);
        let all = self.all.saturating_sub(before.all);
        all > 0 && idle >= all / PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_what_waits_and_what_gives_way() {
        let before = Ticks::of("cpu  100 10 50 200 5 1 1 0 40 0\ncpu0 1 1").expect("read");
        assert_eq!(
            before,
            Ticks {
                idle: 215,
                all: 367
            }
        );
        let after = |idle: u64, all: u64| Ticks {
            idle: before.idle + idle,
            all: before.all + all,
        };
        assert!(after(100, 400).is_idle_since(before));
        assert!(!after(99, 400).is_idle_since(before));
        assert!(!before.is_idle_since(before), "nothing is known yet");
        assert_eq!(Ticks::of("cpu0 1 1 1 1 1 1 1 1"), None);
        assert_eq!(Ticks::of(""), None);
    }
}
