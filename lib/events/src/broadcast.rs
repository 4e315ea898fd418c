//! Publishing, and waiting for what is published.

use crate::{Log, Selection, log::Position};
use forkyard_types::{Cursor, EventSubject, HostEvent, Occurrence, Since, StreamId};
use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::sync::watch;

/// Events that are kept if nothing else is said: about two megabytes.
const CAPACITY: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// The events of a host. Clones are of the same stream.
#[derive(Clone, Debug)]
pub struct Broadcast(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    log: Mutex<Log>,
    state: watch::Sender<State>,
}

/// State that subscriptions wait for.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Number of events so far.
    count: u64,
    closed: bool,
}

impl Default for Broadcast {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl Broadcast {
    /// A new stream, which keeps the last `capacity` events.
    pub fn new(capacity: NonZeroUsize) -> Self {
        Self(Arc::new(Shared {
            log: Mutex::new(Log::new(StreamId::random(), capacity)),
            state: watch::Sender::new(State::default()),
        }))
    }

    /// Tells all subscriptions. Does not block.
    pub fn publish(&self, subject: EventSubject, what: Occurrence) {
        let mut log = self.log();
        log.append(now_ms(), subject, what);
        let count = log.end().seq;
        // Under the lock, so that the count never falls.
        self.0.state.send_modify(|state| state.count = count);
    }

    /// Subscribes to events after a position; to those from now on, if none is given.
    pub fn subscribe(&self, filter: Selection, since: Option<Since>) -> Subscription {
        let state = self.0.state.subscribe();
        let position = self.log().position(since);
        Subscription {
            events: self.clone(),
            filter,
            position,
            state,
        }
    }

    /// Returns the position of the newest event.
    pub fn end(&self) -> Cursor {
        self.log().end()
    }

    /// Ends all subscriptions, once they have read what there is. None can be had after.
    pub fn close(&self) {
        self.0.state.send_modify(|state| state.closed = true);
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // A panic elsewhere leaves no event half written.
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader of events: a position, and a filter.
#[derive(Debug)]
pub struct Subscription {
    events: Broadcast,
    filter: Selection,
    position: Position,
    state: watch::Receiver<State>,
}

impl Subscription {
    /// Waits for the next event; none once the stream is closed and all was read. Cancel-safe:
    /// an event is taken in the moment in which it is returned.
    pub async fn next(&mut self) -> Option<Arc<HostEvent>> {
        loop {
            // Before the look: what is published after it wakes this.
            let closed = self.state.borrow_and_update().closed;
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            if closed || self.state.changed().await.is_err() {
                return None;
            }
        }
    }

    /// Returns the next event, if there is one already.
    pub fn try_next(&mut self) -> Option<Arc<HostEvent>> {
        let log = self.events.log();
        loop {
            let event = log.next(&mut self.position)?;
            if self.filter.matches(&event) {
                return Some(event);
            }
        }
    }

    /// Returns the position to resume from: all before it was read, or passed over by the
    /// filter.
    pub fn cursor(&self) -> Cursor {
        self.events.log().cursor_of(self.position)
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}
