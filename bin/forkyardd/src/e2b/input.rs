//! Bodies and queries of requests of the REST API.

use super::{BODY, E2b, reply::Failure};
use crate::{gate::Asker, http};
use axum::{
    Json,
    extract::{FromRequestParts, Request, State, rejection::JsonRejection},
    http::request::Parts,
    middleware::Next,
    response::{IntoResponse, Response},
};
use forkyard_service::input::cause;

/// Id of a sandbox in a path.
#[derive(Debug)]
pub struct Path(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Path {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match http::Path::from_request_parts(parts, state).await {
            Ok(http::Path(id)) => Ok(Self(id)),
            Err(_) => Err(Failure::invalid("the path is wrong: an id is UTF-8")),
        }
    }
}

/// The body of a request, or why it is none.
pub fn body<T>(body: Result<Json<T>, JsonRejection>) -> Result<T, Failure> {
    match body {
        Ok(Json(body)) => Ok(body),
        Err(wrong) => Err(Failure::invalid(cause(&wrong.body_text()))),
    }
}

/// Has the body of a request count until it is answered.
pub async fn counted(State(e2b): State<E2b>, request: Request, next: Next) -> Response {
    let room = e2b.bodies.of(request.extensions().get::<Asker>());
    match room.take_for(request.body(), BODY).await {
        Ok(()) => next.run(request).await,
        Err(full) => Failure::from(full).into_response(),
    }
}

/// Runs work to its end whatever becomes of the client.
pub async fn spawned<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    tokio::spawn(work).await.unwrap_or_else(|panic| {
        tracing::error!(%panic, "a request's task broke off");
        let kind = forkyard_types::ErrorKind::Host;
        let message = "the daemon failed to handle the request: this is a bug".to_owned();
        Err(forkyard_types::ApiError {
            kind,
            message,
            hint: None,
        }
        .into())
    })
}
