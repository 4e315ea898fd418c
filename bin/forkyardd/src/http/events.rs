//! Events as they happen: server-sent events.
//!
//! The end of a body: the reader closes it, the daemon ends, or, with `follow=false`, all was
//! sent. A reader that does not read blocks its own connection alone: events stay in the
//! host's ring, and it is told what it missed.

use super::Query;
use crate::{
    gate::Asker,
    idle::{Busy, Idle},
    reply::Refusal,
};
use axum::{
    extract::{Extension, State},
    http::{HeaderMap, StatusCode},
    response::{
        IntoResponse,
        sse::{Event as Block, Sse},
    },
};
use forkyard_events::{Selection, Subscription};
use forkyard_fork::Host;
use forkyard_types::{ErrorKind, EventsRequest, HostEvent, Since};
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
    fn take(&self, asker: &Asker) -> Result<OwnedSemaphorePermit, Refusal> {
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
struct Sent {
    events: Subscription,
    follow: bool,
    _place: OwnedSemaphorePermit,
    /// A daemon whose events are read does not end by itself.
    _busy: Busy,
}

/// Events of this host, as they happen.
///
/// Server-sent events: `id` is the position in the stream, `data` the event as JSON. A client
/// that names the last `id` it has read, by `since` or by the header `Last-Event-ID`, goes on
/// after it. If events after it are gone, an event `lagged` comes first and says how many; a
/// restart of the daemon begins a new stream, and then the number is not known. A comment with
/// the present `id` is sent every 15 seconds at the latest.
#[utoipa::path(get, path = "/v1/events", operation_id = "events", tag = "host",
    params(EventsRequest, ("Last-Event-ID" = Option<String>, Header, description = "As `since`, and before it: browsers send it")),
    responses((status = 200, body = HostEvent, content_type = "text/event-stream",
        description = "A stream of events; `data` of each is one of these as JSON. It ends with the daemon"), Refusal))]
pub async fn events(
    State(host): State<Arc<Host>>,
    State(idle): State<Idle>,
    State(streams): State<Streams>,
    Extension(asker): Extension<Asker>,
    headers: HeaderMap,
    Query(request): Query<EventsRequest>,
) -> Result<impl IntoResponse, Refusal> {
    let place = streams.take(&asker)?;
    let since = resumed(&headers)?.or(request.since);
    let wanted = Selection {
        kinds: request.kind.0,
        vm: request.vm,
        family: request.family,
    };
    let sent = Sent {
        events: host.events().subscribe(wanted, since),
        follow: request.follow,
        _place: place,
        _busy: idle.busy(),
    };
    Ok(Sse::new(blocks(sent)))
}

/// Position that a client resumes from, by its header.
fn resumed(headers: &HeaderMap) -> Result<Option<Since>, Refusal> {
    let Some(last) = headers.get(LAST) else {
        return Ok(None);
    };
    let since = last.to_str().ok().and_then(|text| text.parse().ok());
    since.map(Some).ok_or_else(|| {
        let text = "Last-Event-ID is no position in a stream of events";
        Refusal::new(ErrorKind::Invalid, text).answered(StatusCode::BAD_REQUEST)
    })
}

fn blocks(sent: Sent) -> impl Stream<Item = Result<Block, axum::Error>> + Send {
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
    use axum::{Router, routing::get};
    use forkyard_client::Client;
    use forkyard_events::Broadcast;
    use forkyard_types::{EventSubject, ImageChanged, Occurrence};
    use std::sync::Mutex;

    /// Far more than buffers on the way hold.
    const EVENTS: u64 = 50_000;

    #[tokio::test]
    async fn a_reader_that_does_not_read_holds_up_nothing_and_is_told_what_it_missed() {
        let events = Broadcast::new(16.try_into().expect("not zero"));
        let sent = Sent {
            events: events.subscribe(Selection::default(), None),
            follow: true,
            _place: Streams::default().take(&Asker::Host).expect("room"),
            _busy: Idle::new().busy(),
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
            let built = Occurrence::ImageChanged(ImageChanged { bytes: None });
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
    fn users_streams_are_bounded_and_keep_nobody_else_out() {
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
