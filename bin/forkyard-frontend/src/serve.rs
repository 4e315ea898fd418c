//! Everything at work, and its end.
//!
//! ```text
//! serving --SIGTERM, SIGINT--> draining: nothing new is taken --all is over, time, or a second signal--> end
//! ```

use crate::{
    config::{Config, HttpEntry},
    counts,
    dns::NameServer,
    hosts::Hosts,
    http::{Client, Sites},
    lead, probe,
    service::Service,
    tcp,
};
use anyhow::Context;
use forkyard_gateway::{
    Places, Stalls,
    certificate::{self, Files},
    raise_descriptors, scraped,
};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_rustls::TlsAcceptor;

/// Connections at once; others wait until one ends.
const MOST: usize = 4096;
/// Time a client may take nothing of the data sent to it.
const STALLS: Duration = Duration::from_secs(60);
/// For a handshake, and for the head of a request.
const HEAD: Duration = Duration::from_secs(10);

/// Serving or draining, as connections hear of it. Each keeps one until it is over.
#[derive(Clone, Debug)]
struct Stop {
    told: watch::Receiver<bool>,
    _open: mpsc::Sender<()>,
}

impl Stop {
    /// Returns once nothing new is to be taken.
    async fn draining(&mut self) {
        // The sender lives as long as the program.
        let _ = self.told.wait_for(|stop| *stop).await;
    }
}

/// Serves until SIGINT or SIGTERM.
pub async fn serve(mut config: Config) -> anyhow::Result<()> {
    let mut signals = [
        signal(SignalKind::terminate()).context("signals")?,
        signal(SignalKind::interrupt()).context("signals")?,
    ];
    raise_descriptors();
    let mut all = JoinSet::new();
    if let Some(address) = config.metrics {
        let told = counts::install()?;
        all.spawn(scraped(listening(address, "metrics").await?, told));
    }
    let counted = counts::connections();
    let places = Places::new(MOST, config.bounds.per_address, counted);
    let hosts = Arc::new(Hosts::new(std::mem::take(&mut config.host))?);
    let server = config.dns.as_ref().map(NameServer::new).transpose()?;
    let server = server.map(Arc::new);
    let begun = Instant::now();
    let service = |(name, entry)| {
        let hosts = Arc::clone(&hosts);
        Arc::new(Service::new(name, entry, hosts, config.bounds, begun))
    };
    let services: Vec<_> = std::mem::take(&mut config.service)
        .into_iter()
        .map(service)
        .collect();
    let (stop, told) = watch::channel(false);
    let (open, mut over) = mpsc::channel(1);
    let stopped = Stop { told, _open: open };

    let sites = Arc::new(Sites::new(&services, config.bounds.replay_bytes));
    for entry in &config.http {
        let listener = listening(entry.listen, "HTTP").await?;
        let tls = certificate_of(entry)?;
        let (sites, places) = (Arc::clone(&sites), places.clone());
        all.spawn(http(listener, tls, sites, places, stopped.clone()));
    }
    for service in &services {
        for address in &service.entry.listen {
            let listener = listening(*address, &service.name).await?;
            let (service, places) = (Arc::clone(service), places.clone());
            all.spawn(take_tcp(listener, service, places, stopped.clone()));
        }
    }
    drop(stopped);
    let config = Arc::new(config);
    let targets: Vec<_> = services.iter().flat_map(|it| it.targets.clone()).collect();
    let poll = Duration::from_secs(config.bounds.poll_s);
    for host in hosts.names() {
        let (hosts, targets) = (Arc::clone(&hosts), targets.clone());
        all.spawn(async move { hosts.follow(host, targets, poll).await });
    }
    for service in services {
        for target in &service.targets {
            all.spawn(probe::check(Arc::clone(&service), Arc::clone(target)));
        }
        let (hosts, config) = (Arc::clone(&hosts), Arc::clone(&config));
        all.spawn(lead::lead(service, hosts, config, server.clone()));
    }

    first(&mut signals).await;
    stop.send_replace(true);
    let drain = Duration::from_secs(config.bounds.drain_s);
    tracing::info!(
        seconds = drain.as_secs(),
        "nothing new is taken; open connections go on"
    );
    tokio::select! {
        // Nothing is ever sent.
        _ = over.recv() => tracing::info!("all connections are over"),
        () = tokio::time::sleep(drain) => tracing::warn!("connections that are left are cut"),
        () = first(&mut signals) => tracing::warn!("told twice: connections that are left are cut"),
    }
    Ok(())
}

async fn first([terminate, interrupt]: &mut [Signal; 2]) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

async fn listening(address: SocketAddr, what: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} for {what}"))?;
    let at = listener.local_addr().context("where it listens")?;
    tracing::info!(what, address = %at, "listening");
    Ok(listener)
}

fn certificate_of(entry: &HttpEntry) -> anyhow::Result<Option<watch::Receiver<TlsAcceptor>>> {
    let (Some(certificate), Some(key)) = (entry.tls_cert.clone(), entry.tls_key.clone()) else {
        return Ok(None);
    };
    let files = Files { certificate, key };
    Ok(Some(certificate::follow(files, counts::certificate)?))
}

async fn http(
    listener: TcpListener,
    tls: Option<watch::Receiver<TlsAcceptor>>,
    sites: Arc<Sites>,
    places: Places,
    mut stop: Stop,
) {
    loop {
        let (stream, from, place) = tokio::select! {
            next = places.next(&listener) => next,
            () = stop.draining() => return,
        };
        let stream = Stalls::new(stream, STALLS);
        let tls = tls.as_ref().map(|tls| tls.borrow().clone());
        let client = Client {
            from,
            tls: tls.is_some(),
            place: Arc::new(place),
        };
        let (sites, stop) = (Arc::clone(&sites), stop.clone());
        tokio::spawn(async move {
            match tls {
                None => attend(stream, sites, client, stop).await,
                Some(tls) => match timeout(HEAD, tls.accept(stream)).await {
                    Ok(Ok(stream)) => attend(stream, sites, client, stop).await,
                    Ok(Err(error)) => tracing::debug!(%from, %error, "no TLS"),
                    Err(_) => tracing::debug!(%from, "no TLS in time"),
                },
            }
        });
    }
}

/// Answers the requests of one connection; when draining, those that have begun.
async fn attend(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    sites: Arc<Sites>,
    client: Client,
    mut stop: Stop,
) {
    let from = client.from;
    let answer = service_fn(move |request| {
        let (sites, client) = (Arc::clone(&sites), client.clone());
        async move { Ok::<_, Infallible>(sites.answer(request, client).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades();
    let mut served = pin!(served);
    let served = tokio::select! {
        served = served.as_mut() => served,
        () = stop.draining() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%from, %error, "a client's connection broke");
    }
}

async fn take_tcp(listener: TcpListener, service: Arc<Service>, places: Places, mut stop: Stop) {
    loop {
        let (stream, from, place) = tokio::select! {
            next = places.next(&listener) => next,
            () = stop.draining() => return,
        };
        let (service, stop) = (Arc::clone(&service), stop.clone());
        tokio::spawn(async move {
            let _held = (place, stop);
            tcp::carry(stream, from, service).await;
        });
    }
}
