//! Events as they happen: server-sent events.
//!
//! The end of a body: the reader closes it, the daemon ends, or, with `follow=false`, all was
//! sent. A reader that does not read blocks its own connection alone: events stay in the
//! host's ring, and it is told what it missed.

use crate::{gate::Asker, reply::Refusal};
use axum::{
    http::{HeaderMap, StatusCode},
    response::sse::Event as Block,
};
use forkyard_events::Subscription;
use forkyard_types::{ErrorKind, HostEvent, Since};
use futures::{Stream, StreamExt, stream};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// Streams at once that users of tokens have, and as many that this host and nodes have.
const STREAMS: usize = 64;
/// Longest silence of a stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Time after which a client should try again whose connection broke.
const RETRY: Duration = Duration::from_secs(1);
/// Header of a client that resumes.
const LAST: &str = "last-event-id";

/// Bounds on the number of streams.
#[derive(Clone, Debug)]
pub struct Streams {
    users: Arc<Semaphore>,
    hosts: Arc<Semaphore>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            users: Arc::new(Semaphore::new(STREAMS)),
            hosts: Arc::new(Semaphore::new(STREAMS)),
        }
    }
}

impl Streams {
    /// Takes a stream's place among those of its asker; given back when dropped.
    pub fn take(&self, asker: &Asker) -> Result<OwnedSemaphorePermit, Refusal> {
        let free = match asker {
            Asker::Host | Asker::Node(..) => &self.hosts,
            Asker::User(_) | Asker::Guest => &self.users,
        };
        free.clone().try_acquire_owned().map_err(|_| {
            let text = format!("limit of event streams reached: {STREAMS}");
            Refusal::new(ErrorKind::Exhausted, &text)
                .hinting("close others first")
                .retrying(KEEP_ALIVE)
        })
    }
}

/// A stream under way.
#[derive(Debug)]
pub struct RunningStream<T> {
    /// Events to send.
    pub events: Subscription,
    /// True if it waits for what has not happened yet.
    pub follow: bool,
    /// Permit of a place among the streams.
    pub place: OwnedSemaphorePermit,
    /// Value that lives as long as the stream.
    pub held: T,
}

/// Position that a client resumes from, by its header.
pub fn resumed(headers: &HeaderMap) -> Result<Option<Since>, Refusal> {
    let Some(last) = headers.get(LAST) else {
        return Ok(None);
    };
    let since = last.to_str().ok().and_then(|text| text.parse().ok());
    since.map(Some).ok_or_else(|| {
        let text = "Last-Event-ID is no position in a stream of events";
        Refusal::new(ErrorKind::Invalid, text).answered(StatusCode::BAD_REQUEST)
    })
}

/// The blocks of a stream's body.
pub fn blocks<T: Send>(
    sent: RunningStream<T>,
) -> impl Stream<Item = Result<Block, axum::Error>> + Send {
    // At once, so that a client knows where it is before anything happens.
    let first = still(&sent.events).retry(RETRY);
    let rest = stream::unfold(sent, |mut sent| async {
        let block = match sent.follow {
            true => match timeout(KEEP_ALIVE, sent.events.next()).await {
                Ok(event) => block(&*event?),
                Err(_) => Ok(still(&sent.events)),
            },
            false => block(&*sent.events.try_next()?),
        };
        Some((block, sent))
    });
    stream::once(async { Ok(first) }).chain(rest)
}

fn block(event: &HostEvent) -> Result<Block, axum::Error> {
    Block::default()
        .id(event.cursor().to_string())
        .json_data(event)
}

/// A sign of life, and the position so far: a reader that is sent nothing resumes there.
fn still(events: &Subscription) -> Block {
    Block::default()
        .comment("still")
        .id(events.cursor().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{
        Router,
        response::{IntoResponse, sse::Sse},
        routing::get,
    };
    use forkyard_api_client::Client;
    use forkyard_events::{Broadcast, Selection};
    use forkyard_types::{EventSubject, EventsRequest, ImageChanged, Occurrence};
    use std::sync::Mutex;

    /// Far more than buffers on the way hold.
    const EVENTS: u64 = 50_000;

    #[tokio::test]
    async fn a_reader_that_does_not_read_holds_up_nothing_and_is_told_what_it_missed() {
        let events = Broadcast::new(16.try_into().expect("not zero"));
        let sent = RunningStream {
            events: events.subscribe(Selection::default(), None),
            follow: true,
            place: Streams::default().take(&Asker::Host).expect("room"),
            held: (),
        };
        let once = Arc::new(Mutex::new(Some(sent)));
        let answer = move || {
            let sent = once.lock().expect("whole").take();
            async move { Sse::new(blocks(sent.expect("one reader"))) }
        };
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("api.sock");
        let listener = tokio::net::UnixListener::bind(socket).expect("bound");
        let router = Router::new().route("/v1/events", get(answer));
        let serving = tokio::spawn(axum::serve(listener, router).into_future());
        let client = Client::new(folder.path());
        let reading = client.host_events(EventsRequest::default()).await;
        let mut reader = reading.expect("a stream");
        for number in 0..EVENTS {
            let built = Occurrence::ImageChanged(ImageChanged { built: None });
            events.publish(EventSubject::default(), built);
            if number % 8 == 0 {
                tokio::task::yield_now().await;
            }
        }
        events.close();
        let (mut accounted, mut lagged) = (0, 0);
        while let Some(event) = reader.next().await.expect("whole") {
            if let Occurrence::Lagged(gap) = event.what {
                lagged += 1;
                accounted += gap.missed.expect("known");
            } else {
                accounted += 1;
            }
            assert_eq!(event.seq, accounted, "no gap that was not told of");
        }
        assert_eq!(accounted, EVENTS);
        assert!(lagged > 0);
        serving.abort();
    }

    #[test]
    fn users_streams_are_bounded_and_keep_no_one_else_out() {
        let streams = Streams::default();
        let user = Asker::User("ci".into());
        let held: Vec<_> = (0..STREAMS).map(|_| streams.take(&user)).collect();
        assert!(held.iter().all(Result::is_ok));
        let refused = streams.take(&user).expect_err("as many as may be");
        let refused = refused.into_response();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(streams.take(&Asker::Host).is_ok());
        drop(held);
        assert!(streams.take(&user).is_ok());
    }

    #[test]
    fn a_client_that_resumes_by_a_header_is_heard_or_told_that_it_is_wrong() {
        let mut headers = HeaderMap::new();
        assert_eq!(resumed(&headers).expect("none"), None);
        headers.insert(LAST, "7".parse().expect("text"));
        assert_eq!(resumed(&headers).expect("right"), Some(Since::Seq(7)));
        headers.insert(LAST, "seven".parse().expect("text"));
        let refused = resumed(&headers).expect_err("wrong").into_response();
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    }
}
