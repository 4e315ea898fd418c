//! Places of clients' connections: of all, and of each address.

use metrics::{Counter, Gauge};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    socket::{setsockopt, sockopt},
};
use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

/// Before another try where no connection can be taken.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Counts of connections.
#[derive(Clone)]
pub struct ConnectionCounts {
    /// Those that are open.
    pub open: Gauge,
    /// Those that were closed because their address had as many as it may.
    pub turned_away: Counter,
}

impl fmt::Debug for ConnectionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counts")
    }
}

/// Places of clients' connections.
#[derive(Clone, Debug)]
pub struct Places {
    all: Arc<Semaphore>,
    of: Arc<Mutex<HashMap<IpAddr, usize>>>,
    most: usize,
    counts: ConnectionCounts,
}

/// A place, until dropped.
#[derive(Debug)]
pub struct TakenPlace {
    _place: OwnedSemaphorePermit,
    places: Places,
    from: IpAddr,
}

impl Places {
    /// Places for so many connections in all, and `most` of one address.
    pub fn new(all: usize, most: usize, counts: ConnectionCounts) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            of: Arc::default(),
            most,
            counts,
        }
    }

    /// Takes the next connection whose address has a place left; closes those of others. Cancel-safe.
    pub async fn next(&self, listener: &TcpListener) -> (TcpStream, IpAddr, TakenPlace) {
        loop {
            let Ok(place) = Arc::clone(&self.all).acquire_owned().await else {
                std::future::pending::<()>().await;
                continue;
            };
            match listener.accept().await {
                Ok((stream, from)) => {
                    let from = from.ip().to_canonical();
                    let Some(taken) = self.take(place, from) else {
                        self.counts.turned_away.increment(1);
                        tracing::debug!(%from, "it has as many connections as an address may have");
                        continue;
                    };
                    // Small answers are not held back for more; one that is gone is found out.
                    let _ = stream.set_nodelay(true);
                    let _ = setsockopt(&stream, sockopt::KeepAlive, &true);
                    return (stream, from, taken);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection");
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    fn take(&self, place: OwnedSemaphorePermit, from: IpAddr) -> Option<TakenPlace> {
        let mut of = lock(&self.of);
        let count = of.entry(from).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        self.counts.open.increment(1);
        Some(TakenPlace {
            _place: place,
            places: self.clone(),
            from,
        })
    }
}

impl Drop for TakenPlace {
    fn drop(&mut self) {
        self.places.counts.open.decrement(1);
        let mut of = lock(&self.places.of);
        if let Some(count) = of.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                of.remove(&self.from);
            }
        }
    }
}

fn lock(of: &Mutex<HashMap<IpAddr, usize>>) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
    // Whole at every moment.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes as many descriptors as the host lets this process have: two for each connection, and some.
pub fn raise_descriptors() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of descriptors stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_has_its_share_of_the_places_and_gives_them_back() {
        let counts = ConnectionCounts {
            open: Gauge::noop(),
            turned_away: Counter::noop(),
        };
        let places = Places::new(3, 2, counts);
        let take = |from: [u8; 4]| {
            let place = Arc::clone(&places.all).try_acquire_owned().ok()?;
            places.take(place, IpAddr::from(from))
        };
        let (greedy, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let first = take(greedy).expect("a place");
        let _second = take(greedy).expect("a place");
        assert!(take(greedy).is_none(), "it has its share");
        let _third = take(other).expect("there is one left");
        assert!(take(other).is_none(), "none is left");
        drop(first);
        let _again = take(greedy).expect("it has given one back");
    }
}
