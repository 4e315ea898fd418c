//! Connections to TCP ports of guests, through the daemon.

use crate::{Client, ClientError, of_vm, refused};
use bytes::Bytes;
use forkyard_types::GuestPort;
use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{CONNECTION, HeaderValue, UPGRADE},
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;

/// A connection to a port. Each direction ends by itself.
pub type PortStream = TokioIo<Upgraded>;

impl Client {
    /// Connects to a TCP port of a VM; returns once its server has taken the connection.
    pub async fn connect(&self, vm: &str, port: GuestPort) -> Result<PortStream, ClientError> {
        self.upgraded(&of_vm(vm, &format!("ports/{port}"))).await
    }

    /// Asks for a connection by the path of a port, or of another host's commands.
    pub async fn upgraded(&self, path: &str) -> Result<PortStream, ClientError> {
        let tcp = HeaderMap::from_iter([
            (CONNECTION, HeaderValue::from_static("upgrade")),
            (UPGRADE, HeaderValue::from_static("tcp")),
        ]);
        match self.upgrade(path, tcp).await? {
            Upgrade::Taken(_, stream) => Ok(stream),
            Upgrade::Refused(response) => Err(refused(response).await),
        }
    }

    /// Asks by a path, with these headers, that the connection becomes one of another protocol.
    pub async fn upgrade(&self, path: &str, headers: HeaderMap) -> Result<Upgrade, ClientError> {
        let mut request = Request::builder().method(Method::GET).uri(path);
        if let Some(all) = request.headers_mut() {
            all.extend(headers);
        }
        let mut response = self.pass_on(request, Full::new(Bytes::new())).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Upgrade::Refused(response));
        }
        let headers = std::mem::take(response.headers_mut());
        let stream = TokioIo::new(hyper::upgrade::on(response).await?);
        Ok(Upgrade::Taken(headers, stream))
    }
}

/// The answer to a client that asks for another protocol.
#[derive(Debug)]
pub enum Upgrade {
    /// The connection is one of that now; with the headers of the answer.
    Taken(HeaderMap, PortStream),
    /// An answer as to any other request.
    Refused(Response<Incoming>),
}
