//! Connections to servers that have answered, kept for the next request.
//!
//! A connection to a guest is a process there, and takes some round trips of an emulated
//! machine to make.

use hyper::client::conn::http1::SendRequest;
use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Kept for one server if nothing else is said: a guest has 64 in all, for all that connects to it.
const EACH: usize = 4;
/// Time an unused connection is kept.
const IDLE: Duration = Duration::from_secs(30);

/// Idle connections, by server.
pub struct Pool<K, B> {
    idle: Idles<K, B>,
    each: usize,
}

type Idles<K, B> = Arc<Mutex<HashMap<K, Vec<Idle<B>>>>>;

struct Idle<B> {
    sender: SendRequest<B>,
    since: Instant,
}

impl<K, B> Clone for Pool<K, B> {
    fn clone(&self) -> Self {
        Self {
            idle: Arc::clone(&self.idle),
            each: self.each,
        }
    }
}

impl<K, B> Pool<K, B> {
    /// A pool that keeps so many connections to each server.
    pub fn keeping(each: usize) -> Self {
        Self {
            idle: Arc::default(),
            each,
        }
    }
}

impl<K, B> Default for Pool<K, B> {
    fn default() -> Self {
        Self::keeping(EACH)
    }
}

impl<K, B> fmt::Debug for Pool<K, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

impl<K, B> Pool<K, B>
where
    K: Clone + Eq + Hash + Send + 'static,
    B: Send + 'static,
{
    /// Takes the connection to a server that was used last, if one is open.
    pub fn take(&self, server: &K) -> Option<SendRequest<B>> {
        self.reap();
        Some(self.lock().get_mut(server)?.pop()?.sender)
    }

    /// Keeps a connection once its answer has been read, if it is open then. Cancel-safe.
    pub fn put(&self, server: K, mut sender: SendRequest<B>)
    where
        B: hyper::body::Body + 'static,
    {
        let pool = self.clone();
        tokio::spawn(async move {
            if sender.ready().await.is_err() {
                return;
            }
            pool.keep(server, sender);
            // No request may come again.
            sleep(IDLE).await;
            pool.reap();
        });
    }

    fn keep(&self, server: K, sender: SendRequest<B>) {
        let mut all = self.lock();
        let idle = all.entry(server).or_default();
        if idle.len() < self.each {
            let since = Instant::now();
            idle.push(Idle { sender, since });
        }
    }

    /// Forgets connections to these servers, which are closed with that.
    pub fn forget(&self, these: impl Fn(&K) -> bool) {
        self.lock().retain(|server, _| !these(server));
    }

    fn reap(&self) {
        self.lock().retain(|_, idle| {
            idle.retain(|it| !it.sender.is_closed() && it.since.elapsed() < IDLE);
            !idle.is_empty()
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Vec<Idle<B>>>> {
        // Whole at every moment.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
