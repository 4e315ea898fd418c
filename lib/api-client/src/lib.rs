//! A client of the daemon's HTTP API: a connection a request, and its answer.
//!
//! Every call is cancel-safe for the client; what it asked for may be done all
//! the same.

mod disk;
mod error;
mod events;
mod exec;
mod line;
mod logs;
mod paths;
mod place;
mod ports;
mod presence;

pub use disk::{DiskDownload, UploadError};
pub use error::ClientError;
pub use events::EventStream;
pub use exec::Events;
pub use forkyard_tls::Trust;
pub use forkyard_types::TokenSecret;
pub use line::Line;
pub use logs::Logs;
pub use paths::{escaped, of_files, of_vm};
pub use place::{InvalidPlace, LongRunDir, PORT, Place, check_run_dir};
pub use ports::{PortStream, Upgrade};

use bytes::Bytes;
use forkyard_tls::{ClientConfig, ServerName};
use forkyard_types::{ApiError, ErrorKind};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Incoming},
    http::request::Builder,
};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    error::Error,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, ToSocketAddrs, UnixStream},
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// Time a daemon on the network may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Bears the name of the user on whose behalf a node asks, in hexadecimal:
/// names may hold what headers may not.
pub const USER: &str = "forkyard-user";

/// A daemon, and how it is reached.
#[derive(Clone, Debug)]
pub struct Client {
    way: Way,
    /// On whose behalf, as a header bears it.
    user: Option<String>,
    patience: presence::Patience,
}

#[derive(Clone, Debug)]
enum Way {
    Socket(PathBuf),
    Network {
        host: String,
        port: u16,
        token: TokenSecret,
        tls: Arc<ClientConfig>,
    },
    /// A node of the same cluster: it knows us by our certificate.
    Node {
        address: SocketAddr,
        name: String,
        tls: Arc<ClientConfig>,
    },
}

impl From<Way> for Client {
    fn from(way: Way) -> Self {
        Self {
            way,
            user: None,
            patience: presence::Patience::default(),
        }
    }
}

impl Client {
    /// A client of the daemon whose folder this is.
    pub fn new(run_dir: &Path) -> Self {
        Way::Socket(run_dir.join("api.sock")).into()
    }

    /// A client of the daemon at this place. On the network it takes a token,
    /// and holds the daemon's certificate to `trust`.
    pub fn at(
        place: Place,
        token: Option<TokenSecret>,
        trust: &Trust,
    ) -> Result<Self, ClientError> {
        let way = match place {
            Place::Socket(path) => Way::Socket(path),
            Place::Network { host, port } => Way::Network {
                token: token.ok_or_else(|| ClientError::NoToken {
                    place: Place::Network {
                        host: host.clone(),
                        port,
                    },
                })?,
                tls: trust.client()?,
                host,
                port,
            },
        };
        Ok(way.into())
    }

    /// A client of the daemon at this address, which bears this name, and which
    /// lets us in by what `tls` shows it, or by what is in the request.
    pub fn node(address: SocketAddr, name: &str, tls: Arc<ClientConfig>) -> Self {
        let name = name.to_owned();
        Way::Node { address, name, tls }.into()
    }

    /// Makes further requests on behalf of this user. Believed of nodes of the
    /// same cluster alone.
    pub fn on_behalf_of(mut self, user: &str) -> Self {
        self.user = Some(user.bytes().map(|byte| format!("{byte:02x}")).collect());
        self
    }

    /// Returns the place of the daemon.
    pub fn place(&self) -> Place {
        match &self.way {
            Way::Socket(path) => Place::Socket(path.clone()),
            Way::Network { host, port, .. } => Place::Network {
                host: host.clone(),
                port: *port,
            },
            Way::Node { address, .. } => Place::Network {
                host: address.ip().to_string(),
                port: address.port(),
            },
        }
    }

    /// Sends a request without a body and reads the whole answer.
    pub async fn call<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
    ) -> Result<A, ClientError> {
        let answer = self.open(method, path, Bytes::new()).await?;
        self.attend(read(answer)).await
    }

    /// Posts `body` and reads the whole answer.
    pub async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, ClientError> {
        let answer = self.stream(path, body).await?;
        self.attend(read(answer)).await
    }

    /// Puts `body` and reads the whole answer.
    pub async fn put<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, ClientError> {
        let body = serde_json::to_vec(body)?;
        let answer = self.open(Method::PUT, path, body.into()).await?;
        self.attend(read(answer)).await
    }

    /// Posts `body` and leaves the answer's body to be read as it comes.
    pub async fn stream(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Response<Incoming>, ClientError> {
        let body = serde_json::to_vec(body)?;
        self.open(Method::POST, path, body.into()).await
    }

    async fn open(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, ClientError> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json");
        self.ask(request, Full::new(body)).await
    }

    async fn ask<B>(&self, request: Builder, body: B) -> Result<Response<Incoming>, ClientError>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        let response = self.pass_on(request, body).await?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(refused(response).await),
        }
    }

    /// Sends a request as it is, with what lets us in added to it; the answer
    /// may be a refusal. Fails if the daemon stops answering pings meanwhile.
    pub async fn pass_on<B>(
        &self,
        request: Builder,
        body: B,
    ) -> Result<Response<Incoming>, ClientError>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        self.attend(self.exchange(request, body)).await
    }

    /// Sends a request and waits for the head of its answer, however long that takes.
    async fn exchange<B>(
        &self,
        request: Builder,
        body: B,
    ) -> Result<Response<Incoming>, ClientError>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        let request = match &self.user {
            Some(user) => request.header(USER, user),
            None => request,
        };
        match &self.way {
            Way::Socket(path) => {
                let socket = UnixStream::connect(path).await;
                let socket = socket.map_err(|source| ClientError::NoDaemon {
                    socket: path.clone(),
                    source,
                })?;
                let request = request.header("host", "forkyard").body(body)?;
                send(socket, request).await
            }
            Way::Network {
                host,
                port,
                token,
                tls,
            } => {
                let stream = self.secured((host.as_str(), *port), host, tls).await?;
                let request = request
                    .header("host", format!("{host}:{port}"))
                    .header("authorization", format!("Bearer {}", token.0))
                    .body(body)?;
                send(stream, request).await
            }
            Way::Node { address, name, tls } => {
                let stream = self.secured(*address, name, tls).await?;
                let request = request.header("host", address.to_string()).body(body)?;
                send(stream, request).await
            }
        }
    }

    async fn secured(
        &self,
        address: impl ToSocketAddrs,
        name: &str,
        tls: &Arc<ClientConfig>,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static, ClientError> {
        let late = |_| Err(io::ErrorKind::TimedOut.into());
        let stream = timeout(CONNECT, TcpStream::connect(address)).await;
        let stream = stream
            .unwrap_or_else(late)
            .map_err(|source| ClientError::Unreachable {
                place: self.place(),
                source,
            })?;
        let failed = |source| ClientError::NotTrusted {
            place: self.place(),
            source,
        };
        let name =
            ServerName::try_from(name.to_owned()).map_err(|e| failed(io::Error::other(e)))?;
        let secured = TlsConnector::from(tls.clone()).connect(name, stream);
        let secured = timeout(CONNECT, secured).await;
        secured
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(failed)
    }
}

async fn send<B>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<B>,
) -> Result<Response<Incoming>, ClientError>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the connection; an error shows in the request itself.
    tokio::spawn(connection.with_upgrades());
    Ok(sender.send_request(request).await?)
}

async fn read<A: DeserializeOwned>(response: Response<Incoming>) -> Result<A, ClientError> {
    let body = response.into_body().collect().await?.to_bytes();
    Ok(serde_json::from_slice(&body)?)
}

/// The refusal that an answer is.
async fn refused(response: Response<Incoming>) -> ClientError {
    let status = response.status();
    match response.into_body().collect().await {
        Ok(body) => error_of(status, &body.to_bytes()).into(),
        Err(error) => error.into(),
    }
}

fn error_of(status: StatusCode, body: &[u8]) -> ApiError {
    serde_json::from_slice(body).unwrap_or_else(|_| ApiError {
        kind: ErrorKind::Host,
        message: format!(
            "the daemon answered {status}: {}",
            String::from_utf8_lossy(body).trim()
        ),
        hint: None,
    })
}
