//! The body of a request, and what is said to one that is not as it should be.

use super::bodies::{self, Budget};
use crate::reply::Refusal;
use axum::{
    Json,
    extract::{FromRequest, Request, rejection::JsonRejection},
    http::StatusCode,
};
use forkyard_types::ErrorKind;
use serde::de::DeserializeOwned;

/// A body of JSON.
#[derive(Debug)]
pub struct Input<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Input<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        if let Some(budget) = request.extensions().get::<Budget>().cloned() {
            budget.take(bodies::length(&request)).await?;
        }
        match Json::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(told(&rejection)),
        }
    }
}

fn told(rejection: &JsonRejection) -> Refusal {
    let kind = match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ErrorKind::Exhausted,
        _ => ErrorKind::Invalid,
    };
    Refusal::new(kind, &rejection.body_text())
}
