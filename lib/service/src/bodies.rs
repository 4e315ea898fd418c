//! Memory for bodies of requests.
//!
//! A large body is read once its length fits into what is left of a budget, and counts
//! until the request is answered. Users and nodes have a budget each, and every user has a part of
//! that: one cannot keep the others out. Small bodies are bounded by the number of connections.

use crate::{gate::Asker, reply::Refusal};
use axum::{
    body::{Body, HttpBody},
    extract::{Request, State},
    http::header,
    middleware::Next,
    response::Response,
};
use forkyard_types::ErrorKind;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// Most bytes of a request to run a command, standard input being part of it, or
/// to make clones, as the state of devices is, or where all families are.
pub const INPUT: usize = 64 << 20;
/// KiB of large bodies at once, for users and for nodes.
const BUDGET: usize = 256 << 10;
/// KiB of large bodies of one user's at once.
const OF_USER: usize = BUDGET / 2;
/// Bytes up to which a body is small.
const SMALL: usize = 64 << 10;
/// Longest wait for room.
const WAIT: Duration = Duration::from_secs(10);

/// The budgets.
#[derive(Clone, Debug)]
pub struct Bodies {
    users: Arc<Semaphore>,
    nodes: Arc<Semaphore>,
    /// Those of the users that have requests now.
    each: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

impl Default for Bodies {
    fn default() -> Self {
        Self {
            users: Arc::new(Semaphore::new(BUDGET)),
            nodes: Arc::new(Semaphore::new(BUDGET)),
            each: Arc::default(),
        }
    }
}

impl Bodies {
    /// The budget of a request.
    pub fn of(&self, asker: Option<&Asker>) -> Budget {
        let (own, common) = match asker {
            Some(Asker::Host | Asker::Node(_, None)) => (None, &self.nodes),
            Some(Asker::Node(node, Some(user))) => {
                (Some(self.of_user(format!("{node}/{user}"))), &self.nodes)
            }
            // A token's name has no slash.
            Some(Asker::User(user)) => (Some(self.of_user(user.clone())), &self.users),
            Some(Asker::Guest) | None => (None, &self.users),
        };
        Budget {
            // One's own first: a request that waits for that takes nothing of the others'.
            free: own.into_iter().chain([common.clone()]).collect(),
            taken: Arc::default(),
        }
    }

    fn of_user(&self, user: String) -> Arc<Semaphore> {
        let mut each = self.each.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = each.get(&user).and_then(Weak::upgrade) {
            return own;
        }
        each.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(OF_USER));
        each.insert(user, Arc::downgrade(&own));
        own
    }
}

/// The budgets that a request's body counts against.
#[derive(Clone, Debug)]
pub struct Budget {
    free: Vec<Arc<Semaphore>>,
    /// Held until the request is answered.
    taken: Arc<Mutex<Vec<OwnedSemaphorePermit>>>,
}

impl Budget {
    /// Takes room for a body, or for `most` bytes if it does not say how many it has. Cancel-safe.
    pub fn take_for<'a>(
        &'a self,
        body: &Body,
        most: usize,
    ) -> impl Future<Output = Result<(), Refusal>> + use<'a> {
        let upper = body.size_hint().upper();
        let told = upper.and_then(|bytes| usize::try_from(bytes).ok());
        self.take(Some(told.unwrap_or(most).min(most)))
    }

    /// Takes room for a body of so many bytes; for the largest, if it does not say.
    /// Cancel-safe.
    pub async fn take(&self, length: Option<usize>) -> Result<(), Refusal> {
        let length = length.unwrap_or(INPUT).min(INPUT);
        if length <= SMALL {
            return Ok(());
        }
        let wanted = u32::try_from(length.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let permits = async {
            let mut permits = Vec::new();
            for free in &self.free {
                permits.push(free.clone().acquire_many_owned(wanted).await?);
            }
            Ok::<_, AcquireError>(permits)
        };
        match timeout(WAIT, permits).await {
            Ok(Ok(permits)) => {
                *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = permits;
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
    let budget = bodies.of(request.extensions().get::<Asker>());
    request.extensions_mut().insert(budget.clone());
    let response = next.run(request).await;
    budget
        .taken
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn two_hundred_large_bodies_take_no_more_than_the_budget_and_small_ones_pass() {
        let bodies = Bodies::default();
        let mut held = Vec::new();
        let mut waiting = 0;
        for n in 0..200 {
            let budget = bodies.of(None);
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
        let small = bodies.of(None);
        small.take(Some(SMALL)).await.expect("small");
        drop(held);
        let large = bodies.of(None);
        large.take(Some(INPUT)).await.expect("room again");
    }

    #[tokio::test]
    async fn a_body_that_does_not_say_its_length_counts_as_the_largest() {
        let bodies = Bodies::default();
        let streamed = || Body::from_stream(futures::stream::empty::<std::io::Result<Vec<u8>>>());
        let asker = Asker::User("ci".into());
        let [a, b, c] = [(); 3].map(|()| bodies.of(Some(&asker)));
        a.take_for(&streamed(), INPUT).await.expect("half of it");
        b.take_for(&streamed(), INPUT)
            .await
            .expect("the other half");
        let more = c.take_for(&Body::from(vec![0; SMALL + 1]), INPUT);
        assert!(more.now_or_never().is_none());
        c.take_for(&Body::empty(), INPUT)
            .await
            .expect("none needed");
    }

    #[tokio::test]
    async fn one_users_large_bodies_leave_room_for_anothers() {
        let bodies = Bodies::default();
        let budget = |name: &str| bodies.of(Some(&Asker::User(name.to_owned())));
        let taken = |budget: &Budget| budget.take(Some(60 << 20)).now_or_never();
        let all: Vec<_> = (0..100).map(|_| budget("greedy")).collect();
        let of_greedy = all.iter().filter_map(taken).filter(Result::is_ok).count();
        assert_eq!(of_greedy, 2);
        let other = budget("other");
        taken(&other).expect("at once").expect("room");
        drop(all);
        let again = budget("greedy");
        taken(&again).expect("at once").expect("given back");
        drop((other, again));
        // Nothing is kept of users that ask for nothing any more.
        drop(budget("third"));
        let _fourth = budget("fourth");
        assert_eq!(bodies.each.lock().expect("no panic").len(), 1);
    }
}
