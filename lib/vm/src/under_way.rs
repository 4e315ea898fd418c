//! Forks under way: counted, so that the removal of their parent and the end of the
//! daemon can refuse new ones and wait for those begun.

use std::sync::Arc;
use tokio::sync::watch;

/// Forks under way of one VM, or of all. Copies count the same ones.
#[derive(Clone, Debug)]
pub struct UnderWay(Arc<watch::Sender<State>>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    count: u32,
    closed: bool,
}

/// A fork under way, until dropped.
#[derive(Debug)]
#[must_use]
pub struct Begun<'a>(&'a UnderWay);

impl Default for UnderWay {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }
}

impl UnderWay {
    /// Counts a fork; none once no more may begin.
    pub fn begin(&self) -> Option<Begun<'_>> {
        let counted = self.0.send_if_modified(|state| {
            state.count += u32::from(!state.closed);
            !state.closed
        });
        counted.then(|| Begun(self))
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
        // The sender is `self`: it does not go meanwhile.
        let _ = { self.0.subscribe() }.wait_for(|it| it.count == 0).await;
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| state.count -= 1);
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
}
