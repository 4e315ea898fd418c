//! Answers of a gateway's or a front-end's own.

use crate::Unreached;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    Response, StatusCode,
    header::{self, HeaderName, HeaderValue},
};
use std::error::Error;

/// Body of a message, passed on or made here.
pub type ReplyBody = BoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// Program that answers by itself, and the header that tells its answers from those of servers.
#[derive(Clone, Debug)]
pub struct Giver {
    /// Name of the program.
    pub name: &'static str,
    /// Header of the program.
    pub mark: HeaderName,
}

/// A body of these bytes.
pub fn body(bytes: impl Into<Bytes>) -> ReplyBody {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed()
}

/// Reason why a request is not passed on.
#[derive(Debug)]
pub struct ProxyRefusal {
    status: StatusCode,
    why: String,
}

impl ProxyRefusal {
    /// One with this status, for this reason.
    pub fn new(status: StatusCode, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { status, why }
    }

    /// Status of the answer.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Builds the answer of this program.
    pub fn answer(self, by: &Giver) -> Response<ReplyBody> {
        let mut response = Response::new(body(format!("{}: {}\n", by.name, self.why)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(by.mark.clone(), HeaderValue::from_static("1"));
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, text);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Forkyard");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

impl std::fmt::Display for ProxyRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<Unreached> for ProxyRefusal {
    fn from(unreached: Unreached) -> Self {
        let Unreached { status, error, .. } = unreached;
        let why = match error.hint {
            Some(hint) => format!("{}: {hint}", error.message),
            None => error.message,
        };
        Self { status, why }
    }
}
