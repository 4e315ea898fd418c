//! A connection that is kept from one request to the next.
//!
//! Over a long link a request of its own takes two round trips more: for the connection, and for
//! TLS. Requests on a line go one after the other.

use crate::{Client, ClientError, USER, Way, read, refused};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, client::conn::http1::SendRequest, http::request::Builder};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

/// See the module.
#[derive(Debug)]
pub struct Line {
    client: Client,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// A line to the daemon. Nothing is connected to yet.
    pub fn line(&self) -> Line {
        Line {
            client: self.clone(),
            sender: None,
        }
    }

    fn head(&self, request: Builder) -> Builder {
        let request = match &self.user {
            Some(user) => request.header(USER, user),
            None => request,
        };
        match &self.way {
            Way::Socket(_) => request.header("host", "forkyard"),
            Way::Network {
                host, port, token, ..
            } => request
                .header("host", format!("{host}:{port}"))
                .header("authorization", format!("Bearer {}", token.0)),
            Way::Node { address, .. } => request.header("host", address.to_string()),
        }
    }
}

impl Line {
    /// Has later requests be on behalf of this user, or of none.
    pub fn on_behalf_of(&mut self, user: Option<&str>) {
        let client = Client {
            user: None,
            ..self.client.clone()
        };
        self.client = match user {
            Some(user) => client.on_behalf_of(user),
            None => client,
        };
    }

    /// Posts `body` and reads the whole answer. If cancelled, the line is connected anew by the next
    /// request.
    pub async fn post<A: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, ClientError> {
        let body = serde_json::to_vec(body)?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header("content-type", "application/json");
        let request = self.client.head(request).body(Full::new(body.into()))?;
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => self.client.attend(self.connected()).await?,
        };
        let asked = async { Ok(sender.send_request(request).await?) };
        let response = self.client.attend(asked).await?;
        if !response.status().is_success() {
            return Err(refused(response).await);
        }
        let answer = self.client.attend(read(response)).await?;
        self.sender = Some(sender);
        Ok(answer)
    }

    async fn connected(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        match &self.client.way {
            Way::Socket(path) => {
                let socket = UnixStream::connect(path).await;
                let socket = socket.map_err(|source| ClientError::NoDaemon {
                    socket: path.clone(),
                    source,
                })?;
                begun(socket).await
            }
            Way::Network {
                host, port, tls, ..
            } => {
                begun(
                    self.client
                        .secured((host.as_str(), *port), host, tls)
                        .await?,
                )
                .await
            }
            Way::Node { address, name, tls } => {
                begun(self.client.secured(*address, name, tls).await?).await
            }
        }
    }
}

async fn begun(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, ClientError> {
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the connection; an error shows in the request itself.
    tokio::spawn(connection);
    Ok(sender)
}
