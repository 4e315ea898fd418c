//! Memory for bodies of requests.
//!
//! A large body is read once its length fits into what is left of a budget, and counts
//! until the request is answered. Users and nodes have a budget each. Small bodies are
//! bounded by the number of connections.

use super::INPUT;
use crate::{gate::Asker, reply::Refusal};
use axum::{
    extract::{Request, State},
    http::header,
    middleware::Next,
    response::Response,
};
use forkyard_types::ErrorKind;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// KiB of large bodies at once, for users and for nodes.
const BUDGET: usize = 256 << 10;
/// Bytes up to which a body is small.
const SMALL: usize = 64 << 10;
/// Longest wait for room.
const WAIT: Duration = Duration::from_secs(10);

/// The budgets.
#[derive(Clone, Debug)]
pub struct Bodies {
    users: Arc<Semaphore>,
    nodes: Arc<Semaphore>,
}

impl Default for Bodies {
    fn default() -> Self {
        Self {
            users: Arc::new(Semaphore::new(BUDGET)),
            nodes: Arc::new(Semaphore::new(BUDGET)),
        }
    }
}

/// The budget that a request's body counts against.
#[derive(Clone, Debug)]
pub struct Budget {
    free: Arc<Semaphore>,
    /// Held until the request is answered.
    taken: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

impl Budget {
    /// Takes room for a body of so many bytes; for the largest, if it does not say.
    /// Cancel-safe.
    pub async fn take(&self, length: Option<usize>) -> Result<(), Refusal> {
        let length = length.unwrap_or(INPUT).min(INPUT);
        if length <= SMALL {
            return Ok(());
        }
        let wanted = u32::try_from(length.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        match timeout(WAIT, self.free.clone().acquire_many_owned(wanted)).await {
            Ok(Ok(permit)) => {
                *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
                Ok(())
            }
            Ok(Err(_)) | Err(_) => Err(Refusal::new(
                ErrorKind::Exhausted,
                "memory limit for requests reached: too many large ones at once",
            )
            .hinting("try again, with fewer at a time")
            .retrying(WAIT)),
        }
    }
}

/// Bytes of a request's body, as its head says.
pub fn length(request: &Request) -> Option<usize> {
    let length = request.headers().get(header::CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

/// Tells a request which budget its body counts against, and gives back what it took.
pub async fn budget(State(bodies): State<Bodies>, mut request: Request, next: Next) -> Response {
    let free = match request.extensions().get::<Asker>() {
        Some(Asker::Host | Asker::Node(..)) => bodies.nodes,
        Some(Asker::User(_) | Asker::Guest) | None => bodies.users,
    };
    let budget = Budget {
        free,
        taken: Arc::default(),
    };
    request.extensions_mut().insert(budget.clone());
    let response = next.run(request).await;
    drop(
        budget
            .taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn budget(free: &Arc<Semaphore>) -> Budget {
        Budget {
            free: free.clone(),
            taken: Arc::default(),
        }
    }

    #[tokio::test]
    async fn two_hundred_large_bodies_take_no_more_than_the_budget_and_small_ones_pass() {
        let free = Bodies::default().users;
        let mut held = Vec::new();
        let mut waiting = 0;
        for n in 0..200 {
            let budget = budget(&free);
            // A body that does not tell its length may be as large as any.
            let length = (n % 2 == 0).then_some(60 << 20);
            match budget.take(length).now_or_never() {
                Some(taken) => {
                    taken.expect("room");
                    held.push(budget);
                }
                None => waiting += 1,
            }
        }
        assert_eq!((held.len(), waiting), (4, 196));
        let small = budget(&free);
        small.take(Some(SMALL)).await.expect("small");
        drop(held);
        let large = budget(&free);
        large.take(Some(INPUT)).await.expect("room again");
    }
}
