//! Requests that a VM's programs have made, kept so that asking again does
//! nothing twice.
//!
//! An agent that dies takes with it the answers its programs wait for; they ask
//! its successor under the same id, and get the answer of the first time, also
//! while that is still being worked on. Kept in memory: of what matters after a
//! daemon's death, tickets know by which request they came about and were used.

use forkyard_agent_link::Answer;
use forkyard_types::{ApiError, RequestId};
use forkyard_vm::lock;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};
use tokio::sync::OnceCell;

/// Outcomes kept; a program that lost its answer asks again at once.
const KEPT: usize = 256;

/// The outcome of a request: none if the VM is no more.
pub(crate) type Outcome = Result<Option<Answer>, ApiError>;

/// The outcomes of one VM's requests.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    known: Mutex<VecDeque<(RequestId, Arc<OnceCell<Outcome>>)>>,
}

impl Requests {
    /// Returns the cell of a request's outcome. A caller that finds it empty
    /// and fills it does the work.
    pub fn outcome(&self, id: RequestId) -> Arc<OnceCell<Outcome>> {
        let mut known = lock(&self.known);
        if let Some((_, outcome)) = known.iter().find(|(known, _)| *known == id) {
            return outcome.clone();
        }
        if known.len() >= KEPT {
            // Never one that is being worked on: those are fewer.
            let done = known.iter().position(|(_, cell)| cell.initialized());
            known.remove(done.unwrap_or_default());
        }
        let outcome = Arc::<OnceCell<_>>::default();
        known.push_back((id, outcome.clone()));
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_same_request_is_carried_out_once_and_another_by_itself() {
        let requests = Requests::default();
        let (id, other) = (RequestId::random(), RequestId::random());
        let mut carried_out = 0;
        for id in [id, other, id] {
            let outcome = requests.outcome(id);
            let answer = outcome.get_or_init(async || {
                carried_out += 1;
                Ok(Some(Answer::Killed))
            });
            assert_eq!(answer.await, &Ok(Some(Answer::Killed)));
        }
        assert_eq!(carried_out, 2);
    }

    #[tokio::test]
    async fn old_outcomes_are_forgotten_but_none_that_is_being_worked_on() {
        let requests = Requests::default();
        let (open, first) = (RequestId::random(), RequestId::random());
        let under_way = requests.outcome(open);
        let done = async || Ok(None);
        requests
            .outcome(first)
            .get_or_init(done)
            .await
            .clone()
            .expect("done");
        for _ in 0..2 * KEPT {
            let outcome = requests.outcome(RequestId::random());
            outcome.get_or_init(done).await.clone().expect("done");
        }
        assert!(Arc::ptr_eq(&under_way, &requests.outcome(open)));
        assert!(!requests.outcome(first).initialized());
        assert_eq!(lock(&requests.known).len(), KEPT);
    }
}
