//! Tickets.

use crate::reply::Refusal;
use axum::{Json, extract::State};
use forkyard_fork::Host;
use forkyard_types::TicketView;
use std::sync::Arc;

/// List the tickets of guests on this host that are not used up, and of other hosts' those
/// whose clones are made here.
#[utoipa::path(get, path = "/v1/tickets", operation_id = "list_tickets", tag = "vms",
    responses((status = 200, body = Vec<TicketView>, description = "The tickets"), Refusal))]
pub async fn list(State(host): State<Arc<Host>>) -> Json<Vec<TicketView>> {
    Json(host.ticket_views())
}
