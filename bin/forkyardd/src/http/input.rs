//! The body of a request, and what is said to one that is not as it should be.

use super::bodies::{self, Budget};
use crate::reply::Refusal;
use axum::{
    Json,
    extract::{self, FromRequest, FromRequestParts, Request, rejection::JsonRejection},
    http::{StatusCode, request::Parts},
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

/// Parameters of the query string.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        match extract::Query::try_from_uri(&parts.uri) {
            Ok(extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => {
                let text = format!("the query is wrong: {}", cause(&rejection.body_text()));
                Err(Refusal::new(ErrorKind::Invalid, &text).answered(StatusCode::BAD_REQUEST))
            }
        }
    }
}

fn told(rejection: &JsonRejection) -> Refusal {
    let text = rejection.body_text();
    if matches!(rejection, JsonRejection::MissingJsonContentType(_)) {
        let text = "the body is not said to be JSON: send `Content-Type: application/json`";
        return Refusal::new(ErrorKind::Invalid, text);
    }
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let text = "the body is larger than this request may have";
        return Refusal::new(ErrorKind::Exhausted, text).answered(StatusCode::PAYLOAD_TOO_LARGE);
    }
    let text = format!("the body is wrong: {}", cause(&text));
    Refusal::new(ErrorKind::Invalid, &text)
}

/// Cuts off how the framework introduces a cause.
fn cause(text: &str) -> &str {
    match text.split_once(": ") {
        Some((head, cause)) if head.starts_with("Failed to ") => cause,
        Some(_) | None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Body, response::IntoResponse};
    use forkyard_types::{ExecRequest, ExportRequest};

    async fn answer(refusal: Refusal) -> (StatusCode, serde_json::Value) {
        let response = refusal.into_response();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 16).await;
        let body = serde_json::from_slice(&body.expect("a body")).expect("the error object");
        (status, body)
    }

    #[tokio::test]
    async fn wrong_query_is_a_400_with_the_error_object_and_no_word_of_the_framework() {
        let request = Request::builder()
            .uri("/?format=nosuch")
            .body(Body::empty());
        let (mut parts, _) = request.expect("a request").into_parts();
        let refused = Query::<ExportRequest>::from_request_parts(&mut parts, &()).await;
        let (status, body) = answer(refused.expect_err("refused")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(body["kind"], "invalid");
        let message = body["message"].as_str().expect("a message");
        assert!(!message.contains("Failed to"), "{message}");
    }

    #[tokio::test]
    async fn wrong_body_is_told_of_without_a_word_of_the_framework() {
        let request = Request::builder()
            .header("content-type", "application/json")
            .body(Body::from(r#"{"argv": [[]]}"#));
        let refused = Input::<ExecRequest>::from_request(request.expect("a request"), &()).await;
        let (status, body) = answer(refused.expect_err("refused")).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        let message = body["message"].as_str().expect("a message");
        assert!(
            message.starts_with("the body is wrong: argv[0]"),
            "{message}"
        );
    }
}
