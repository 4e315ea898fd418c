//! Connections that calls take turns with.
//!
//! ```text
//! turn() --idle()--> a connection, or none: the caller makes one --keep()--> idle again
//!    '--all are out for the whole of the patience--> TimedOut
//! ```
//!
//! A connection that is not kept, for an exchange on it failed, is closed by its owner; the turn
//! ends in any case when it is dropped.

use crate::PagerError;
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Calls under way at a time: a part of the connections that the pager allows, for several
/// processes may want some.
const MOST_OUT: usize = 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct Pool {
    inner: Mutex<Inner>,
    returned: Condvar,
}

#[derive(Debug)]
struct Inner {
    idle: Vec<UnixStream>,
    out: usize,
}

impl Pool {
    /// Begins with one connection.
    pub fn with(stream: UnixStream) -> Self {
        Self {
            inner: Mutex::new(Inner {
                idle: vec![stream],
                out: 0,
            }),
            returned: Condvar::new(),
        }
    }

    /// Waits until a further call may be made, for `patience` at most.
    pub fn turn(&self, patience: Duration) -> Result<Turn<'_>, PagerError> {
        let full = |inner: &mut Inner| inner.out >= MOST_OUT;
        let waited = self
            .returned
            .wait_timeout_while(self.inner(), patience, full);
        let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if full(&mut inner) {
            return Err(PagerError::Silent);
        }
        inner.out += 1;
        Ok(Turn(self))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing between lock and unlock can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to make one call; given back when dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Pool);

impl Turn<'_> {
    /// A connection on which nothing is under way, if there is one.
    pub fn idle(&mut self) -> Option<UnixStream> {
        self.0.inner().idle.pop()
    }

    /// Leaves a connection, on which nothing is under way, to later calls.
    pub fn keep(self, stream: UnixStream) {
        self.0.inner().idle.push(stream);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.inner().out -= 1;
        self.0.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> UnixStream {
        UnixStream::pair().expect("pair").0
    }

    #[test]
    fn connections_are_used_again_and_never_more_are_out_than_may_be() {
        let pool = Pool::with(stream());
        let mut turns: Vec<_> = (0..MOST_OUT)
            .map(|_| pool.turn(Duration::ZERO).expect("a turn"))
            .collect();
        let idle: Vec<_> = turns.iter_mut().filter_map(Turn::idle).collect();
        assert_eq!(idle.len(), 1, "the one it began with");
        assert!(pool.turn(Duration::ZERO).is_err());
        turns.pop().expect("some").keep(stream());
        drop(turns.pop());
        let mut first = pool.turn(Duration::ZERO).expect("one was given back");
        assert!(first.idle().is_some(), "what was kept");
        let mut second = pool.turn(Duration::ZERO).expect("and another");
        assert!(second.idle().is_none());
        assert!(pool.turn(Duration::ZERO).is_err());
    }

    #[test]
    fn call_waits_for_a_turn_that_ends() {
        let pool = Pool::with(stream());
        let turns: Vec<_> = (0..MOST_OUT)
            .map(|_| pool.turn(Duration::ZERO).expect("a turn"))
            .collect();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.turn(Duration::from_secs(60)).is_ok());
            drop(turns);
            assert!(waiter.join().expect("no panic"));
        });
    }
}
