//! Police of the guests of this host.

use super::{Answer, Input, spawned};
use crate::{police::Station, reply::Refusal};
use axum::{Json, extract::State};
use forkyard_police::PoliceError;
use forkyard_types::{PoliceSettings, PoliceState};
use std::error::Error;

/// Show the police of this host's VMs: those that it named, and those that it has capped.
#[utoipa::path(get, path = "/v1/friendly/police", operation_id = "police", tag = "friendly",
    responses((status = 200, body = PoliceState, description = "The state; 404 if there is no police"), Refusal))]
pub async fn show(State(police): State<Station>) -> Answer<PoliceState> {
    Ok(Json(police.state().await.map_err(refusal)?))
}

/// Have this host's VMs policed: those that have more than a fair share of its CPUs while others
/// wait, and do not yield, are named, and capped if they are to be. Done again with the same
/// settings, it goes on for the time that they say, if it would not go on longer. Where VMs are scheduled already, none can be
/// capped (409).
#[utoipa::path(put, path = "/v1/friendly/police", operation_id = "begin_police", tag = "friendly",
    request_body = PoliceSettings,
    responses((status = 200, body = PoliceState, description = "The state"), Refusal))]
pub async fn begin(
    State(police): State<Station>,
    Input(settings): Input<PoliceSettings>,
) -> Answer<PoliceState> {
    let begun = async move { police.begin(settings).await.map_err(refusal) };
    Ok(Json(spawned(begun).await?))
}

/// End it. All VMs that it capped are let go.
#[utoipa::path(delete, path = "/v1/friendly/police", operation_id = "end_police", tag = "friendly",
    responses((status = 200, body = PoliceState, description = "Its last state; 404 if there is no police"), Refusal))]
pub async fn end(State(police): State<Station>) -> Answer<PoliceState> {
    let ended = async move { police.end().await.map_err(refusal) };
    Ok(Json(spawned(ended).await?))
}

fn refusal(error: PoliceError) -> Refusal {
    tracing::info!(error = &error as &dyn Error, "request refused");
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    let causes: String = causes.map(|cause| format!(": {cause}")).collect();
    let refusal = Refusal::new(error.kind(), &format!("{error}{causes}"));
    match error.hint() {
        Some(hint) => refusal.hinting(hint),
        None => refusal,
    }
}
