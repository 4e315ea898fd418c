//! Addresses that the gateway listens at, and the connections that come there.

use crate::{
    arguments::{Forward, Serve},
    counts,
    gateway::{Gateway, Place},
    guest::{Guests, Server},
    shares::Shares,
};
use anyhow::Context;
use forkyard_api_client::Client;
use forkyard_gateway::{
    Places, Pool, ShareKey, Stalls,
    certificate::{self, Files},
    raise_descriptors, scraped,
};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{convert::Infallible, net::IpAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional},
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

/// Connections at once; others wait until one ends.
const MOST: usize = 4096;
/// Time a client may take nothing of the data sent to it.
const STALLS: Duration = Duration::from_secs(60);
/// For a handshake, and for the head of a request.
const HEAD: Duration = Duration::from_secs(10);

/// Passes on what comes, until SIGINT or SIGTERM.
pub async fn serve(client: Client, wanted: Serve) -> anyhow::Result<()> {
    let patience = Duration::from_secs(wanted.patience.into());
    let guests = Guests::new(client, wanted.wake, patience);
    raise_descriptors();
    let mut all = JoinSet::new();
    if let Some(address) = wanted.metrics {
        let told = counts::install()?;
        all.spawn(scraped(listening(address).await?, told));
    }
    let places = Places::new(MOST, wanted.per_address.into(), counts::connections());
    if let Some(address) = wanted.listen {
        let tls = match (&wanted.tls_cert, &wanted.tls_key) {
            (Some(certificate), Some(key)) => {
                let (certificate, key) = (certificate.clone(), key.clone());
                let files = Files { certificate, key };
                Some(certificate::follow(files, counts::certificate)?)
            }
            (_, None) | (None, Some(_)) => None,
        };
        let key = match wanted.open {
            true => None,
            false => Some(ShareKey::made_in(&wanted.key)?),
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
