//! The API over the network: TLS alone, and bounds on what a stranger can
//! hold: connections, and the time for each step before the token is seen.

use crate::{gate::Peer, metrics::Connected};
use axum::{Router, body::Body};
use forkyard_tls::{Fingerprint, ServerConfig};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// Connections at once; the next must wait to be accepted.
const CONNECTIONS: usize = 256;
/// How long a client may take to agree on keys.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long it may take to send the head of a request, the next one of an
/// idle connection included.
const HEAD: Duration = Duration::from_secs(30);
/// How long between two parts of a body.
const BODY: Duration = Duration::from_secs(30);
/// Bytes of a head.
const HEAD_BYTES: usize = 64 << 10;
/// How long requests under way have when the daemon ends.
const FAREWELL: Duration = Duration::from_secs(5);
/// Before trying again where no connection can be accepted.
const BREATH: Duration = Duration::from_millis(200);

/// Where the API is served over the network.
#[derive(Debug)]
pub struct Remote {
    /// What connections come to.
    pub listener: TcpListener,
    /// The daemon's side of TLS.
    pub tls: Arc<ServerConfig>,
}

impl Remote {
    /// Serves until `stop` is done, and what is under way then for a while.
    pub async fn serve(self, router: Router, stop: impl Future<Output = ()>) {
        let router = router.layer(tower_http::timeout::RequestBodyTimeoutLayer::new(BODY));
        let tls = TlsAcceptor::from(self.tls);
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let graceful = GracefulShutdown::new();
        tokio::pin!(stop);
        loop {
            let accepted = async {
                let place = places.clone().acquire_owned().await;
                (place, self.listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                () = &mut stop => break,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let (tls, router, watcher) = (tls.clone(), router.clone(), graceful.watcher());
                    tokio::spawn(async move {
                        let _place = place;
                        let _connected = Connected::new();
                        let Some(stream) = secured(&tls, stream, peer).await else {
                            return;
                        };
                        let shown = stream.get_ref().1.peer_certificates();
                        let who = Peer {
                            address: peer,
                            certificate: shown.and_then(<[_]>::first).map(Fingerprint::of),
                        };
                        let service = service_fn(move |mut request: Request<Incoming>| {
                            request.extensions_mut().insert(who);
                            router.clone().oneshot(request.map(Body::new))
                        });
                        let connection = http1::Builder::new()
                            .timer(TokioTimer::new())
                            .header_read_timeout(HEAD)
                            .max_buf_size(HEAD_BYTES)
                            .serve_connection(TokioIo::new(stream), service);
                        if let Err(error) = watcher.watch(connection).await {
                            tracing::debug!(%peer, %error, "connection broke off");
                        }
                    });
                }
                Err(error) => {
                    // Out of file descriptors, say: others may go meanwhile.
                    tracing::warn!(%error, "no connection accepted");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
        if timeout(FAREWELL, graceful.shutdown()).await.is_err() {
            tracing::info!("requests over the network were cut off");
        }
    }
}

async fn secured(
    tls: &TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    let outcome = timeout(HANDSHAKE, tls.accept(stream)).await;
    match outcome.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(stream) => Some(stream),
        Err(error) => {
            tracing::debug!(%peer, %error, "no handshake");
            None
        }
    }
}
