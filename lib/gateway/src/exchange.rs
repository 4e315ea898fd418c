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
/// Headers that no end can call a matter of its connection: the message would be another one.
const MESSAGE: [HeaderName; 5] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::COOKIE,
    header::AUTHORIZATION,
    header::UPGRADE,
];

/// Headers for proxies that pass requests on, and are no matter of servers.
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

/// True if a request wants its connection to become one of another protocol.
pub fn upgrades(headers: &HeaderMap) -> bool {
    let mut named = named(headers);
    headers.contains_key(header::UPGRADE) && named.any(|name| name == header::UPGRADE)
}

/// Sends a request, whose headers are stripped, and waits for the head of its answer.
/// `client` is the client's connection, if that may become one of another protocol; what `holds`
/// is kept as long as that lasts.
pub async fn exchange<B>(
    sender: &mut SendRequest<B>,
    request: Request<B>,
    client: Option<OnUpgrade>,
    holds: impl Send + 'static,
) -> Result<Exchanged, hyper::Error>
where
    B: Body + 'static,
{
    let mut response = sender.send_request(request).await?;
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let (true, Some(client)) = (switched, client) {
        let server = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            let _holds = holds;
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
    // What the other end calls a matter of this connection is one, whatever its name.
    let named: Vec<_> = named(headers)
        .filter(|name| !MESSAGE.contains(name))
        .collect();
    if headers.contains_key(header::TRANSFER_ENCODING) {
        // The coding counts, not the length (RFC 9112, 6.3).
        headers.remove(header::CONTENT_LENGTH);
    }
    headers.remove(header::CONNECTION);
    for name in named.iter().chain(&HOP).chain(own) {
        headers.remove(name);
    }
    if upgrades {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    } else {
        headers.remove(header::UPGRADE);
    }
}

/// Lists the headers that an end names as its connection's, in however many
/// headers.
fn named(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    static OWN: [HeaderName; 1] = [HeaderName::from_static("x-forkyard-token")];

    fn stripped(all: &[(&str, &str)], upgrades: bool) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            let name: HeaderName = name.parse().expect("a name");
            headers.append(name, value.parse().expect("text"));
        }
        strip(&mut headers, &OWN, upgrades);
        let mut names: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_str().expect("text")))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn servers_get_nothing_of_the_connection_nor_what_is_the_gateways() {
        let all = [
            ("x-forkyard-token", "k"),
            ("connection", "Upgrade, X-Hop"),
            ("connection", "x-second"),
            ("x-hop", "1"),
            ("x-second", "1"),
            ("upgrade", "websocket"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("authorization", "Bearer of-the-server"),
        ];
        let kept = "authorization=Bearer of-the-server";
        let switches = [kept, "connection=upgrade", "upgrade=websocket"];
        assert_eq!(stripped(&all, true), switches);
        assert_eq!(stripped(&all, false), [kept]);
    }

    #[test]
    fn a_connection_header_cannot_remove_what_frames_a_message() {
        let all = [
            ("connection", "host, content-length, cookie, authorization"),
            ("host", "h"),
            ("content-length", "7"),
            ("cookie", "a=b"),
        ];
        assert_eq!(
            stripped(&all, false),
            ["content-length=7", "cookie=a=b", "host=h"]
        );
    }

    #[test]
    fn another_protocol_is_wanted_by_two_headers() {
        let wants = |connection: &str, upgrade: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONNECTION, connection.parse().expect("text"));
            if upgrade {
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            }
            upgrades(&headers)
        };
        assert!(wants("keep-alive, Upgrade", true));
        assert!(!wants("keep-alive", true));
        assert!(!wants("upgrade", false));
    }
}
