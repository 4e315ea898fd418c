//! Bodies of lines, each JSON, that come while they are answered.

use crate::reply::Refusal;
use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{StatusCode, header},
};
use forkyard_types::ErrorKind;
use futures::{Stream, StreamExt, stream::BoxStream};
use std::{fmt, time::Duration};
use tokio::time::timeout;

/// The kind of a stream of lines of JSON.
pub const LINES: &str = "application/x-ndjson";
/// Most bytes of a line.
pub const LINE: usize = 256 << 10;
/// Time for which input is still read after it is of no use any more.
const FAREWELL: Duration = Duration::from_secs(10);

/// True if a request's body is a stream of lines of JSON.
pub fn is_lines(request: &Request) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';')
        .next()
        .is_some_and(|kind| kind.trim() == LINES)
}

/// Lines of a body, or of messages, that are not empty.
pub struct Lines {
    body: BoxStream<'static, Result<Bytes, Refusal>>,
    pending: Vec<u8>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

impl Lines {
    /// Reads and discards input after the answer is complete. A connection that is closed with unread
    /// bytes is reset, and the client may lose the end of the answer.
    pub async fn drain(mut self) {
        let drained = async { while let Some(Ok(_)) = self.body.next().await {} };
        let _ = timeout(FAREWELL, drained).await;
    }

    /// The lines of this body.
    pub fn new(body: Body) -> Self {
        let pieces = body.into_data_stream();
        let cut_off = |_| refused("the body did not come in whole");
        Self::from_stream(pieces.map(move |piece| piece.map_err(cut_off)))
    }

    /// The lines of pieces, which are cut anywhere.
    pub fn from_stream(
        pieces: impl Stream<Item = Result<Bytes, Refusal>> + Send + 'static,
    ) -> Self {
        Self {
            body: pieces.boxed(),
            pending: Vec::new(),
        }
    }

    /// The next one; none at the end. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Refusal> {
        self.bounded(&format!("a line is longer than {LINE} bytes"))
            .await
    }

    /// The first one, which is a command. Cancel-safe.
    pub async fn command(&mut self) -> Result<Option<Vec<u8>>, Refusal> {
        let text = format!(
            "the command's arguments and environment are longer than {LINE} bytes together: pass what is large on \
             standard input, or in a file of the VM's"
        );
        self.bounded(&text).await
    }

    async fn bounded(&mut self, too_long: &str) -> Result<Option<Vec<u8>>, Refusal> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Ok(Some(line));
            }
            if self.pending.len() > LINE {
                return Err(refused(too_long).answered(StatusCode::PAYLOAD_TOO_LARGE));
            }
            match self.body.next().await {
                Some(Ok(piece)) => self.pending.extend_from_slice(&piece),
                Some(Err(refusal)) => return Err(refusal),
                None if self.pending.trim_ascii().is_empty() => return Ok(None),
                None => return Ok(Some(std::mem::take(&mut self.pending))),
            }
        }
    }
}

fn refused(text: &str) -> Refusal {
    Refusal::new(ErrorKind::Invalid, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::response::IntoResponse;
    use futures::stream;

    fn lines(pieces: &[&'static str]) -> Lines {
        let pieces: Vec<_> = pieces
            .iter()
            .map(|piece| Ok::<_, std::io::Error>(*piece))
            .collect();
        Lines::new(Body::from_stream(stream::iter(pieces)))
    }

    #[tokio::test]
    async fn lines_come_one_by_one_however_they_are_cut_and_empty_ones_are_none() {
        let mut lines = lines(&["\n{\"a\"", ":1}\n\n[2]\n \n", "3"]);
        for wanted in ["{\"a\":1}", "[2]", "3"] {
            let line = lines.next().await.expect("a line").expect("not the end");
            assert_eq!(line.trim_ascii(), wanted.as_bytes());
        }
        assert!(lines.next().await.expect("the end").is_none());
    }

    #[tokio::test]
    async fn a_line_without_end_is_refused_and_not_kept() {
        let long: &'static str = "x".repeat(LINE + 1).leak();
        let error = lines(&[long]).next().await.expect_err("too long");
        assert_eq!(
            error.into_response().status(),
            StatusCode::PAYLOAD_TOO_LARGE
        );
    }

    #[tokio::test]
    async fn a_command_that_is_too_long_is_told_what_is_and_what_to_do() {
        let long: &'static str = "x".repeat(LINE + 1).leak();
        let error = lines(&[long]).command().await.expect_err("too long");
        let response = error.into_response();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let body = axum::body::to_bytes(response.into_body(), 1 << 16).await;
        let body = String::from_utf8(body.expect("short").to_vec()).expect("text");
        assert!(
            body.contains("arguments") && body.contains("standard input"),
            "{body}"
        );
    }

    #[test]
    fn only_the_kind_of_a_body_says_that_it_is_a_stream() {
        for (kind, wanted) in [
            ("application/x-ndjson", true),
            ("application/x-ndjson; charset=utf-8", true),
            ("application/json", false),
        ] {
            let request = Request::builder().header(header::CONTENT_TYPE, kind);
            let request = request.body(Body::empty()).expect("a request");
            assert_eq!(is_lines(&request), wanted, "{kind}");
        }
    }
}
