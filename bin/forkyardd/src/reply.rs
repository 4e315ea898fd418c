//! How an error leaves by HTTP: the one place that knows status codes.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use forkyard_fork::HostError;
use forkyard_types::{ApiError, ErrorKind};

/// A request that did not succeed.
#[derive(Debug)]
pub struct Refusal(ApiError);

impl Refusal {
    /// The handler itself broke.
    pub fn bug(panic: &tokio::task::JoinError) -> Self {
        tracing::error!(%panic, "a request's task broke off");
        Self(ApiError {
            kind: ErrorKind::Host,
            message: "the daemon failed to handle the request: this is a bug".into(),
            hint: Some("its log says where; please report it".into()),
        })
    }
}

impl From<HostError> for Refusal {
    fn from(error: HostError) -> Self {
        tracing::info!(error = &error as &dyn std::error::Error, "request refused");
        Self(error.to_api())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.0.kind {
            ErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Exhausted => StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::Guest => StatusCode::BAD_GATEWAY,
            ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::Host => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(self.0)).into_response()
    }
}
