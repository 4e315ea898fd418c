//! What a request shows to be let through: a token in a header, a cookie or its address.

use forkyard_gateway::{Form, Key, Share, ShareError, Target};
use hyper::{
    HeaderMap,
    header::{self, HeaderName, HeaderValue},
};
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of the cookie, and of the token in an address.
pub const NAME: &str = "forkyard_token";
/// Header for programs.
pub const HEADER: HeaderName = HeaderName::from_static("x-forkyard-token");

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// What a request shows, taken out of it: servers do not get it.
#[derive(Debug, Default)]
pub struct Shown {
    /// Token, wherever it was.
    pub token: Option<String>,
    /// True if it was in the address.
    pub in_address: bool,
}

impl Shown {
    /// Takes the token out of a request. The address counts for more than the header, and that for
    /// more than the cookie, which counts in an origin of the port's own alone: where VMs share
    /// one, each may have the browser send what was set by another.
    pub fn take(target: &mut Target, headers: &mut HeaderMap) -> Self {
        let of_address = take_from_query(&mut target.path);
        let of_header = headers.remove(HEADER);
        let of_header = of_header.and_then(|it| it.to_str().ok().map(str::to_owned));
        let of_cookie = take_from_cookies(headers).filter(|_| target.form == Form::Host);
        Self {
            in_address: of_address.is_some(),
            token: of_address.or(of_header).or(of_cookie),
        }
    }

    /// Reads the token.
    pub fn allowed(&self, key: &Key) -> Option<Result<Share, ShareError>> {
        let token = self.token.as_deref()?;
        Some(Share::read(token, key, now()))
    }
}

/// The cookie that stands for a token, for as long as that holds.
pub fn cookie(token: &str, expires: u64, tls: bool) -> Option<HeaderValue> {
    let left = expires.saturating_sub(now());
    let secure = if tls { "; Secure" } else { "" };
    let text = format!("{NAME}={token}; Path=/; Max-Age={left}; HttpOnly; SameSite=Lax{secure}");
    text.parse().ok()
}

/// Takes the token out of a path with a query, whose other parts stay as they are.
fn take_from_query(path: &mut String) -> Option<String> {
    let (before, query) = path.split_once('?')?;
    let of = |part: &str| {
        let (name, value) = part.split_once('=')?;
        (name == NAME).then(|| value.to_owned())
    };
    let token = query.split('&').find_map(of)?;
    let rest: Vec<_> = query.split('&').filter(|part| of(part).is_none()).collect();
    *path = match rest.is_empty() {
        true => before.to_owned(),
        false => format!("{before}?{}", rest.join("&")),
    };
    Some(token)
}

/// Takes the token out of the cookies, of which the others stay.
fn take_from_cookies(headers: &mut HeaderMap) -> Option<String> {
    let all: Vec<String> = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .map(|part| part.trim().to_owned())
        .collect();
    let of = |part: &String| {
        let (name, value) = part.split_once('=')?;
        (name == NAME).then(|| value.to_owned())
    };
    let token = all.iter().find_map(of)?;
    let rest: Vec<_> = all.into_iter().filter(|part| of(part).is_none()).collect();
    headers.remove(header::COOKIE);
    if let (false, Ok(rest)) = (rest.is_empty(), rest.join("; ").parse()) {
        headers.insert(header::COOKIE, rest);
    }
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(path: &str, cookies: &str, form: Form) -> (Option<String>, String, Option<String>) {
        let mut target = Target {
            vm: "p".into(),
            port: "80".parse().expect("a port"),
            path: path.into(),
            form,
        };
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, cookies.parse().expect("text"));
        let shown = Shown::take(&mut target, &mut headers);
        let cookies = headers.get(header::COOKIE);
        let cookies = cookies.map(|it| it.to_str().expect("text").to_owned());
        (shown.token, target.path, cookies)
    }

    #[test]
    fn servers_get_all_but_the_token() {
        let (token, path, cookies) = taken(
            "/x?a=1&forkyard_token=t&b=2",
            "c=3; forkyard_token=u; d=4",
            Form::Host,
        );
        assert_eq!(token.as_deref(), Some("t"));
        assert_eq!(path, "/x?a=1&b=2");
        assert_eq!(cookies.as_deref(), Some("c=3; d=4"));
        let (token, path, cookies) = taken("/x?forkyard_token=t", "a=b", Form::Host);
        assert_eq!((token.as_deref(), path.as_str()), (Some("t"), "/x"));
        assert_eq!(cookies.as_deref(), Some("a=b"));
    }

    #[test]
    fn a_cookie_counts_where_the_origin_is_the_ports_own_alone() {
        let cookie = "forkyard_token=u";
        assert_eq!(taken("/", cookie, Form::Host).0.as_deref(), Some("u"));
        let (token, _, cookies) = taken("/", cookie, Form::Path);
        assert_eq!((token, cookies), (None, None));
    }
}
