//! TCP ports of guests: a connection of HTTP that becomes one of TCP.
//!
//! ```text
//! request with `Upgrade: tcp` --> 101 --> the connection's bytes are the server's, both ways
//!                             --> a refusal, as of any other request
//! ```

use super::Path;
use crate::{
    reply::Refusal,
    upgrade::{Carrier, TCP, asks_for_tcp, switching},
};
use axum::{
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use forkyard_fork::{Host, PortIn, PortOut, StreamPiece, VmError};
use forkyard_types::{self as types, GuestPort};
use hyper_util::rt::TokioIo;
use std::{
    error::Error,
    future::pending,
    io::{self, ErrorKind},
    sync::Arc,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};

/// Bytes read from a client at once.
const PIECE: usize = 32 << 10;

/// Connect to a TCP port of a guest, whether its server listens on the guest's loopback or on all
/// addresses.
///
/// The request has `Connection: Upgrade` and `Upgrade: tcp`. Once the server has taken the
/// connection the answer is 101, and from then on the connection carries the server's bytes as they
/// are. Each direction ends by itself: by the end of what is sent, over TLS by `close_notify`.
/// A connection that breaks off on one side is reset on the other.
#[utoipa::path(get, path = "/v1/vms/{vm}/ports/{port}", operation_id = "connect_port", tag = "vms",
    params(("vm" = String, Path, description = "Name or id"),
        ("port" = u16, Path, minimum = 1, maximum = 65535, description = "The guest's port")),
    responses((status = 101, description = "Connected: the bytes that follow are those of the port"),
        (status = 426, body = types::ApiError, description = "The request asks for no upgrade to `tcp`"), Refusal))]
pub async fn connect(
    State(host): State<Arc<Host>>,
    Path((vm, port)): Path<(String, GuestPort)>,
    mut request: Request,
) -> Result<Response, Refusal> {
    if !asks_for_tcp(request.headers()) {
        return Ok(not_asked_for());
    }
    let carrier = request.extensions().get::<Carrier>().cloned();
    let upgrade = hyper::upgrade::on(&mut request);
    let (input, output) = host.use_vm(&vm).await?.connect(port).await?;
    tokio::spawn(async move {
        // Counted until its end.
        let _carrier = carrier;
        match upgrade.await {
            Ok(client) => carry(TokioIo::new(client), input, output).await,
            Err(error) => tracing::debug!(%error, "a client went away as it was connected"),
        }
    });
    Ok(switching())
}

/// The answer to a request that wants no connection, where there is nothing else.
pub fn not_asked_for() -> Response {
    let refusal = Refusal::new(
        types::ErrorKind::Invalid,
        "this path is for connections alone",
    )
    .hinting("ask with `Connection: Upgrade` and `Upgrade: tcp`, or use `forkyard port-forward`")
    .answered(StatusCode::UPGRADE_REQUIRED);
    ([(header::UPGRADE, TCP)], refusal).into_response()
}

/// A connection that is over before both of its directions have ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the client's connection broke")]
    Client(#[from] io::Error),
    #[error("the guest's connection broke")]
    Guest(#[from] VmError),
}

/// Passes bytes on until both directions have ended, or one has broken.
pub async fn carry(client: impl AsyncRead + AsyncWrite + Send, input: PortIn, output: PortOut) {
    let (from, to) = split(client);
    let over = tokio::select! {
        Err(broken) = inward(from, input) => Err(broken),
        over = outward(output, to) => over,
    };
    // Dropped unfinished, the connection is reset in the guest, and TLS tells the client of no end.
    if let Err(broken) = over {
        tracing::debug!(
            error = &broken as &dyn Error,
            "a connection to a port broke"
        );
    }
}

/// Returns only if it fails: that the client has ended its direction does not end the other.
async fn inward(mut from: ReadHalf<impl AsyncRead>, input: PortIn) -> Result<(), Broken> {
    let mut buffer = vec![0; PIECE];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) => break,
            Ok(read) => input.send(&buffer[..read]).await?,
            // Libraries of TLS that close a socket without a word are many: what they sent before
            // is to arrive, as over TCP.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error.into()),
        }
    }
    input.end().await?;
    pending().await
}

async fn outward(mut output: PortOut, mut to: WriteHalf<impl AsyncWrite>) -> Result<(), Broken> {
    while let Some(piece) = output.next().await? {
        match piece {
            StreamPiece::Data(bytes) => {
                to.write_all(&bytes).await?;
                to.flush().await?;
            }
            StreamPiece::End => to.shutdown().await?,
        }
    }
    Ok(())
}
