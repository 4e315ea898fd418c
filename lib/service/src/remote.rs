//! The API over the network: TLS alone, and bounds on what a stranger can
//! hold: connections (`doors`), and the time for each step before the token is seen.

use crate::{
    counts::Connected, doors::Doors, gate::ConnectionPeer, gone::Connection,
    unreadable::ServerSide, upgrade::Carrier,
};
use axum::{Router, body::Body};
use forkyard_tls::{Fingerprint, ServerConfig};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// Time a client may take to agree on keys.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time it may take to send the head of a request, the next one of an idle
/// connection included.
const HEAD: Duration = Duration::from_secs(30);
/// Time between two parts of a body.
const BODY: Duration = Duration::from_secs(30);
/// Bytes of a head.
const HEAD_BYTES: usize = 64 << 10;
/// Time for requests under way when the daemon ends.
pub const FAREWELL: Duration = Duration::from_secs(5);
/// Before trying again where no connection can be accepted.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);

/// Listener of the API on the network.
#[derive(Debug)]
pub struct Remote {
    /// Socket that accepts connections.
    pub listener: TcpListener,
    /// The daemon's side of TLS.
    pub tls: Arc<ServerConfig>,
}

impl Remote {
    /// Serves until `stop` is done, and what is under way then for a while.
    pub async fn serve(self, router: Router, stop: impl Future<Output = ()>) {
        let router = router.layer(tower_http::timeout::RequestBodyTimeoutLayer::new(BODY));
        let tls = TlsAcceptor::from(self.tls);
        let doors = Arc::new(Doors::default());
        // Closed once no connection has a receiver any more.
        let (ending, _) = watch::channel(false);
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let (tls, router) = (tls.clone(), router.clone());
                    let mut ended = ending.subscribe();
                    let visit = doors.enter(peer.ip());
                    tokio::spawn(async move {
                        let connected = Arc::new(Connected::counted());
                        let connection = Connection::of(&stream);
                        keep_alive(&stream);
                        let served = async {
                            let Some(stream) = secured(&tls, stream, peer).await else {
                                return;
                            };
                            let shown = stream.get_ref().1.peer_certificates();
                            let who = ConnectionPeer {
                                address: peer,
                                certificate: shown.and_then(<[_]>::first).map(Fingerprint::of),
                            };
                            let carrier = Carrier::new(visit.clone(), connected.clone());
                            let service = service_fn(|mut request: Request<Incoming>| {
                                request.extensions_mut().insert(carrier.clone());
                                request.extensions_mut().insert(who);
                                request.extensions_mut().insert(visit.clone());
                                if let Some(connection) = connection.clone() {
                                    request.extensions_mut().insert(connection);
                                }
                                router.clone().oneshot(request.map(Body::new))
                            });
                            let mut connection = pin!(
                                http1::Builder::new()
                                    .timer(TokioTimer::new())
                                    .header_read_timeout(HEAD)
                                    .max_buf_size(HEAD_BYTES)
                                    .serve_connection(
                                        TokioIo::new(ServerSide::new(stream)),
                                        service
                                    )
                                    .with_upgrades()
                            );
                            let served = tokio::select! {
                                served = connection.as_mut() => served,
                                () = async { drop(ended.wait_for(|ended| *ended).await) } => {
                                    connection.as_mut().graceful_shutdown();
                                    connection.await
                                }
                            };
                            if let Err(error) = served {
                                tracing::debug!(%peer, %error, "connection broke off");
                            }
                        };
                        tokio::select! {
                            () = served => {}
                            () = visit.closed() => {
                                tracing::debug!(%peer, "connection closed: others need its place");
                            }
                        }
                    });
                }
                Err(error) => {
                    // Out of file descriptors, say: others may go meanwhile.
                    tracing::warn!(%error, "no connection accepted");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
        ending.send_replace(true);
        if timeout(FAREWELL, ending.closed()).await.is_err() {
            tracing::info!("requests over the network were cut off");
        }
    }
}

/// Has the kernel find out that a client has vanished: a connection to a port may be silent for long.
fn keep_alive(stream: &TcpStream) {
    if let Err(error) = setsockopt(stream, sockopt::KeepAlive, &true) {
        tracing::debug!(%error, "a connection is not probed");
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Json, routing::get};
    use forkyard_api_client::{Client, Trust};
    use forkyard_tls::Certificate;
    use forkyard_types::TokenSecret;
    use futures::future::{join_all, pending};
    use hyper::Method;

    #[tokio::test]
    async fn idle_connections_keep_no_request_waiting() {
        let folder = tempfile::tempdir().expect("folder");
        let names = ["127.0.0.1".to_owned()];
        let certificate = Certificate::kept_in(folder.path(), &names).expect("a certificate");
        let trust = certificate.fingerprint().to_string();
        let trust: Trust = trust.parse().expect("a fingerprint");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let at = listener.local_addr().expect("an address");
        let remote = Remote {
            listener,
            tls: certificate.server().expect("TLS"),
        };
        let router = Router::new().route("/", get(async || Json(7)));
        let serving = tokio::spawn(remote.serve(router, pending()));
        let idle = join_all((0..256).map(|_| TcpStream::connect(at))).await;
        let token = TokenSecret("unread".into());
        let place = format!("https://{at}").parse().expect("a place");
        let client = Client::at(place, Some(token), &trust).expect("a client");
        // Before any of them is given up for its silence.
        let told = timeout(HANDSHAKE / 2, client.call::<u32>(Method::GET, "/"));
        assert_eq!(told.await.expect("at once").expect("answered"), 7);
        drop(idle);
        serving.abort();
    }
}
