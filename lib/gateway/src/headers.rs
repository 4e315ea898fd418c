//! Headers that a gateway or a front-end reads or writes: the client, the address, and the origin.

use crate::{Form, ProxyRefusal, Target};
use hyper::{
    HeaderMap, Method, Request, StatusCode,
    body::Body,
    header::{self, HeaderName, HeaderValue},
};
use std::net::IpAddr;

/// Target of a request, as its head gives it.
#[derive(Debug)]
pub struct RequestTarget {
    /// Host, with its port if that is said.
    pub host: String,
    /// Path and query.
    pub path: String,
}

impl RequestTarget {
    /// Reads a request's head; refuses one that says two things, or that would be another message
    /// by the time it reached its server.
    pub fn of<B: Body>(request: &Request<B>) -> Result<Self, ProxyRefusal> {
        let bad = |why: &str| ProxyRefusal::new(StatusCode::BAD_REQUEST, why);
        let headers = request.headers();
        if request.method() == Method::CONNECT {
            let why = "CONNECT is not passed on";
            return Err(ProxyRefusal::new(StatusCode::METHOD_NOT_ALLOWED, why));
        }
        if headers.get_all(header::HOST).iter().count() > 1 {
            return Err(bad("two hosts are named"));
        }
        let coding = headers.get_all(header::TRANSFER_ENCODING).iter();
        let mut coding = coding.map(|it| it.as_bytes().trim_ascii());
        if coding.any(|it| !it.eq_ignore_ascii_case(b"chunked")) {
            let why = "no transfer coding but chunked is passed on";
            return Err(ProxyRefusal::new(StatusCode::NOT_IMPLEMENTED, why));
        }
        let length = headers.contains_key(header::CONTENT_LENGTH);
        let bodiless = [Method::GET, Method::HEAD].contains(request.method());
        if bodiless && !length && !request.body().is_end_stream() {
            let why = "a GET with a body has to say how long that is";
            return Err(ProxyRefusal::new(StatusCode::LENGTH_REQUIRED, why));
        }
        // What the request line says counts (RFC 9112, 3.2.2).
        let host = match request.uri().authority() {
            Some(authority) => authority.as_str().to_owned(),
            None => {
                let host = headers.get(header::HOST);
                let host = host.map_or(Ok("localhost"), HeaderValue::to_str);
                host.map_err(|_| bad("the host is no name"))?.to_owned()
            }
        };
        let path = request.uri().path_and_query();
        let path = path.map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { host, path })
    }

    /// True if the host is the domain itself, `localhost` or an IP address: no name of another
    /// domain that has been pointed at this gateway.
    pub fn is_of(&self, domain: &str) -> bool {
        let name = match self.host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
            _ => &self.host,
        };
        let literal = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        literal || name.eq_ignore_ascii_case(domain) || name.eq_ignore_ascii_case("localhost")
    }
}

/// Refuses what a page of another origin has a browser ask with a cookie: pages of other VMs are of
/// the same site, for which browsers send it.
pub fn same_origin(headers: &HeaderMap, asked: &RequestTarget) -> Result<(), ProxyRefusal> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let origin = origin.to_str().ok();
    let host = origin.and_then(|origin| origin.split_once("://"));
    match host.is_some_and(|(_, host)| host.eq_ignore_ascii_case(&asked.host)) {
        true => Ok(()),
        false => Err(ProxyRefusal::new(
            StatusCode::FORBIDDEN,
            "a page of another origin asks for this: it needs a token of its own, in the header X-Forkyard-Token",
        )),
    }
}

/// Adds the client, and the address it asked by, to what goes to `target` or to a name of its own; what a client says of that itself is not passed
/// on, however it is spelled: servers by CGI take `_` for `-`.
pub fn forwarded(
    headers: &mut HeaderMap,
    asked: &RequestTarget,
    target: Option<&Target>,
    from: IpAddr,
    tls: bool,
) {
    let ours = |name: &HeaderName| {
        let name = name.as_str().replace('_', "-");
        let alike = ["forwarded", "x-real-ip", "x-forkyard-token"];
        name.starts_with("x-forwarded-") || alike.contains(&name.as_str())
    };
    let claimed: Vec<_> = headers.keys().filter(|name| ours(name)).cloned().collect();
    for name in claimed {
        headers.remove(name);
    }
    let scheme = if tls { "https" } else { "http" };
    let from = from.to_canonical().to_string();
    let said = [
        (header::HOST, Some(asked.host.clone())),
        (HeaderName::from_static("x-forwarded-for"), Some(from)),
        (
            HeaderName::from_static("x-forwarded-host"),
            Some(asked.host.clone()),
        ),
        (
            HeaderName::from_static("x-forwarded-proto"),
            Some(scheme.to_owned()),
        ),
        (
            HeaderName::from_static("x-forwarded-prefix"),
            target.and_then(Target::prefix),
        ),
    ];
    for (name, value) in said {
        if let Some(Ok(value)) = value.map(|value| HeaderValue::from_str(&value)) {
            headers.insert(name, value);
        }
    }
    if target.is_some_and(|target| target.form == Form::Path) {
        // All ports share this origin: what one has set is not the others' matter.
        headers.remove(header::COOKIE);
        headers.remove(header::REFERER);
    }
}

/// Takes away of an answer what would reach beyond its port, where all share an origin.
pub fn of_shared_origin(headers: &mut HeaderMap) {
    headers.remove(header::SET_COOKIE);
    headers.remove("service-worker-allowed");
    let none = HeaderValue::from_static("no-referrer");
    headers.insert(header::REFERRER_POLICY, none);
}

/// The path, as one that leads to no other host: browsers take `\\` for `/`, and two of them for
/// the beginning of a host's name.
pub fn own_path(path: &str) -> String {
    format!("/{}", path.trim_start_matches(['/', '\\']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Empty;

    type Sent = Request<Empty<&'static [u8]>>;

    fn request(method: Method, uri: &str, all: &[(&str, &str)]) -> Sent {
        let mut request = Request::new(Empty::new());
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse().expect("a URI");
        for (name, value) in all {
            let name: HeaderName = name.parse().expect("a name");
            let value = value.parse().expect("a value");
            request.headers_mut().append(name, value);
        }
        request
    }

    fn asked(host: &str) -> RequestTarget {
        let (host, path) = (host.to_owned(), "/".to_owned());
        RequestTarget { host, path }
    }

    #[test]
    fn a_request_names_one_host_and_the_request_line_counts() {
        let of =
            |uri: &str, all: &[(&str, &str)]| RequestTarget::of(&request(Method::GET, uri, all));
        assert_eq!(of("/x?y", &[("host", "a")]).expect("one").host, "a");
        let line = of("http://b:80/x?y", &[("host", "a")]).expect("one");
        assert_eq!((line.host.as_str(), line.path.as_str()), ("b:80", "/x?y"));
        assert_eq!(of("/", &[]).expect("none").host, "localhost");
        of("/", &[("host", "a"), ("host", "b")]).expect_err("two");
        of("/", &[("transfer-encoding", "gzip, chunked")]).expect_err("unknown");
        RequestTarget::of(&request(Method::CONNECT, "a:80", &[])).expect_err("CONNECT");
    }

    #[test]
    fn without_tokens_a_path_is_refused_at_names_of_other_domains() {
        for (host, own) in [
            ("vms.test", true),
            ("VMS.test:8000", true),
            ("127.0.0.1:8000", true),
            ("[::1]:8000", true),
            ("localhost:8000", true),
            ("evil.test", false),
            ("evil.vms.test", false),
        ] {
            assert_eq!(asked(host).is_of("vms.test"), own, "{host}");
        }
    }

    #[test]
    fn a_cookie_serves_pages_of_its_own_origin_alone() {
        let asks = |origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().expect("text"));
            }
            same_origin(&headers, &asked("8080-p.vms.test:8443")).is_ok()
        };
        assert!(asks(None), "no page asks");
        assert!(asks(Some("https://8080-p.vms.test:8443")));
        assert!(!asks(Some("https://9-evil.vms.test:8443")));
        assert!(!asks(Some("null")));
    }

    #[test]
    fn what_clients_say_of_themselves_is_not_believed() {
        let target = Target::of(Some("x"), "/vms/p/ports/80/", "vms.test").expect("a port");
        let mut headers = request(
            Method::GET,
            "/",
            &[
                ("x-forwarded-for", "6.6.6.6"),
                ("x_forwarded_for", "6.6.6.6"),
                ("x-forwarded-port", "6"),
                ("x-real-ip", "6.6.6.6"),
                ("cookie", "a=b"),
                ("accept", "*/*"),
            ],
        );
        let from = "::ffff:192.0.2.7".parse().expect("an address");
        forwarded(
            headers.headers_mut(),
            &asked("g:80"),
            Some(&target),
            from,
            true,
        );
        let mut said: Vec<_> = headers.headers().iter().collect();
        said.sort_by_key(|(name, _)| name.as_str().to_owned());
        let said: Vec<_> = said
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_str().expect("text")))
            .collect();
        assert_eq!(
            said,
            [
                "accept=*/*",
                "host=g:80",
                "x-forwarded-for=192.0.2.7",
                "x-forwarded-host=g:80",
                "x-forwarded-prefix=/vms/p/ports/80",
                "x-forwarded-proto=https",
            ]
        );
    }

    #[test]
    fn no_path_leads_to_another_host() {
        for path in ["//evil.test/", "/\\evil.test/", "/\\/evil.test/"] {
            assert_eq!(own_path(path), "/evil.test/", "{path}");
        }
        assert_eq!(own_path("/a//b"), "/a//b");
    }
}
