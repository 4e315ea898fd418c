//! Connections to TCP ports of guests, through the daemon.

use crate::{Client, ClientError, of_vm, refused};
use bytes::Bytes;
use forkyard_types::GuestPort;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{CONNECTION, UPGRADE},
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
        match self.upgrade(path).await? {
            Ok(stream) => Ok(stream),
            Err(response) => Err(refused(response).await),
        }
    }

    /// Asks for a connection by the path of a port; the answer if that is a refusal.
    pub async fn upgrade(
        &self,
        path: &str,
    ) -> Result<Result<PortStream, Response<Incoming>>, ClientError> {
        let request = Request::builder()
            .method(Method::GET)
            .uri(path)
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, "tcp");
        let response = self.pass_on(request, Full::new(Bytes::new())).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Err(response));
        }
        Ok(Ok(TokioIo::new(hyper::upgrade::on(response).await?)))
    }
}
