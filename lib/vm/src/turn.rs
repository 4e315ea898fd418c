//! Turns to change a VM: one at a time, in the order of their requests.
//!
//! A request to fork says so while it waits: a holder that only tidies up gives the turn up then.

use std::{any::Any, fmt};
use tokio::sync::{Mutex, MutexGuard, watch};

/// The turns of one VM.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Held through a fork and through the VM's end.
    held: Mutex<Kept>,
    /// Number of requests that wait for the turn to fork it.
    wanting: watch::Sender<u32>,
}

/// State that one holder of the turn leaves to the next.
type Kept = Option<Box<dyn Any + Send + Sync>>;

/// The turn to change a VM, until dropped.
pub struct Turn<'a>(MutexGuard<'a, Kept>);

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turn")
    }
}

/// A wait for a turn, until dropped.
struct Waiting<'a>(&'a watch::Sender<u32>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            held: Mutex::default(),
            wanting: watch::Sender::new(0),
        }
    }
}

impl Turns {
    /// Waits for the turn. Cancel-safe: the place in the queue is given up.
    pub async fn next(&self) -> Turn<'_> {
        Turn(self.held.lock().await)
    }

    /// Waits for the turn, and says meanwhile that it is wanted. Cancel-safe: the place in the queue is given
    /// up.
    pub async fn next_to_fork(&self) -> Turn<'_> {
        self.wanting.send_modify(|waiting| *waiting += 1);
        let _waiting = Waiting(&self.wanting);
        self.next().await
    }

    pub fn try_next(&self) -> Option<Turn<'_>> {
        self.held.try_lock().ok().map(Turn)
    }

    pub fn wanted(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut wanting = self.wanting.subscribe();
        async move {
            // A VM that is gone is not wanted, and by then not folded.
            let _ = wanting.wait_for(|waiting| *waiting > 0).await;
        }
    }

    pub fn is_wanted(&self) -> bool {
        *self.wanting.borrow() > 0
    }
}

impl Turn<'_> {
    /// Takes what an earlier holder left.
    pub fn take<T: Any + Send + Sync>(&mut self) -> Option<T> {
        let left = self.0.take()?.downcast().ok()?;
        Some(*left)
    }

    /// Leaves this to the next holder, in the place of what was left before.
    pub fn leave<T: Any + Send + Sync>(&mut self, left: T) {
        *self.0 = Some(Box::new(left));
    }

    /// Looks at what an earlier holder left.
    pub fn left<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.as_ref()?.downcast_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn a_holder_finds_what_the_one_before_left() {
        let turns = Turns::default();
        turns.next().await.leave(7_u32);
        let mut turn = turns.next().await;
        assert!(turns.try_next().is_none());
        assert_eq!(turn.left::<u32>(), Some(&7));
        assert_eq!(turn.take::<u32>(), Some(7));
        assert_eq!(turn.take::<u32>(), None);
    }

    #[tokio::test]
    async fn a_request_to_fork_is_seen_while_it_waits_and_not_after() {
        let turns = Turns::default();
        let held = turns.next().await;
        let mut waits = Box::pin(turns.next_to_fork());
        assert!(waits.as_mut().now_or_never().is_none() && turns.is_wanted());
        turns.wanted().await;
        drop(waits);
        assert!(!turns.is_wanted());
        drop(held);
    }
}
