//! Addresses that the gateway listens at, and the connections that come there.

use crate::{
    arguments::{Forward, Serve},
    gateway::Gateway,
    guest::{Guests, Server},
};
use anyhow::Context;
use forkyard_client::Client;
use forkyard_gateway::{Key, Pool};
use forkyard_tls::Certificate;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{convert::Infallible, net::IpAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional},
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

/// Connections at once; others wait until one ends.
const MOST: usize = 4096;
/// For a handshake, and for the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// Before another try where no connection can be taken.
const BREATH: Duration = Duration::from_millis(200);

/// Passes on what comes, until SIGINT or SIGTERM.
pub async fn serve(client: Client, wanted: Serve) -> anyhow::Result<()> {
    let patience = Duration::from_secs(wanted.patience.into());
    let guests = Guests::new(client, wanted.wake, patience);
    let places = Arc::new(Semaphore::new(MOST));
    let mut all = JoinSet::new();
    if let Some(address) = wanted.listen {
        let tls = match (&wanted.tls_cert, &wanted.tls_key) {
            (Some(certificate), Some(key)) => {
                let certificate = Certificate::load(certificate, key)?;
                Some(TlsAcceptor::from(certificate.server()?))
            }
            (_, None) | (None, Some(_)) => None,
        };
        let key = match wanted.open {
            true => None,
            false => Some(Key::kept_in(&wanted.key)?),
        };
        let gateway = Arc::new(Gateway {
            guests: guests.clone(),
            domain: wanted.domain,
            key,
            tls: tls.is_some(),
            pool: Pool::default(),
        });
        let listener = listening(address).await?;
        all.spawn(http(listener, tls, gateway, Arc::clone(&places)));
    }
    for forward in wanted.tcp {
        let listener = listening(forward.listen).await?;
        all.spawn(tcp(listener, forward, guests.clone(), Arc::clone(&places)));
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

/// Takes the next connection that there is a place for.
async fn next(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, IpAddr, OwnedSemaphorePermit) {
    loop {
        let Ok(place) = Arc::clone(places).acquire_owned().await else {
            std::future::pending::<()>().await;
            continue;
        };
        match listener.accept().await {
            Ok((stream, from)) => {
                // Small answers are not held back for more.
                let _ = stream.set_nodelay(true);
                return (stream, from.ip(), place);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection");
                sleep(BREATH).await;
            }
        }
    }
}

async fn http(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    gateway: Arc<Gateway>,
    places: Arc<Semaphore>,
) {
    loop {
        let (stream, from, place) = next(&listener, &places).await;
        let (tls, gateway) = (tls.clone(), Arc::clone(&gateway));
        tokio::spawn(async move {
            let _place = place;
            match tls {
                None => attend(stream, from, gateway).await,
                Some(tls) => match timeout(HEAD, tls.accept(stream)).await {
                    Ok(Ok(stream)) => attend(stream, from, gateway).await,
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
) {
    let answer = service_fn(move |request| {
        let gateway = Arc::clone(&gateway);
        async move { Ok::<_, Infallible>(gateway.answer(request, from).await) }
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

async fn tcp(listener: TcpListener, forward: Forward, guests: Guests, places: Arc<Semaphore>) {
    loop {
        let (mut stream, from, place) = next(&listener, &places).await;
        let (forward, guests) = (forward.clone(), guests.clone());
        tokio::spawn(async move {
            let _place = place;
            let until = guests.until();
            let reached = async {
                let vm = guests.find(&forward.vm, until).await?.id;
                let port = forward.port;
                guests.connect(&Server { vm, port }, until).await
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
