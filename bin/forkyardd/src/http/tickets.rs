//! Tickets.

use super::{Answer, Path, spawned};
use crate::reply::Refusal;
use axum::{Json, extract::State};
use forkyard_fork::Host;
use forkyard_types::{TicketId, TicketView};
use std::sync::Arc;

/// List the tickets of guests on this host that are not used up, and of other hosts' those
/// whose clones are made here.
#[utoipa::path(get, path = "/v1/tickets", operation_id = "list_tickets", tag = "vms",
    responses((status = 200, body = Vec<TicketView>, description = "The tickets"), Refusal))]
pub async fn list(State(host): State<Arc<Host>>) -> Json<Vec<TicketView>> {
    Json(host.ticket_views())
}

/// End a ticket's clones, give back what it promised, and use it up.
#[utoipa::path(delete, path = "/v1/tickets/{ticket}", tag = "vms", operation_id = "remove_ticket",
    params(("ticket" = TicketId, Path, description = "Id of the ticket")),
    responses((status = 200, body = TicketView, description = "The ticket as it was"), Refusal))]
pub async fn remove(
    State(host): State<Arc<Host>>,
    Path(ticket): Path<TicketId>,
) -> Answer<TicketView> {
    let removed = spawned(async move { host.remove_ticket(ticket).await });
    Ok(Json(removed.await?))
}
