//! A client of commands over WebSockets that uses none of Forkyard's own.

use crate::Host;
use serde_json::Value;
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};
use tokio_tungstenite::tungstenite::{
    self, HandshakeError, Message, WebSocket, client::IntoClientRequest, error::Error,
    handshake::client::Request, protocol::frame::coding::CloseCode,
};

/// A WebSocket that is open.
#[derive(Debug)]
pub struct Socket<S>(WebSocket<S>);

/// Number of the answer that a request for a WebSocket got in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub u16);

impl Host {
    /// Opens a WebSocket on the daemon's socket.
    pub fn socket(&self, path: &str) -> Result<Socket<UnixStream>, Refused> {
        let stream = UnixStream::connect(self.folder().join("run/api.sock")).expect("a daemon");
        Socket::open(asked(&format!("ws://forkyard{path}"), &[]), stream)
    }
}

/// A request for a WebSocket that offers these protocols.
pub fn asked(url: &str, protocols: &[&str]) -> Request {
    let mut request = url.into_client_request().expect("a request");
    if !protocols.is_empty() {
        let all = protocols.join(", ").parse().expect("a header");
        request.headers_mut().insert("sec-websocket-protocol", all);
    }
    request
}

impl<S: Read + Write> Socket<S> {
    /// Asks on a connection.
    pub fn open(request: Request, stream: S) -> Result<Self, Refused> {
        match tungstenite::client::client(request, stream) {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(HandshakeError::Failure(Error::Http(answer))) => {
                Err(Refused(answer.status().as_u16()))
            }
            Err(error) => panic!("neither opened nor refused: {error}"),
        }
    }

    /// Says that it leaves, and waits until the daemon has heard that.
    pub fn close(mut self) {
        self.0.close(None).expect("told");
        loop {
            match self.0.read() {
                Ok(_) => {}
                Err(Error::ConnectionClosed) => return,
                Err(error) => panic!("not closed properly: {error}"),
            }
        }
    }

    /// Sends a message.
    pub fn say(&mut self, message: &Value) {
        let text = Message::text(message.to_string());
        self.0.send(text).expect("sent");
    }

    /// The next message; none once the daemon has closed the socket, as it does behind the last.
    fn hear(&mut self) -> Option<Value> {
        loop {
            match self.0.read().expect("a message") {
                Message::Text(text) => return Some(serde_json::from_str(&text).expect("JSON")),
                Message::Close(why) => {
                    assert_eq!(why.expect("a reason").code, CloseCode::Normal);
                    return None;
                }
                Message::Ping(_) | Message::Pong(_) => {}
                other @ (Message::Binary(_) | Message::Frame(_)) => panic!("{other:?}"),
            }
        }
    }

    /// The next message that is not about input that was passed on.
    pub fn told(&mut self) -> Option<Value> {
        loop {
            match self.hear() {
                Some(heard) if heard.get("taken").is_some() => {}
                heard => return heard,
            }
        }
    }
}
