//! Time for which the police is to go on.
//!
//! By a clock that is never set: the other one is for the record alone.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Longest sleep where no end is set.
const FAR: Duration = Duration::from_secs(3600);

/// Reason for which it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A user ended it, or its time is over.
    Over,
    /// The daemon ends.
    Daemon,
}

/// Reason for which the task wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The instant of the next sample has come.
    Sample,
    /// Another time than before was set.
    Changed,
    /// The end.
    End(End),
}

/// Tells whether a time is over some day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limited {
    /// The end is set.
    Yes,
    /// A request has to end it.
    No,
}

#[derive(Debug)]
struct Inner {
    until: Option<Instant>,
    end: Option<End>,
}

/// Time for which it is to go on. Told by requests, followed by the task.
#[derive(Debug)]
pub(crate) struct Term {
    inner: Mutex<Inner>,
    told: Notify,
}

impl Term {
    /// Until then, or until it is ended.
    pub(crate) fn until(until: Option<Instant>) -> Self {
        Self {
            inner: Mutex::new(Inner { until, end: None }),
            told: Notify::new(),
        }
    }

    /// Has it go on until then, if that is later. Tells whether it has an end of its own then;
    /// none if it has ended meanwhile: it goes on no more.
    pub(crate) fn extend(&self, until: Option<Instant>) -> Option<Limited> {
        let mut inner = self.locked();
        if inner.end.is_some() {
            return None;
        }
        inner.until = inner.until.zip(until).map(|(one, other)| one.max(other));
        self.told.notify_one();
        Some(match inner.until {
            Some(_) => Limited::Yes,
            None => Limited::No,
        })
    }

    /// Ends it.
    pub(crate) fn end(&self, why: End) {
        let mut inner = self.locked();
        inner.end.get_or_insert(why);
        self.told.notify_one();
    }

    /// Tells whether it has not ended.
    pub(crate) fn goes_on(&self) -> bool {
        self.left(Instant::now()).is_ok()
    }

    /// Returns the time it is to go on until, by the clock that outlives this process.
    pub(crate) fn time(&self) -> Option<SystemTime> {
        let left = self
            .locked()
            .until?
            .saturating_duration_since(Instant::now());
        SystemTime::now().checked_add(left)
    }

    /// Waits for the next sample, or for something to change. Cancel-safe.
    pub(crate) async fn wait(&self, sample: Instant) -> Wake {
        loop {
            let left = match self.left(Instant::now()) {
                Ok(left) => left,
                Err(end) => return Wake::End(end),
            };
            if Instant::now() >= sample {
                return Wake::Sample;
            }
            tokio::select! {
                () = sleep_until(sample.min(Instant::now() + left)) => {}
                () = self.told.notified() => {
                    if self.left(Instant::now()).is_ok() {
                        return Wake::Changed;
                    }
                }
            }
        }
    }

    /// Time that is left. Once it is over, it is so for good.
    fn left(&self, now: Instant) -> Result<Duration, End> {
        let mut inner = self.locked();
        if let Some(end) = inner.end {
            return Err(end);
        }
        match inner
            .until
            .map(|until| until.saturating_duration_since(now))
        {
            None => Ok(FAR),
            Some(left) if !left.is_zero() => Ok(left),
            Some(_) => {
                inner.end = Some(End::Over);
                Err(End::Over)
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_over_cannot_be_extended() {
        let now = Instant::now();
        let term = Term::until(Some(now + Duration::from_secs(5)));
        assert_eq!(term.left(now), Ok(Duration::from_secs(5)));
        let later = Some(now + Duration::from_secs(9));
        assert_eq!(term.extend(later), Some(Limited::Yes));
        let sooner = Some(now + Duration::from_secs(1));
        assert_eq!(term.extend(sooner), Some(Limited::Yes));
        assert_eq!(
            term.left(now + Duration::from_secs(5)),
            Ok(Duration::from_secs(4))
        );
        assert_eq!(term.left(now + Duration::from_secs(9)), Err(End::Over));
        assert_eq!(term.extend(None), None);
        assert_eq!(term.left(now), Err(End::Over));
    }

    #[test]
    fn the_first_end_counts() {
        let term = Term::until(None);
        let soon = Some(Instant::now());
        assert_eq!(term.extend(soon), Some(Limited::No), "longer than that");
        assert_eq!(term.left(Instant::now()), Ok(FAR));
        term.end(End::Daemon);
        term.end(End::Over);
        assert_eq!(term.left(Instant::now()), Err(End::Daemon));
    }
}
