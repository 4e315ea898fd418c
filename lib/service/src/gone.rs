//! Clients that close their connection while nothing is read from it.
//!
//! The HTTP library finds out when it reads, and it does not read while a command leaves its input unread.
//! The kernel tells without a read.

use crate::lines::is_lines;
use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use forkyard_sys_host::peer::WatchedConnection;
use futures::StreamExt;
use std::{future::pending, os::fd::AsFd};

/// Connection that a request came on.
#[derive(Clone, Debug)]
pub struct Connection(WatchedConnection);

impl Connection {
    /// The one of this socket; none if there is no descriptor left to watch it by.
    pub fn of(socket: &impl AsFd) -> Option<Self> {
        WatchedConnection::of(socket).ok().map(Self)
    }

    /// Resolves when the other side has closed. Cancel-safe.
    async fn closed(self) {
        if self.0.closed().await.is_err() {
            pending().await
        }
    }
}

/// Ends the answer to a stream of lines when its client has gone.
pub async fn end_with_client(request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<Connection>().cloned();
    let watched = connection.filter(|_| is_lines(&request));
    let response = next.run(request).await;
    match watched {
        Some(connection) => response.map(|body| {
            let parts = body.into_data_stream();
            Body::from_stream(parts.take_until(Box::pin(connection.closed())))
        }),
        None => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{
        Router, body::Bytes, extract::Extension, http::header, middleware::from_fn, routing::post,
    };
    use hyper::{body::Incoming, server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use std::{convert::Infallible, sync::Arc};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{UnixListener, UnixStream},
        sync::mpsc,
    };
    use tower::ServiceExt;

    /// A server whose answers end with the channel, and that reads nothing of a request.
    async fn served(answers: mpsc::Receiver<Bytes>) -> (tempfile::TempDir, UnixStream) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).expect("bound");
        let client = UnixStream::connect(&path).await.expect("connected");
        let (server, _) = listener.accept().await.expect("accepted");
        let connection = Connection::of(&server).expect("a descriptor");
        let answers = Arc::new(tokio::sync::Mutex::new(Some(answers)));
        let routes = Router::new()
            .route(
                "/",
                post(async move |request: Request| {
                    let answers = answers.lock().await.take().expect("one request");
                    let held = (answers, request);
                    let parts = futures::stream::unfold(held, |(mut answers, request)| async {
                        let part = answers.recv().await?;
                        Some((Ok::<_, Infallible>(part), (answers, request)))
                    });
                    Body::from_stream(parts)
                }),
            )
            .layer(from_fn(end_with_client))
            .layer(Extension(connection));
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            routes.clone().oneshot(request.map(Body::new))
        });
        let served = http1::Builder::new().serve_connection(TokioIo::new(server), service);
        tokio::spawn(served);
        (folder, client)
    }

    async fn asked(client: &mut UnixStream) {
        let head = format!(
            "POST / HTTP/1.1\r\nhost: a\r\n{}: application/x-ndjson\r\ncontent-length: 9000000\r\n\r\n",
            header::CONTENT_TYPE
        );
        client.write_all(head.as_bytes()).await.expect("asked");
    }

    #[tokio::test]
    async fn an_answer_ends_with_a_client_that_closes_behind_unread_input() {
        let (answers, told) = mpsc::channel(1);
        let (_folder, mut client) = served(told).await;
        asked(&mut client).await;
        answers.send("x".into()).await.expect("taken");
        client.read_exact(&mut [0; 40]).await.expect("an answer");
        // As much as there is room for.
        while client.try_write(&[7; 4096]).is_ok() {}
        assert!(!answers.is_closed());
        drop(client);
        answers.closed().await;
    }

    #[tokio::test]
    async fn a_client_that_stays_hears_all() {
        let (answers, told) = mpsc::channel(1);
        let (_folder, mut client) = served(told).await;
        asked(&mut client).await;
        for _ in 0..3 {
            client.write_all(&[7; 4096]).await.expect("sent");
            answers.send("part".into()).await.expect("taken");
        }
        drop(answers);
        let mut all = Vec::new();
        while !all.ends_with(b"0\r\n\r\n") {
            let mut more = [0; 512];
            let read = client.read(&mut more).await.expect("an answer");
            assert_ne!(read, 0);
            all.extend(&more[..read]);
        }
        let parts = String::from_utf8_lossy(&all).matches("part").count();
        assert_eq!(parts, 3);
    }
}
