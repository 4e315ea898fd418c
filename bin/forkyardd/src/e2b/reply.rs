//! Formats of failures: in the words of the REST API, or in those of Connect.

use crate::reply::Refusal;
use axum::{
    Json,
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use forkyard_e2b::{ErrorBody, error_end};
use forkyard_fork::{HostError, VmError};
use forkyard_types::{ApiError, ErrorKind, GuestPort};
use serde_json::json;
use std::error::Error;

/// A request that did not succeed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub status: StatusCode,
    /// As Connect calls it.
    pub code: &'static str,
    pub message: String,
}

impl Failure {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
        }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_argument", message)
    }

    pub fn exists(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "already_exists", message)
    }

    pub fn unauthorized(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", message)
    }

    pub fn exhausted(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "resource_exhausted", message)
    }

    pub fn unsupported(what: &str) -> Self {
        let text = format!("{what} is not supported by Forkyard's endpoint for E2B clients");
        Self::new(StatusCode::NOT_IMPLEMENTED, "unimplemented", text)
    }

    pub fn too_late() -> Self {
        let text = "the time that the client gave was up";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded", text)
    }

    /// Nothing came from a guest in time.
    pub fn silent(text: &str) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded", text)
    }

    /// As the REST API has it.
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            code: self.status.as_u16(),
            message: self.message.clone(),
        }
    }

    /// As the answer to a call of Connect.
    pub fn rpc(&self) -> Response {
        let body = json!({"code": self.code, "message": self.message});
        (self.status, Json(body)).into_response()
    }

    /// As the end of a stream of Connect, or all of one.
    pub fn end(&self) -> Vec<u8> {
        error_end(self.code, &self.message)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        // Clients try again by themselves what may have been done.
        let never = HeaderValue::from_static("false");
        response.headers_mut().insert("should-retry", never);
        response
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let message = match error.hint {
            Some(hint) => format!("{} ({hint})", error.message),
            None => error.message,
        };
        let (status, code) = match error.kind {
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "invalid_argument"),
            ErrorKind::Conflict => (StatusCode::CONFLICT, "failed_precondition"),
            ErrorKind::Exhausted => (StatusCode::TOO_MANY_REQUESTS, "resource_exhausted"),
            ErrorKind::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthenticated"),
            ErrorKind::Forbidden => (StatusCode::FORBIDDEN, "permission_denied"),
            ErrorKind::Host | ErrorKind::Guest => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            ErrorKind::Timeout => (StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded"),
        };
        Self::new(status, code, message)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        refusal.into_error().into()
    }
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        tracing::info!(error = &error as &dyn Error, "request refused");
        error.to_api().into()
    }
}

impl From<VmError> for Failure {
    fn from(error: VmError) -> Self {
        HostError::from(error).into()
    }
}

/// The answer about a sandbox that does not run: clients know its words.
pub fn gone(id: &str) -> Response {
    told(id, "The sandbox was not found")
}

/// The answer where nothing listens on a port: clients know its words.
pub fn closed(id: &str, port: GuestPort) -> Response {
    told(
        id,
        &format!("The sandbox is running but port is not open: {port}"),
    )
}

fn told(id: &str, message: &str) -> Response {
    let body = json!({"sandboxId": id, "message": message, "code": 502});
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

/// A stream of Connect.
pub fn stream(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/connect+json")], body).into_response()
}
