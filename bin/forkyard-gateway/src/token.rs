//! Credentials of a request: a token in a header, a cookie or its address.

use forkyard_gateway::{Form, PortPermission, ShareError, ShareKey, Target};
use forkyard_types::SHARE_PARAMETER;
use hyper::{
    HeaderMap,
    header::{self, HeaderName, HeaderValue},
};
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of the token in an address.
const NAME: &str = SHARE_PARAMETER;
/// Header for programs.
pub const HEADER: HeaderName = HeaderName::from_static("x-forkyard-token");

/// Names of the cookie: with TLS browsers take it from its own origin alone.
const COOKIES: [&str; 2] = ["forkyard_token", "__Host-forkyard_token"];

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Place of a token in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the address.
    Address,
    /// In the header.
    Header,
    /// In a cookie, which browsers send for pages of other origins as well.
    Cookie,
}

/// Credentials of a request, taken out of it: servers do not get them.
#[derive(Debug, Default)]
pub struct Shown(Vec<(String, Source)>);

impl Shown {
    /// Takes tokens out of a request. Cookies count in an origin of the port's own alone: where VMs
    /// share one, each may have the browser send what was set by another.
    pub fn take(target: &mut Target, headers: &mut HeaderMap) -> Self {
        let mut all = Vec::new();
        all.extend(take_from_query(&mut target.path).map(|it| (it, Source::Address)));
        let of_header = headers.remove(HEADER);
        let of_header = of_header.and_then(|it| it.to_str().ok().map(str::to_owned));
        all.extend(of_header.map(|it| (it, Source::Header)));
        let of_cookies = take_from_cookies(headers);
        if target.form == Form::Host {
            all.extend(of_cookies.into_iter().map(|it| (it, Source::Cookie)));
        }
        // An address from which a page came may have had one.
        let came = headers.get(header::REFERER).map(HeaderValue::as_bytes);
        let name = NAME.as_bytes();
        if came.is_some_and(|came| came.windows(name.len()).any(|it| it == name)) {
            headers.remove(header::REFERER);
        }
        Self(all)
    }

    /// Finds the first token that holds, as it was shown and as it is; else says why the first
    /// does not. None if there is none.
    pub fn allowed(
        &self,
        key: &ShareKey,
    ) -> Option<Result<(&str, Source, PortPermission), ShareError>> {
        let now = now();
        let mut why = None;
        for (token, from) in &self.0 {
            match PortPermission::read(token, key, now) {
                Ok(share) => return Some(Ok((token, *from, share))),
                Err(error) => why = why.or(Some(error)),
            }
        }
        why.map(Err)
    }

    /// All of them, as they were shown.
    pub fn all(&self) -> impl Iterator<Item = (&str, Source)> {
        self.0.iter().map(|(token, from)| (token.as_str(), *from))
    }
}

/// The cookie that stands for a token, for as long as that holds.
pub fn cookie(token: &str, expires: u64, tls: bool) -> Option<HeaderValue> {
    let left = expires.saturating_sub(now());
    let (name, secure) = match tls {
        true => (COOKIES[1], "; Secure"),
        false => (COOKIES[0], ""),
    };
    let text = format!("{name}={token}; Path=/; Max-Age={left}; HttpOnly; SameSite=Lax{secure}");
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

/// Takes tokens out of the cookies, of which the others stay. Another origin of the domain may have
/// set one, so that there may be several.
fn take_from_cookies(headers: &mut HeaderMap) -> Vec<String> {
    let all = headers.get_all(header::COOKIE).iter();
    let all: Vec<Vec<u8>> = all
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b';'))
        .map(|part| part.trim_ascii().to_owned())
        .collect();
    let of = |part: &Vec<u8>| {
        let text = std::str::from_utf8(part).ok()?;
        let (name, value) = text.split_once('=')?;
        COOKIES.contains(&name).then(|| value.to_owned())
    };
    let tokens: Vec<_> = all.iter().filter_map(of).collect();
    if tokens.is_empty() {
        return tokens;
    }
    let rest: Vec<_> = all.into_iter().filter(|part| of(part).is_none()).collect();
    headers.remove(header::COOKIE);
    if let (false, Ok(rest)) = (
        rest.is_empty(),
        HeaderValue::from_bytes(&rest.join(&b"; "[..])),
    ) {
        headers.insert(header::COOKIE, rest);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(path: &str, cookies: &[u8], form: Form) -> (Vec<String>, String, Option<Vec<u8>>) {
        let mut target = Target {
            vm: "p".into(),
            port: "80".parse().expect("a port"),
            path: path.into(),
            form,
        };
        let mut headers = HeaderMap::new();
        let cookies = HeaderValue::from_bytes(cookies).expect("a value");
        headers.insert(header::COOKIE, cookies);
        let came = HeaderValue::from_static("http://x/?forkyard_token=t");
        headers.insert(header::REFERER, came);
        let shown = Shown::take(&mut target, &mut headers);
        assert!(!headers.contains_key(header::REFERER));
        let cookies = headers.get(header::COOKIE);
        let cookies = cookies.map(|it| it.as_bytes().to_owned());
        let tokens = shown.0.into_iter().map(|(token, _)| token).collect();
        (tokens, target.path, cookies)
    }

    #[test]
    fn servers_get_all_but_the_tokens() {
        let (tokens, path, cookies) = taken(
            "/x?a=1&forkyard_token=t&b=2",
            b"c=\xff; forkyard_token=u; d=4; __Host-forkyard_token=v",
            Form::Host,
        );
        assert_eq!(tokens, ["t", "u", "v"]);
        assert_eq!(path, "/x?a=1&b=2");
        assert_eq!(cookies.as_deref(), Some(&b"c=\xff; d=4"[..]));
        let (tokens, path, cookies) = taken("/x?forkyard_token=t", b"a=b", Form::Host);
        assert_eq!((tokens, path.as_str()), (vec!["t".to_owned()], "/x"));
        assert_eq!(cookies.as_deref(), Some(&b"a=b"[..]));
    }

    #[test]
    fn a_cookie_counts_where_the_origin_is_the_ports_own_alone() {
        let cookie = b"forkyard_token=u";
        assert_eq!(taken("/", cookie, Form::Host).0, ["u"]);
        let (tokens, _, cookies) = taken("/", cookie, Form::Path);
        assert_eq!((tokens, cookies), (vec![], None));
    }

    #[test]
    fn a_token_that_does_not_hold_hides_none_that_does() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = ShareKey::made_in(&folder.path().join("key")).expect("a key");
        let share = PortPermission {
            vm: forkyard_types::VmId::random(),
            port: "80".parse().expect("a port"),
            expires: now() + 60,
        };
        let of = |token: &str| (token.to_owned(), Source::Cookie);
        let shown = Shown(vec![of("x"), of(&share.token(&key))]);
        let allowed = shown.allowed(&key).expect("tokens").expect("one holds");
        assert_eq!(allowed.2, share);
        assert!(Shown(vec![of("x")]).allowed(&key).expect("one").is_err());
        assert!(Shown::default().allowed(&key).is_none());
    }
}
