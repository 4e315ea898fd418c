//! A body that its answer came before.
//!
//! A client that still sends when the connection is closed may lose the answer, which says what is wrong with
//! its request. So what is left is read and thrown away for a while, behind the answer's back. A client that
//! waits for leave to send (`Expect: 100-continue`) is not given it for that, and one that is to ask elsewhere
//! keeps what it has.

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{StatusCode, header},
    middleware::Next,
    response::Response,
};
use futures::StreamExt;
use hyper::body::{Frame, SizeHint};
use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::timeout;

/// Time for which the rest of a request is read.
const PATIENCE: Duration = match cfg!(test) {
    true => Duration::from_secs(3600),
    false => Duration::from_secs(5),
};

/// A body that a route is done with.
#[derive(Debug, Default)]
struct Left {
    body: Option<Body>,
    begun: bool,
}

/// A body that comes back when its route is done with it.
struct Lent {
    body: Body,
    back: Arc<Mutex<Left>>,
    begun: bool,
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.begun = true;
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
        *back = Left {
            body: Some(std::mem::take(&mut self.body)),
            begun: self.begun,
        };
    }
}

/// Reads what the answer to a request leaves of its body.
pub async fn read_out(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let waits = request.headers().contains_key(header::EXPECT);
    let back = Arc::<Mutex<Left>>::default();
    let (head, body) = request.into_parts();
    let lent = Lent {
        body,
        back: back.clone(),
        begun: false,
    };
    let response = next.run(Request::from_parts(head, Body::new(lent))).await;
    let left = std::mem::take(&mut *back.lock().unwrap_or_else(PoisonError::into_inner));
    let elsewhere = response.status() == StatusCode::MISDIRECTED_REQUEST;
    if let Some(body) = left.body.filter(|_| (left.begun || !waits) && !elsewhere) {
        let mut rest = body.into_data_stream();
        // In parts that are dropped as they come. One that sends for longer is cut off.
        tokio::spawn(timeout(PATIENCE, async move {
            while let Some(Ok(_)) = rest.next().await {}
        }));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, middleware::from_fn, routing::get};
    use std::{
        io::{Read, Write},
        net::TcpStream,
    };
    use tokio::{net::TcpListener, task::spawn_blocking};

    const LONG: usize = 8 << 20;

    /// The answer that a client gets that reads it once it has sent all.
    async fn answer(head: &'static str, body: usize) -> String {
        let router = Router::new()
            .route("/", get(async || "read"))
            .layer(from_fn(read_out));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let at = listener.local_addr().expect("an address");
        tokio::spawn(axum::serve(listener, router).into_future());
        let asked = spawn_blocking(move || {
            let mut stream = TcpStream::connect(at).expect("connected");
            stream.write_all(head.as_bytes()).expect("taken");
            stream.write_all(&vec![b'x'; body]).expect("taken");
            let mut answer = [0; 64];
            let read = stream.read(&mut answer).expect("an answer");
            String::from_utf8_lossy(&answer[..read]).into_owned()
        });
        asked.await.expect("no panic")
    }

    fn says(answer: &str, status: StatusCode) -> bool {
        answer.starts_with(&format!("HTTP/1.1 {}", status.as_str()))
    }

    #[tokio::test]
    async fn a_refusal_reaches_a_client_that_sends_all_first() {
        let head = "PATCH / HTTP/1.1\r\nhost: a\r\ncontent-length: 8388608\r\n\r\n";
        let answer = answer(head, LONG).await;
        assert!(says(&answer, StatusCode::METHOD_NOT_ALLOWED), "{answer}");
    }

    #[tokio::test]
    async fn a_refusal_does_not_wait_for_a_body_that_stays_open() {
        let head = "PATCH / HTTP/1.1\r\nhost: a\r\ncontent-length: 8388608\r\n\r\n";
        let answer = answer(head, 1).await;
        assert!(says(&answer, StatusCode::METHOD_NOT_ALLOWED), "{answer}");
    }

    #[tokio::test]
    async fn who_waits_for_leave_to_send_is_refused_at_once() {
        let head = "PATCH / HTTP/1.1\r\nhost: a\r\ncontent-length: 8388608\r\n\
                    expect: 100-continue\r\n\r\n";
        let answer = answer(head, 0).await;
        assert!(says(&answer, StatusCode::METHOD_NOT_ALLOWED), "{answer}");
    }
}
