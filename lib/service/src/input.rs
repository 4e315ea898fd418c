//! The body of a request, and what is said to one that is not as it should be.

use crate::{
    bodies::{self, Budget},
    lines::Lines,
    reply::Refusal,
};
use axum::{
    Extension, Json, Router,
    body::Bytes,
    extract::{
        self, DefaultBodyLimit, FromRequest, FromRequestParts, Request, rejection::JsonRejection,
    },
    http::{StatusCode, request::Parts},
};
use forkyard_types::{ErrorKind, plainly};
use serde::de::DeserializeOwned;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{KnownFormat, Object, RefOr, Schema, SchemaFormat, Type},
};

/// Most bytes of a request, where nothing else is said.
const BODY: usize = 1 << 20;

/// A body of JSON.
#[derive(Debug)]
pub struct Input<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Input<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let request = not_too_large(request)?;
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

/// A part of the path.
#[derive(Debug)]
pub struct Path<T>(pub T);

#[allow(clippy::disallowed_types, reason = "it refuses in other words")]
impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match extract::Path::from_request_parts(parts, state).await {
            Ok(extract::Path(part)) => Ok(Self(part)),
            Err(rejection) => {
                let text = format!("the path is wrong: {}", cause(&rejection.body_text()));
                Err(Refusal::new(ErrorKind::Invalid, &text).answered(StatusCode::BAD_REQUEST))
            }
        }
    }
}

/// A body of bytes.
#[derive(Debug)]
pub struct Raw(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let request = not_too_large(request)?;
        match Bytes::from_request(request, state).await {
            Ok(body) => Ok(Self(body)),
            Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Err(too_large())
            }
            Err(_) => Err(broken_off()),
        }
    }
}

impl PartialSchema for Raw {
    fn schema() -> RefOr<Schema> {
        let binary = SchemaFormat::KnownFormat(KnownFormat::Binary);
        let bytes = Object::builder().schema_type(Type::String);
        bytes.format(Some(binary)).into()
    }
}

impl ToSchema for Raw {}

fn told(rejection: &JsonRejection) -> Refusal {
    let text = rejection.body_text();
    if matches!(rejection, JsonRejection::MissingJsonContentType(_)) {
        let text = "the body is not said to be JSON: send `Content-Type: application/json`";
        return Refusal::new(ErrorKind::Invalid, text);
    }
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return too_large();
    }
    if matches!(rejection, JsonRejection::BytesRejection(_)) {
        return broken_off();
    }
    let text = format!("the body is wrong: {}", cause(&text));
    Refusal::new(ErrorKind::Invalid, &text)
}

fn broken_off() -> Refusal {
    Refusal::new(ErrorKind::Invalid, "the body did not come in whole")
}

fn too_large() -> Refusal {
    let text = "the body is larger than this request may have";
    Refusal::new(ErrorKind::Exhausted, text).answered(StatusCode::PAYLOAD_TOO_LARGE)
}

/// Says a cause in plain words, without how the framework introduces it.
pub fn cause(text: &str) -> String {
    plainly(match text.split_once(": ") {
        Some((head, cause)) if head.starts_with("Failed to ") => cause,
        Some(_) | None => text,
    })
}

/// Most bytes of a request's body.
#[derive(Clone, Copy, Debug)]
pub struct Most(usize);

/// Layers under which a request's body has so many bytes at most.
pub fn at_most(bytes: usize) -> (DefaultBodyLimit, Extension<Most>) {
    (DefaultBodyLimit::max(bytes), Extension(Most(bytes)))
}

/// Refuses a body by the length that it is said to have, before any of it is read. One that is not far
/// too large is read afterwards, and discarded: its client sends all of it before it hears the answer.
fn not_too_large(request: Request) -> Result<Request, Refusal> {
    let most = request.extensions().get::<Most>().copied();
    match most.zip(bodies::length(&request)) {
        Some((Most(most), length)) if length > most => {
            if length <= bodies::INPUT {
                tokio::spawn(Lines::new(request.into_body()).drain());
            }
            Err(too_large())
        }
        Some(_) | None => Ok(request),
    }
}

/// Refuses paths and methods that there are not, and bodies that are too large.
pub fn in_form<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router
        .fallback(async || Refusal::new(ErrorKind::NotFound, "there is nothing at this path"))
        .method_not_allowed_fallback(async || {
            Refusal::new(ErrorKind::Invalid, "this path does not know this method")
                .answered(StatusCode::METHOD_NOT_ALLOWED)
        })
        .layer(at_most(BODY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{
        body::Body,
        http::Method,
        response::{IntoResponse, Response},
        routing::{get, post},
    };
    use forkyard_types::{ExecRequest, ExportRequest, ForkRequest, TicketId};
    use std::convert::Infallible;
    use tower::ServiceExt;

    async fn answer(refusal: Refusal) -> (StatusCode, serde_json::Value) {
        read(refusal.into_response()).await
    }

    async fn read(response: Response) -> (StatusCode, serde_json::Value) {
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

    fn router() -> Router {
        let large = post(async |_: Input<ExecRequest>| ()).layer(at_most(3 << 20));
        in_form(
            Router::new()
                .route("/typed", post(async |_: Raw| ()))
                .route("/fork", post(async |_: Input<ForkRequest>| ()))
                .route("/exec", large)
                .route("/ticket/{ticket}", get(async |_: Path<TicketId>| ()))
                .route("/disk", get(async |_: Query<ExportRequest>| ())),
        )
    }

    #[tokio::test]
    async fn a_body_that_is_said_to_be_too_large_is_refused_before_it_comes() {
        for path in ["/fork", "/exec", "/typed"] {
            let request = Request::builder().method(Method::POST).uri(path);
            let request = request.header("content-type", "application/json");
            let request = request.header("content-length", "99999999999999");
            let never =
                Body::from_stream(futures::stream::pending::<Result<Vec<u8>, Infallible>>());
            let response = router().oneshot(request.body(never).expect("a request"));
            let (status, _) = read(response.await.expect("an answer")).await;
            assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{path}");
        }
    }

    #[tokio::test]
    async fn requests_wrong_by_their_form_are_told_so_with_the_error_object() {
        let (none, large) = (String::new, || "\"".repeat(2 << 20));
        for (method, path, body, status, kind) in [
            (Method::GET, "/nowhere", none(), 404, "not_found"),
            (Method::DELETE, "/fork", none(), 405, "invalid"),
            (Method::PATCH, "/disk", none(), 405, "invalid"),
            (Method::POST, "/typed", large(), 413, "exhausted"),
            (Method::POST, "/fork", large(), 413, "exhausted"),
            (Method::POST, "/exec", large(), 422, "invalid"),
            (Method::POST, "/exec", large() + &large(), 413, "exhausted"),
            (Method::POST, "/fork", "{".into(), 422, "invalid"),
            (Method::GET, "/ticket/%ff", none(), 400, "invalid"),
            (Method::GET, "/ticket/none", none(), 400, "invalid"),
            (Method::GET, "/disk?format=%ff", none(), 400, "invalid"),
            (
                Method::GET,
                "/disk?format=raw&format=raw",
                none(),
                400,
                "invalid",
            ),
        ] {
            let what = format!("{method} {path}");
            let request = Request::builder().method(method).uri(path);
            let request = request.header("content-type", "application/json");
            let request = request.body(Body::from(body)).expect("a request");
            let response = router().oneshot(request).await.expect("an answer");
            let allowed = response.headers().contains_key("allow");
            let (got, error) = read(response).await;
            assert_eq!(
                (got.as_u16(), &error["kind"]),
                (status, &kind.into()),
                "{what}"
            );
            assert_eq!(allowed, status == 405, "{what}");
            let text = error["message"].as_str().unwrap_or_default();
            assert!(
                !text.is_empty() && !text.contains("Failed to"),
                "{what}: {text}"
            );
        }
    }
}
