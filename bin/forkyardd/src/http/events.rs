//! Events as they happen: server-sent events.

use super::Query;
use crate::{gate::Asker, idle::Idle, reply::Refusal};
use axum::{
    extract::{Extension, State},
    http::HeaderMap,
    response::{IntoResponse, sse::Sse},
};
use forkyard_events::Selection;
use forkyard_fork::Host;
use forkyard_service::streams::{RunningStream, Streams, blocks, resumed};
use forkyard_types::{EventsRequest, HostEvent};
use std::sync::Arc;

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
    let sent = RunningStream {
        events: host.events().subscribe(wanted, since),
        follow: request.follow,
        place,
        // A daemon whose events are read does not end by itself.
        held: idle.busy(),
    };
    Ok(Sse::new(blocks(sent)))
}
