//! Addresses that the gateway listens at, and the connections that come there.

use crate::{
    arguments::{Forward, Serve},
    certificate::{self, Files},
    counts,
    gateway::{Gateway, Place},
    guest::{Guests, Server},
    shares::Shares,
    stall::Stalls,
};
use anyhow::Context;
use forkyard_client::Client;
use forkyard_gateway::{Key, Pool};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    socket::{setsockopt, sockopt},
};
use std::{
    collections::HashMap,
    convert::Infallible,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional},
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

/// Connections at once; others wait until one ends.
const MOST: usize = 4096;
/// Time a client may take nothing of the data sent to it.
const STALLS: Duration = Duration::from_secs(60);
/// For a handshake, and for the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// Before another try where no connection can be taken.
const BREATH: Duration = Duration::from_millis(200);

/// Passes on what comes, until SIGINT or SIGTERM.
pub async fn serve(client: Client, wanted: Serve) -> anyhow::Result<()> {
    let patience = Duration::from_secs(wanted.patience.into());
    let guests = Guests::new(client, wanted.wake, patience);
    let places = Places::new(MOST, wanted.per_address.into());
    raise_descriptors();
    let mut all = JoinSet::new();
    if let Some(address) = wanted.metrics {
        let told = counts::install()?;
        all.spawn(counts::tell(listening(address).await?, told));
    }
    if let Some(address) = wanted.listen {
        let tls = match (&wanted.tls_cert, &wanted.tls_key) {
            (Some(certificate), Some(key)) => Some(certificate::follow(Files {
                certificate: certificate.clone(),
                key: key.clone(),
            })?),
            (_, None) | (None, Some(_)) => None,
        };
        let key = match wanted.open {
            true => None,
            false => Some(Key::made_in(&wanted.key)?),
        };
        let gateway = Arc::new(Gateway {
            guests: guests.clone(),
            domain: wanted.domain,
            key,
            shares: Shares::default(),
            tls: tls.is_some(),
            pool: Pool::default(),
        });
        let listener = listening(address).await?;
        all.spawn(http(listener, tls, gateway, places.clone()));
    }
    for forward in wanted.tcp {
        let listener = listening(forward.listen).await?;
        all.spawn(tcp(listener, forward, guests.clone(), places.clone()));
    }
    let (mut interrupted, mut ended) = (
        signal(SignalKind::interrupt()).context("signals")?,
        signal(SignalKind::terminate()).context("signals")?,
    );
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = ended.recv() => {}
    }
    Ok(())
}

async fn listening(address: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    let at = listener.local_addr().context("where it listens")?;
    tracing::info!(address = %at, "listening");
    Ok(listener)
}

/// Places of clients' connections: of all, and of each address.
#[derive(Clone, Debug)]
struct Places {
    all: Arc<Semaphore>,
    of: Arc<Mutex<HashMap<IpAddr, usize>>>,
    most: usize,
}

/// A place, until dropped.
#[derive(Debug)]
pub struct Taken {
    _place: OwnedSemaphorePermit,
    _open: counts::Open,
    places: Places,
    from: IpAddr,
}

impl Places {
    fn new(all: usize, most: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            of: Arc::default(),
            most,
        }
    }

    /// Takes the next connection whose address has a place left; closes those of others.
    async fn next(&self, listener: &TcpListener) -> (TcpStream, IpAddr, Taken) {
        loop {
            let Ok(place) = Arc::clone(&self.all).acquire_owned().await else {
                std::future::pending::<()>().await;
                continue;
            };
            match listener.accept().await {
                Ok((stream, from)) => {
                    let from = from.ip().to_canonical();
                    let Some(taken) = self.take(place, from) else {
                        counts::turned_away();
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
                    sleep(BREATH).await;
                }
            }
        }
    }

    fn take(&self, place: OwnedSemaphorePermit, from: IpAddr) -> Option<Taken> {
        let mut of = lock(&self.of);
        let count = of.entry(from).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Taken {
            _place: place,
            _open: counts::Open::new(),
            places: self.clone(),
            from,
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
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

/// As many descriptors as the host lets it have: two for each connection, and some.
fn raise_descriptors() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of descriptors stays as it is");
    }
}

async fn http(
    listener: TcpListener,
    tls: Option<watch::Receiver<TlsAcceptor>>,
    gateway: Arc<Gateway>,
    places: Places,
) {
    loop {
        let (stream, from, place) = places.next(&listener).await;
        let stream = Stalls::new(stream, STALLS);
        let tls = tls.as_ref().map(|tls| tls.borrow().clone());
        let (gateway, place) = (Arc::clone(&gateway), Arc::new(place));
        tokio::spawn(async move {
            match tls {
                None => attend(stream, from, gateway, place).await,
                Some(tls) => match timeout(HEAD, tls.accept(stream)).await {
                    Ok(Ok(stream)) => attend(stream, from, gateway, place).await,
                    Ok(Err(error)) => tracing::debug!(%from, %error, "no TLS"),
                    Err(_) => tracing::debug!(%from, "no TLS in time"),
                },
            }
        });
    }
}

/// Answers the requests of one connection.
async fn attend(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    from: IpAddr,
    gateway: Arc<Gateway>,
    place: Place,
) {
    let answer = service_fn(move |request| {
        let (gateway, place) = (Arc::clone(&gateway), Arc::clone(&place));
        async move { Ok::<_, Infallible>(gateway.answer(request, from, place).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%from, %error, "a client's connection broke");
    }
}

async fn tcp(listener: TcpListener, forward: Forward, guests: Guests, places: Places) {
    loop {
        let (stream, from, place) = places.next(&listener).await;
        let mut stream = Stalls::new(stream, STALLS);
        let (forward, guests) = (forward.clone(), guests.clone());
        tokio::spawn(async move {
            let _place = place;
            let until = guests.until();
            let reached = async {
                let vm = guests.find(&forward.vm, until).await?.id;
                let port = forward.port;
                guests.connect(&Server { vm, port }, until, || {}).await
            };
            match reached.await {
                Ok(mut guest) => {
                    if let Err(error) = copy_bidirectional(&mut stream, &mut guest).await {
                        tracing::debug!(%from, %error, "a connection broke");
                    }
                }
                Err(unreached) => {
                    let Forward { vm, port, .. } = &forward;
                    tracing::warn!(%vm, %port, error = %unreached.error, "not connected");
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_has_its_share_of_the_places_and_gives_them_back() {
        let places = Places::new(3, 2);
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
