//! Links to other hosts, and their budgets. For the host's operator alone.

use super::{Answer, Input, Path, substrates::for_the_operator};
use crate::gate::Asker;
use crate::reply::Refusal;
use axum::{
    Json,
    extract::{Extension, State},
};
use forkyard_fork::Host;
use forkyard_types::{LinkBudget, LinkView};
use std::sync::Arc;

/// List the links to other hosts that have a budget, or by which blocks of volumes were sent today.
#[utoipa::path(get, path = "/v1/links", operation_id = "list_links", tag = "volumes",
    responses((status = 200, body = Vec<LinkView>, description = "The links"), Refusal))]
pub async fn list(
    State(host): State<Arc<Host>>,
    Extension(asker): Extension<Asker>,
) -> Answer<Vec<LinkView>> {
    for_the_operator(&asker)?;
    Ok(Json(host.link_budgets()))
}

/// Change the budget of the link to a host, for blocks of volumes that nothing waits for. From now on.
#[utoipa::path(put, path = "/v1/links/{host}/budget", operation_id = "set_link_budget", tag = "volumes",
    params(("host" = String, Path, description = "The host, as it is called here")), request_body = LinkBudget,
    responses((status = 200, body = LinkView, description = "The link"), Refusal))]
pub async fn set_budget(
    State(host): State<Arc<Host>>,
    Extension(asker): Extension<Asker>,
    Path(to): Path<String>,
    Input(budget): Input<LinkBudget>,
) -> Answer<LinkView> {
    for_the_operator(&asker)?;
    Ok(Json(host.set_link_budget(&to, budget)?))
}
