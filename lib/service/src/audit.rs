//! Audit log: a line for each request that changes something or that shows what is in a
//! guest, with its user and its outcome.
//!
//! Names the asker, the address, the method and the path, never what a body or a query has
//! in it: commands and files may hold secrets. A request whose answer is a stream is
//! noted as that begins. Those that are not let in are told of by the gate.

use crate::gate::{Asker, ConnectionPeer};
use axum::{
    extract::Request,
    http::{Method, StatusCode},
    middleware::Next,
    response::Response,
};
use std::{fmt, time::Instant};

/// Target of its lines.
pub const TARGET: &str = "audit";

/// Ends of paths that show, by `GET`, what is in a guest or on its disk.
const SHOW: [&str; 10] = [
    "archive", "console", "disk", "exec", "files", "folder", "logs", "sessions", "stat", "watch",
];
/// Folders of such paths.
const WITHIN: [&str; 2] = ["ports", "sessions"];

/// Notes a request once there is an answer.
pub async fn note(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    if !is_noted(&method, &path) {
        return next.run(request).await;
    }
    let asker = request.extensions().get::<Asker>().cloned();
    let from = request
        .extensions()
        .get::<ConnectionPeer>()
        .map(|peer| peer.address);
    let began = Instant::now();
    let response = next.run(request).await;
    let line = Line {
        asker: asker.as_ref(),
        from: from.map(|address| address.to_string()),
        method,
        path,
        status: response.status(),
    };
    tracing::info!(target: TARGET, ms = began.elapsed().as_millis(), "{line}");
    response
}

/// Tells whether a request is to be logged.
fn is_noted(method: &Method, path: &str) -> bool {
    let mut ends = path.rsplit('/');
    let last = ends.next().unwrap_or_default();
    let within = ends.next().is_some_and(|folder| WITHIN.contains(&folder));
    !method.is_safe() || SHOW.contains(&last) || within
}

/// Content of a line.
struct Line<'a> {
    asker: Option<&'a Asker>,
    from: Option<String>,
    method: Method,
    path: String,
    status: StatusCode,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.asker {
            None | Some(Asker::Host) => f.write_str("root of this host")?,
            Some(Asker::User(name)) => write!(f, "user {name:?}")?,
            Some(Asker::Node(node, None)) => write!(f, "root of node {node}")?,
            Some(Asker::Node(node, Some(name))) => write!(f, "user {name:?} by node {node}")?,
            Some(Asker::Guest) => f.write_str("a host with an invitation")?,
        }
        if let Some(from) = &self.from {
            write!(f, " from {from}")?;
        }
        let Self {
            method,
            path,
            status,
            ..
        } = self;
        // A path is as it was sent: percent-encoded, without control characters.
        write!(f, ": {method} {path}: {}", status.as_u16())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_something_or_shows_a_guest_is_noted() {
        for (method, path, noted) in [
            (Method::POST, "/v1/vms/a/exec", true),
            (Method::DELETE, "/v1/vms/a", true),
            (Method::GET, "/v1/vms/a/files", true),
            (Method::GET, "/v1/vms/a/logs", true),
            (Method::GET, "/v1/vms/a/console", true),
            (Method::GET, "/v1/vms/a/sessions", true),
            (Method::GET, "/v1/vms/a/sessions/9", true),
            (Method::GET, "/v1/vms/a/exec", true),
            (Method::GET, "/v1/vms/a/ports/80", true),
            (Method::GET, "/v1/vms", false),
            (Method::GET, "/v1/ping", false),
            (Method::GET, "/metrics", false),
        ] {
            assert_eq!(is_noted(&method, path), noted, "{method} {path}");
        }
    }

    #[test]
    fn a_line_names_who_asked_and_is_one_line() {
        let asker = Asker::User("ci\nroot".into());
        let line = Line {
            asker: Some(&asker),
            from: Some("192.0.2.1:5".into()),
            method: Method::POST,
            path: "/v1/vms/a/exec".into(),
            status: StatusCode::OK,
        };
        let told = line.to_string();
        assert_eq!(
            told,
            "user \"ci\\nroot\" from 192.0.2.1:5: POST /v1/vms/a/exec: 200"
        );
    }
}
