//! A client of the daemon's HTTP API: a connection a request, and its answer.
//!
//! Every call is cancel-safe for the client; what it asked for may be done all
//! the same.

mod error;

pub use error::ClientError;

use bytes::Bytes;
use forkyard_types::{ApiError, ErrorKind};
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response, StatusCode, body::Incoming};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;

/// Where the daemon listens.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the daemon whose folder this is.
    pub fn new(run_dir: &Path) -> Self {
        Self {
            socket: run_dir.join("api.sock"),
        }
    }

    /// Whether a daemon accepts connections.
    pub async fn answers(&self) -> bool {
        UnixStream::connect(&self.socket).await.is_ok()
    }

    /// Sends a request without a body and reads the whole answer.
    pub async fn call<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
    ) -> Result<A, ClientError> {
        read(self.open(method, path, Bytes::new()).await?).await
    }

    /// Posts `body` and reads the whole answer.
    pub async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, ClientError> {
        read(self.stream(path, body).await?).await
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
        let socket =
            UnixStream::connect(&self.socket)
                .await
                .map_err(|source| ClientError::NoDaemon {
                    socket: self.socket.clone(),
                    source,
                })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
        // Ends with the connection; an error shows in the request itself.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "forkyard")
            .header("content-type", "application/json")
            .body(Full::new(body))?;
        let response = sender.send_request(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Err(error_of(status, &body).into())
    }
}

async fn read<A: DeserializeOwned>(response: Response<Incoming>) -> Result<A, ClientError> {
    let body = response.into_body().collect().await?.to_bytes();
    Ok(serde_json::from_slice(&body)?)
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
