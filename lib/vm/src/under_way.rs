//! Forks under way: counted, so that the removal of their parent and the end of the
//! daemon can refuse new ones and wait for those begun.

use std::{collections::BTreeSet, sync::Arc};
use tokio::sync::watch;

/// Forks under way of one VM, or of all. Copies count the same ones.
#[derive(Clone, Debug)]
pub struct UnderWay(Arc<watch::Sender<State>>);

#[derive(Clone, Debug, Default)]
struct State {
    /// Numbers of those under way, in the order in which they began.
    now: BTreeSet<u64>,
    next: u64,
    closed: bool,
}

/// A fork under way, until dropped.
#[derive(Debug)]
#[must_use]
pub struct Begun<'a> {
    all: &'a UnderWay,
    number: u64,
}

impl Default for UnderWay {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }
}

impl UnderWay {
    /// Counts a fork; none once no more may begin.
    pub fn begin(&self) -> Option<Begun<'_>> {
        let mut begun = None;
        self.0.send_if_modified(|state| {
            if !state.closed {
                begun = Some(state.next);
                state.now.insert(state.next);
                state.next += 1;
            }
            !state.closed
        });
        begun.map(|number| Begun { all: self, number })
    }

    /// Lets no more begin.
    pub fn close(&self) {
        self.0.send_modify(|state| state.closed = true);
    }

    /// Tells whether no more may begin.
    pub fn is_closed(&self) -> bool {
        self.0.borrow().closed
    }

    /// Resolves once none is under way. Cancel-safe.
    pub async fn over(&self) {
        self.wait_for(|state| state.now.is_empty()).await;
    }

    /// Resolves once none is under way that began before this was called. Cancel-safe.
    pub async fn begun_are_over(&self) {
        let next = self.0.borrow().next;
        self.wait_for(|state| state.now.first().is_none_or(|first| *first >= next))
            .await;
    }

    async fn wait_for(&self, holds: impl FnMut(&State) -> bool) {
        // The sender is `self`: it does not go meanwhile.
        let _ = { self.0.subscribe() }.wait_for(holds).await;
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.all.0.send_modify(|state| {
            state.now.remove(&self.number);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn who_closes_waits_for_forks_begun_and_none_begins_after() {
        let forks = UnderWay::default();
        let (one, two) = (forks.begin(), forks.begin());
        assert!(one.is_some() && two.is_some());
        forks.close();
        assert!(forks.begin().is_none());
        drop(one);
        assert!(forks.over().now_or_never().is_none(), "one goes on");
        drop(two);
        forks.over().await;
    }

    #[tokio::test]
    async fn those_that_begin_later_are_not_waited_for() {
        let forks = UnderWay::default();
        let (one, two) = (forks.begin(), forks.begin());
        let mut waiting = Box::pin(forks.begun_are_over());
        assert!(waiting.as_mut().now_or_never().is_none());
        let later = forks.begin();
        drop(two);
        assert!(waiting.as_mut().now_or_never().is_none(), "one goes on");
        drop(one);
        waiting.await;
        drop(later);
    }
}
