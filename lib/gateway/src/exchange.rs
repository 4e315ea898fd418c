//! One request passed on over a connection to a server, and its answer back, as they come.
//!
//! An answer that switches protocols (WebSocket) makes one connection of the two.

use hyper::{
    HeaderMap, Request, Response, StatusCode,
    body::{Body, Incoming},
    client::conn::http1::{self, SendRequest},
    header::{self, HeaderName, HeaderValue},
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use std::error::Error;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};

/// Headers about one connection, between its two ends alone.
const HOP: [HeaderName; 6] = [
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
];

/// Headers that are for who passes requests on, and are no matter of servers.
pub type OwnHeaders<'a> = &'a [HeaderName];

/// An answer, and whether the connection is one of another protocol now.
#[derive(Debug)]
pub struct Exchanged {
    /// The answer.
    pub response: Response<Incoming>,
    /// True if its bytes are passed on by themselves from now on.
    pub switched: bool,
}

/// Begins HTTP on a connection to a server.
pub async fn opened<B>(
    connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<B>, hyper::Error>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(connection)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a server in a guest broke");
        }
    });
    Ok(sender)
}

/// Sends a request, whose headers are stripped, and waits for the head of its answer.
/// `client` is the client's connection, if that may become one of another protocol.
pub async fn exchange<B>(
    sender: &mut SendRequest<B>,
    request: Request<B>,
    client: Option<OnUpgrade>,
) -> Result<Exchanged, hyper::Error>
where
    B: Body + 'static,
{
    let mut response = sender.send_request(request).await?;
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let (true, Some(client)) = (switched, client) {
        let server = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            let (Ok(client), Ok(server)) = tokio::join!(client, server) else {
                return;
            };
            let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
            if let Err(error) = copy_bidirectional(&mut client, &mut server).await {
                tracing::debug!(%error, "a connection of another protocol broke");
            }
        });
    } else {
        strip(response.headers_mut(), &[], false);
    }
    Ok(Exchanged { response, switched })
}

/// Takes away what is of one connection, and `own`. A request that wants another protocol
/// goes on wanting it.
pub fn strip(headers: &mut HeaderMap, own: OwnHeaders<'_>, upgrades: bool) {
    let connection = headers.remove(header::CONNECTION);
    // What the other end calls a matter of this connection is one, whatever its name.
    let named = connection.as_ref().and_then(|it| it.to_str().ok());
    let named: Vec<HeaderName> = named
        .unwrap_or_default()
        .split(',')
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != header::UPGRADE)
        .collect();
    for name in named.iter().chain(&HOP).chain(own) {
        headers.remove(name);
    }
    if upgrades {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    } else {
        headers.remove(header::UPGRADE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_get_nothing_of_the_connection_nor_what_is_the_gateways() {
        static OWN: [HeaderName; 1] = [HeaderName::from_static("x-forkyard-token")];
        let of = |upgrades| {
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("x-forkyard-token", "k"),
                ("connection", "Upgrade, X-Hop"),
                ("x-hop", "1"),
                ("upgrade", "websocket"),
                ("transfer-encoding", "chunked"),
                ("authorization", "Bearer of-the-server"),
            ] {
                let name: HeaderName = name.parse().expect("a name");
                headers.insert(name, value.parse().expect("text"));
            }
            strip(&mut headers, &OWN, upgrades);
            let mut names: Vec<_> = headers
                .iter()
                .map(|(name, value)| format!("{name}={}", value.to_str().expect("text")))
                .collect();
            names.sort();
            names
        };
        let kept = "authorization=Bearer of-the-server";
        assert_eq!(of(true), [kept, "connection=upgrade", "upgrade=websocket"]);
        assert_eq!(of(false), [kept]);
    }
}
