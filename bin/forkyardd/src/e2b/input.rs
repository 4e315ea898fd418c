//! What requests of the REST API say.

use super::reply::Failure;
use crate::http;
use axum::{
    Json,
    extract::{FromRequestParts, rejection::JsonRejection},
    http::request::Parts,
};

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
        Err(wrong) => Err(Failure::invalid(wrong.body_text())),
    }
}
