//! Tokens: given out and taken back on the Unix socket alone, so that none
//! can make others and outlive its own end.

use super::{Answer, Input, Path, Shared};
use crate::reply::Refusal;
use axum::{Json, extract::State, http::StatusCode};
use forkyard_auth::Access;
use forkyard_types::{TokenGrant, TokenRequest, TokenView};
use std::sync::Arc;

/// List the tokens, expired ones included.
#[utoipa::path(get, path = "/v1/tokens", operation_id = "list_tokens", tag = "tokens",
    responses((status = 200, body = Vec<TokenView>, description = "The tokens, without their secrets"), Refusal))]
pub async fn list(State(access): State<Arc<Access>>) -> Answer<Vec<TokenView>> {
    Ok(Json(access.list()?))
}

/// Give out a token. Not over the network.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = TokenRequest,
    responses((status = 201, body = TokenGrant, description = "The token, shown this once"), Refusal))]
pub async fn create(
    State(shared): State<Shared>,
    Input(request): Input<TokenRequest>,
) -> Result<(StatusCode, Json<TokenGrant>), Refusal> {
    let (view, token) = shared.access.grant(request, crate::now())?;
    let grant = TokenGrant {
        view,
        token,
        remote: shared.remote,
    };
    Ok((StatusCode::CREATED, Json(grant)))
}

/// Take a token back: requests that come with it from now on are refused. Not
/// over the network.
#[utoipa::path(delete, path = "/v1/tokens/{token}", operation_id = "remove_token", tag = "tokens", params(("token" = String, Path, description = "Name or id")),
    responses((status = 200, body = TokenView, description = "The token as it was"), Refusal))]
pub async fn remove(
    State(access): State<Arc<Access>>,
    Path(token): Path<String>,
) -> Answer<TokenView> {
    Ok(Json(access.revoke(&token)?))
}
