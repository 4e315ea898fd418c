//! Translation of errors into HTTP answers: the one place that knows status
//! codes.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use forkyard_auth::{Refused, TokenError};
use forkyard_cluster::ClusterError;
use forkyard_fork::{HostError, VmError};
use forkyard_types::{ApiError, ErrorKind, cut};
use std::{collections::BTreeMap, error::Error, time::Duration};
use utoipa::{
    IntoResponses, ToSchema,
    openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder, response},
};

/// Most bytes of a message.
const MESSAGE: usize = 4096;

/// Every kind of error, its status code, and what it means.
const KINDS: [(ErrorKind, StatusCode, &str); 9] = [
    (
        ErrorKind::Unauthorized,
        StatusCode::UNAUTHORIZED,
        "No token came with the request, or none that holds; over the network only",
    ),
    (
        ErrorKind::Forbidden,
        StatusCode::FORBIDDEN,
        "Not for clients over the network",
    ),
    (
        ErrorKind::NotFound,
        StatusCode::NOT_FOUND,
        "No such VM, image, ticket, token or path",
    ),
    (
        ErrorKind::Conflict,
        StatusCode::CONFLICT,
        "The VM is in a state that does not allow it, or a name is taken",
    ),
    (
        ErrorKind::Invalid,
        StatusCode::UNPROCESSABLE_ENTITY,
        "The request is invalid",
    ),
    (
        ErrorKind::Exhausted,
        StatusCode::TOO_MANY_REQUESTS,
        "A limit of the host, of the family or of the request is reached; `Retry-After` says when to try again, if waiting helps",
    ),
    (
        ErrorKind::Host,
        StatusCode::INTERNAL_SERVER_ERROR,
        "The host failed: QEMU, kernel, disk",
    ),
    (
        ErrorKind::Guest,
        StatusCode::BAD_GATEWAY,
        "The guest did not answer, or answered nonsense",
    ),
    (
        ErrorKind::Timeout,
        StatusCode::GATEWAY_TIMEOUT,
        "The operation took longer than allowed",
    ),
];

/// Status codes of requests that fail by their form, whose kind is `invalid` or,
/// of those that are too large, `exhausted`.
const FORMS: [(StatusCode, &str); 3] = [
    (
        StatusCode::BAD_REQUEST,
        "The path or the query string is wrong",
    ),
    (
        StatusCode::METHOD_NOT_ALLOWED,
        "The path does not know this method; `Allow` lists those it knows",
    ),
    (
        StatusCode::PAYLOAD_TOO_LARGE,
        "The body is larger than this request may have",
    ),
];

/// A request that did not succeed.
#[derive(Debug)]
pub struct Refusal {
    error: ApiError,
    status: Option<StatusCode>,
    retry: Option<Duration>,
}

impl Refusal {
    /// One that has no cause beyond what it says.
    pub fn new(kind: ErrorKind, message: &str) -> Self {
        Self {
            error: ApiError {
                kind,
                message: message.to_owned(),
                hint: None,
            },
            status: None,
            retry: None,
        }
    }

    /// The handler itself broke.
    pub fn bug(panic: &tokio::task::JoinError) -> Self {
        tracing::error!(%panic, "a request's task broke off");
        let hint = "its log says where; please report it";
        Self::new(
            ErrorKind::Host,
            "the daemon failed to handle the request: this is a bug",
        )
        .hinting(hint)
    }

    /// The error, without what HTTP adds.
    pub fn into_error(self) -> ApiError {
        self.error
    }

    /// Answers with another status code than its kind has.
    pub fn answered(self, status: StatusCode) -> Self {
        Self {
            status: Some(status),
            ..self
        }
    }

    /// And what can be done about it.
    pub fn hinting(mut self, hint: &str) -> Self {
        self.error.hint = Some(hint.to_owned());
        self
    }
}

impl Refusal {
    /// Says after which time another try may succeed.
    pub fn retrying(self, after: Duration) -> Self {
        Self {
            retry: Some(after),
            ..self
        }
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self {
            error,
            status: None,
            retry: None,
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

impl From<HostError> for Refusal {
    fn from(error: HostError) -> Self {
        tracing::info!(error = &error as &dyn Error, "request refused");
        error.to_api().into()
    }
}

impl From<VmError> for Refusal {
    fn from(error: VmError) -> Self {
        HostError::from(error).into()
    }
}

impl From<ClusterError> for Refusal {
    fn from(error: ClusterError) -> Self {
        tracing::info!(error = &error as &dyn Error, "request refused");
        error.to_api().into()
    }
}

impl From<TokenError> for Refusal {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Store(error) => HostError::from(error).into(),
            TokenError::NoSuchToken { .. } => Self::new(ErrorKind::NotFound, &error.to_string())
                .hinting("`forkyard token ls` lists the tokens"),
            TokenError::Name { .. } | TokenError::Lifetime { .. } => {
                Self::new(ErrorKind::Invalid, &error.to_string())
            }
            TokenError::Random(_) => {
                tracing::warn!(error = &error as &dyn Error, "no token");
                Self::new(ErrorKind::Host, &error.to_string())
            }
        }
    }
}

impl From<Refused> for Refusal {
    fn from(error: Refused) -> Self {
        let text = error.to_string();
        match error {
            Refused::Store(error) => HostError::from(error).into(),
            Refused::NoToken | Refused::Unknown | Refused::Expired { .. } => Self::new(ErrorKind::Unauthorized, &text).hinting(
                "`forkyard token create NAME` on the host makes one; give it as FORKYARD_TOKEN, or as `Authorization: Bearer …`",
            ),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let kind = self.error.kind;
        crate::counts::refused(kind);
        let status = KINDS.iter().find(|(known, ..)| *known == kind);
        let status = status.map_or(StatusCode::INTERNAL_SERVER_ERROR, |(_, status, _)| *status);
        let status = self.status.unwrap_or(status);
        let mut error = self.error;
        // It may name what was sent.
        error.message = cut(&error.message, MESSAGE).into_owned();
        let mut response = (status, Json(error)).into_response();
        let headers = response.headers_mut();
        if kind == ErrorKind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(wait) = self.retry {
            // Rounded up: what is tried too early fails again.
            headers.insert(header::RETRY_AFTER, (wait.as_secs() + 1).into());
        }
        response
    }
}

impl IntoResponses for Refusal {
    fn responses() -> BTreeMap<String, RefOr<response::Response>> {
        let described = |(status, text): (StatusCode, &str)| {
            let schema = Ref::from_schema_name(ApiError::name());
            let content = ContentBuilder::new().schema(Some(schema)).build();
            let response = ResponseBuilder::new()
                .description(text)
                .content("application/json", content);
            (status.as_str().to_owned(), response.build().into())
        };
        let kinds = KINDS.map(|(_, status, text)| (status, text));
        kinds.into_iter().chain(FORMS).map(described).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_has_a_status_code_of_its_own() {
        let codes: std::collections::BTreeSet<_> =
            KINDS.iter().map(|(_, code, _)| code.as_u16()).collect();
        assert_eq!(codes.len(), KINDS.len());
        let all = serde_json::to_value(<ErrorKind as utoipa::PartialSchema>::schema());
        let all = all.expect("a schema");
        let all = all["enum"].as_array().or(all["oneOf"].as_array());
        assert_eq!(all.expect("its kinds").len(), KINDS.len());
    }

    #[test]
    fn a_client_that_may_try_again_is_told_when() {
        let refusal =
            Refusal::new(ErrorKind::Exhausted, "full").retrying(Duration::from_millis(2500));
        let response = refusal.into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "3");
    }
}
