//! Bodies of requests that may be sent a second time, as long as little of them has come.

use axum::body::{Body, Bytes};
use forkyard_types::ByteCount;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

/// Most that is kept of a body.
const KEPT: ByteCount = ByteCount(64 << 10);

/// A body that is sent, and can be sent again from its beginning.
#[derive(Clone, Debug)]
pub struct Replay(Arc<Mutex<Source>>);

#[derive(Debug)]
struct Source {
    body: Body,
    /// Pieces of it that have come; none: more than is kept.
    kept: Option<Vec<Bytes>>,
    /// The sending that may read on.
    current: u32,
}

/// One sending of it.
#[derive(Debug)]
pub struct Sending {
    source: Replay,
    number: u32,
    sent: usize,
}

impl Replay {
    /// Takes a body.
    pub fn new(body: Body) -> Self {
        Self(Arc::new(Mutex::new(Source {
            body,
            kept: Some(Vec::new()),
            current: 0,
        })))
    }

    /// Begins to send it from its beginning, and ends the sending before; none if more has come of
    /// it than 64 KiB.
    pub fn send(&self) -> Option<Sending> {
        let mut source = self.lock();
        source.kept.as_ref()?;
        source.current += 1;
        Some(Sending {
            source: self.clone(),
            number: source.current,
            sent: 0,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Source> {
        // Whole at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let replay = self.source.clone();
        let mut source = replay.lock();
        if source.current != self.number {
            let over = "the request is sent elsewhere";
            return Poll::Ready(Some(Err(axum::Error::new(over))));
        }
        if let Some(piece) = source.kept.as_ref().and_then(|kept| kept.get(self.sent)) {
            let piece = piece.clone();
            self.sent += 1;
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let frame = std::task::ready!(Pin::new(&mut source.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(mut kept) = source.kept.take()
        {
            let whole = frame.data_ref().is_some_and(|piece| {
                kept.push(piece.clone());
                let all = kept.iter().map(|piece| piece.len() as u64).sum::<u64>();
                all <= KEPT.0
            });
            if whole {
                self.sent += 1;
                source.kept = Some(kept);
            } else {
                self.sent = 0;
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let source = self.source.lock();
        let kept = source.kept.as_ref().map_or(0, Vec::len);
        self.sent >= kept && source.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::BodyDataStream;
    use futures::{StreamExt, stream};
    use std::convert::Infallible;

    fn sent(replay: &Replay) -> BodyDataStream {
        let sending = replay.send().expect("little came");
        Body::new(sending).into_data_stream()
    }

    async fn read(sent: &mut BodyDataStream, pieces: usize) -> usize {
        let pieces = sent.take(pieces).map(|piece| piece.expect("sent").len());
        pieces.collect::<Vec<_>>().await.into_iter().sum()
    }

    fn body(pieces: &[usize]) -> Body {
        let pieces: Vec<_> = pieces.iter().map(|size| vec![b'a'; *size]).collect();
        Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, Infallible>)))
    }

    #[tokio::test]
    async fn a_body_of_which_little_came_is_sent_again_whole() {
        let replay = Replay::new(body(&[3, 4, 5]));
        let mut first = sent(&replay);
        assert_eq!(read(&mut first, 2).await, 7);
        assert_eq!(read(&mut sent(&replay), 9).await, 12);
        // The one before reads no more.
        first.next().await.expect("told").expect_err("over");
    }

    #[tokio::test]
    async fn a_body_of_which_much_came_is_not() {
        let replay = Replay::new(body(&[40_000, 40_000, 5]));
        assert_eq!(read(&mut sent(&replay), 9).await, 80_005);
        assert!(replay.send().is_none());
    }
}
