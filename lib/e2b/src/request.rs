//! Head of a request: its sandbox, port, user and file.

use crate::{ENVD_PORT, SandboxAddress, of_host};
use base64::prelude::{BASE64_STANDARD, Engine};
use http::{HeaderMap, HeaderValue, header};

/// The sandbox that a request is for, and the port there; none if it is for the API.
pub fn target(headers: &HeaderMap, host: Option<&str>) -> Option<SandboxAddress> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    if let Some(id) = text("e2b-sandbox-id") {
        let port = text("e2b-sandbox-port").and_then(|port| port.parse().ok());
        return Some(SandboxAddress {
            id: id.to_owned(),
            port: port.unwrap_or(ENVD_PORT),
        });
    }
    of_host(host.or_else(|| text(header::HOST.as_str()))?)
}

/// The user that `Authorization: Basic` names; it proves nothing.
pub fn user(headers: &HeaderMap) -> Option<String> {
    let value = headers.get("authorization")?.to_str().ok()?;
    let text = BASE64_STANDARD.decode(value.strip_prefix("Basic ")?).ok()?;
    let text = String::from_utf8(text).ok()?;
    let (user, _) = text.split_once(':')?;
    (!user.is_empty()).then(|| user.to_owned())
}

/// A path as the guest has it: one that does not begin at the root begins there, as commands do.
pub fn absolute(path: &str) -> String {
    let path = path.strip_prefix("~/").unwrap_or(path);
    let path = path.strip_prefix("./").unwrap_or(path);
    let path = format!("/{}", path.trim_start_matches('/'));
    match path.trim_end_matches('/') {
        "" => "/".to_owned(),
        plain => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_a_sandbox_before_the_host_does() {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("8080-abc.localhost:3000"));
        let of = |headers: &HeaderMap| target(headers, None).map(|it| (it.id, it.port));
        assert_eq!(of(&headers), Some(("abc".into(), 8080)));
        headers.insert("e2b-sandbox-id", HeaderValue::from_static("xyz"));
        assert_eq!(of(&headers), Some(("xyz".into(), ENVD_PORT)));
        headers.insert("e2b-sandbox-port", HeaderValue::from_static("80"));
        assert_eq!(of(&headers), Some(("xyz".into(), 80)));
        let mut api = HeaderMap::new();
        api.insert("host", HeaderValue::from_static("127.0.0.1:3000"));
        assert_eq!(of(&api), None);
    }

    #[test]
    fn paths_begin_at_the_root_and_end_without_a_slash() {
        for (path, wanted) in [
            ("a/b", "/a/b"),
            ("/a/b/", "/a/b"),
            ("./a", "/a"),
            ("~/a", "/a"),
            ("/", "/"),
            ("", "/"),
            ("//a", "/a"),
        ] {
            assert_eq!(absolute(path), wanted, "{path}");
        }
    }

    #[test]
    fn a_user_is_named_by_basic_authorization() {
        for (value, wanted) in [
            ("Basic cm9vdDo=", Some("root")),
            ("Basic Og==", None),
            ("Bearer cm9vdDo=", None),
            ("Basic !", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("authorization", value.parse().expect("text"));
            assert_eq!(user(&headers).as_deref(), wanted, "{value}");
        }
    }
}
