//! Requests whose head cannot be read, told so with the error object.
//!
//! No route and no layer sees such a request: the HTTP library answers it with a bare status. What it
//! writes is replaced on its way to the client by the same status with a body as all errors have.

use axum::serve::Listener;
use forkyard_types::{ApiError, ErrorKind};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixListener, UnixStream, unix::SocketAddr},
};

/// Begin of the answer after which a connection is not HTTP's any more.
const UPGRADED: &[u8] = b"HTTP/1.1 101 ";
/// Header of an answer without a body.
const EMPTY: &[u8] = b"content-length: 0\r\n";

/// Statuses that the library answers with by itself, and their meaning here.
const BARE: [(&str, ErrorKind, &str); 3] = [
    (
        "400 Bad Request",
        ErrorKind::Invalid,
        "this cannot be read as a request of HTTP/1.1",
    ),
    (
        "414 URI Too Long",
        ErrorKind::Invalid,
        "the path and the query of the request are too long",
    ),
    (
        "431 Request Header Fields Too Large",
        ErrorKind::Invalid,
        "the path, the query and the headers of the request are too long together",
    ),
];

/// A server's side of a connection.
#[derive(Debug)]
pub struct ServerSide<S> {
    stream: S,
    is_http: bool,
    /// Of an answer that is ours, what is not written yet.
    pending: Vec<u8>,
}

impl<S> ServerSide<S> {
    /// One that speaks HTTP.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            is_http: true,
            pending: Vec::new(),
        }
    }

    /// The connection below.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Takes what is about to be written, if it is to be replaced.
    fn replaces(&mut self, bytes: &[u8]) -> bool {
        self.is_http &= !bytes.starts_with(UPGRADED);
        let answer = self.is_http.then(|| in_full(bytes)).flatten();
        self.pending.extend(answer.iter().flatten());
        answer.is_some()
    }
}

impl<S: AsyncWrite + Unpin> ServerSide<S> {
    fn write_pending(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            let written = Pin::new(&mut self.stream).poll_write(context, &self.pending);
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(self.pending.drain(..written)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The answer with a body, if this is one that the library makes, whole.
fn in_full(bytes: &[u8]) -> Option<Vec<u8>> {
    let status = bytes
        .strip_prefix(b"HTTP/1.1 ")
        .or(bytes.strip_prefix(b"HTTP/1.0 "))?;
    let known = |(status_of, ..): &&(&str, ErrorKind, &str)| {
        status.starts_with(status_of.as_bytes()) && bytes.ends_with(b"\r\n\r\n")
    };
    let (status, kind, message) = BARE.iter().find(known)?;
    if !bytes.windows(EMPTY.len()).any(|part| part == EMPTY) {
        return None;
    }
    let error = ApiError {
        kind: *kind,
        message: (*message).to_owned(),
        hint: None,
    };
    let body = serde_json::to_string(&error).ok()?;
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    Some(answer.into_bytes())
}

impl<S: AsyncRead + Unpin> AsyncRead for ServerSide<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ServerSide<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.write_pending(context))?;
        match this.replaces(bytes) {
            true => Poll::Ready(Ok(bytes.len())),
            false => Pin::new(&mut this.stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.write_pending(context))?;
        let first = pieces.iter().find(|piece| !piece.is_empty());
        match first.filter(|first| this.replaces(first)) {
            Some(first) => Poll::Ready(Ok(first.len())),
            None => Pin::new(&mut this.stream).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.write_pending(context))?;
        Pin::new(&mut this.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.write_pending(context))?;
        Pin::new(&mut this.stream).poll_shutdown(context)
    }
}

/// A Unix socket whose clients are told.
#[derive(Debug)]
pub struct UnixSocket(pub UnixListener);

impl Listener for UnixSocket {
    type Io = ServerSide<UnixStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = Listener::accept(&mut self.0).await;
        (ServerSide::new(stream), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, routing::get};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_head_that_cannot_be_read_is_answered_with_the_error_object() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bound");
        let router = Router::new().route("/", get(async || "here"));
        let serving = tokio::spawn(axum::serve(UnixSocket(listener), router).into_future());
        for (request, status) in [
            (
                "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".to_owned(),
                200,
            ),
            ("nonsense\r\n\r\n".to_owned(), 400),
            (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(70_000)), 414),
            (
                format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(200)),
                431,
            ),
        ] {
            let mut stream = UnixStream::connect(&path).await.expect("connected");
            stream.write_all(request.as_bytes()).await.expect("sent");
            let mut answer = String::new();
            // Its end may be a reset: not all was read.
            let _ = stream.read_to_string(&mut answer).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{answer}"
            );
            let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
            let length = format!("content-length: {}", body.len());
            assert!(head.contains(&length), "{answer}");
            if status != 200 {
                let error: ApiError = serde_json::from_str(body).expect("the error object");
                assert_eq!(error.kind, ErrorKind::Invalid);
            }
        }
        serving.abort();
    }

    #[test]
    fn what_has_a_body_and_what_is_no_answer_of_http_stays_as_it_is() {
        let bare = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        let mut told = ServerSide::new(());
        assert!(!told.replaces(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}"));
        assert!(told.replaces(bare));
        assert!(!told.replaces(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"));
        assert!(!told.replaces(bare));
    }
}
