//! A request's way: to its port, if it may, and back.
//!
//! A request that is safe to repeat, and has no body, is sent again if the connection to its
//! server breaks before an answer begins: a VM that moves breaks all. Others are not, unless
//! not a byte of them was sent.

use crate::{
    guest::{Guests, Server},
    reply::{Refusal, ReplyBody, body},
    ticket::{self, Shown},
};
use bytes::Bytes;
use forkyard_gateway::{Exchanged, Form, Key, Pool, ShareError, Target, exchange, opened, strip};
use forkyard_types::VmView;
use http_body_util::{BodyExt, Empty};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Uri,
    body::{Body, Incoming},
    header::{self, HeaderName, HeaderValue},
    upgrade::OnUpgrade,
};
use std::net::IpAddr;
use tokio::time::Instant;

/// How often a request is sent whose connection breaks without an answer.
const TRIES: usize = 4;

/// Body of a request, as servers are sent it.
type GuestBody = ReplyBody;

/// Passes requests on.
#[derive(Debug)]
pub struct Gateway {
    /// VMs.
    pub guests: Guests,
    /// Domain below which they are.
    pub domain: String,
    /// Key that signs tokens; none if no token is wanted.
    pub key: Option<Key>,
    /// True if clients speak TLS.
    pub tls: bool,
    /// Connections to servers.
    pub pool: Pool<Server, GuestBody>,
}

impl Gateway {
    /// Answers a request. Dropped, the connection to the server is closed.
    pub async fn answer(&self, request: Request<Incoming>, from: IpAddr) -> Response<ReplyBody> {
        self.pass(request, from)
            .await
            .unwrap_or_else(Refusal::answer)
    }

    async fn pass(
        &self,
        mut request: Request<Incoming>,
        from: IpAddr,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let mut target = self.target(&request)?;
        let shown = Shown::take(&mut target, request.headers_mut());
        let until = self.guests.until();
        let vm = self.admit(&target, &shown, until).await?;
        if shown.in_address && target.form == Form::Host && request.method() == Method::GET {
            return self.without_token(&target, &shown);
        }
        let server = Server {
            vm: vm.id,
            port: target.port,
        };
        let upgrades = request.headers().contains_key(header::UPGRADE);
        let client = hyper::upgrade::on(&mut request);
        let (mut head, incoming) = request.into_parts();
        forwarded(&mut head.headers, &target, from, self.tls);
        strip(&mut head.headers, &[], upgrades);
        let uri: Uri = target.path.parse().map_err(|_| {
            let why = "the path cannot be passed on";
            Refusal::new(StatusCode::BAD_REQUEST, why)
        })?;
        let again = head.method.is_idempotent() && incoming.is_end_stream() && !upgrades;
        let sent = Sent {
            method: head.method,
            uri,
            headers: head.headers,
        };
        let exchanged = match again {
            true => self.repeatedly(&server, &sent, until).await?,
            false => {
                let incoming = incoming.map_err(Into::into).boxed();
                self.once(&server, sent.with(incoming), client, until)
                    .await?
            }
        };
        Ok(exchanged.response.map(|it| it.map_err(Into::into).boxed()))
    }

    fn target(&self, request: &Request<Incoming>) -> Result<Target, Refusal> {
        let host = request.uri().host().or_else(|| {
            let host = request.headers().get(header::HOST)?;
            host.to_str().ok()
        });
        let path = request.uri().path_and_query();
        let path = path.map_or("/", |path| path.as_str());
        Target::of(host, path, &self.domain).ok_or_else(|| {
            let why = format!(
                "no VM's port is here: ask for PORT-VM.{} or /vms/VM/ports/PORT/",
                self.domain
            );
            Refusal::new(StatusCode::NOT_FOUND, why)
        })
    }

    /// Finds the VM if its port may be reached. Who may not does not learn whether there is one.
    async fn admit(
        &self,
        target: &Target,
        shown: &Shown,
        until: Instant,
    ) -> Result<VmView, Refusal> {
        let Some(key) = &self.key else {
            return Ok(self.guests.find(&target.vm, until).await?);
        };
        let unauthorized = |why: &str| Refusal::new(StatusCode::UNAUTHORIZED, why);
        let share = match shown.allowed(key) {
            Some(Ok(share)) => share,
            Some(Err(why @ (ShareError::Unknown | ShareError::Expired))) => {
                return Err(unauthorized(&format!(
                    "{why}: ask who gave it to you for another"
                )));
            }
            None => {
                return Err(unauthorized(
                    "a token is wanted, in the address (?forkyard_token=) or the header \
                     X-Forkyard-Token; `forkyard-gateway share VM PORT` makes one",
                ));
            }
        };
        let elsewhere = || unauthorized("the token is for another port or another VM");
        if share.port != target.port {
            return Err(elsewhere());
        }
        // By the token's id: a name may be another VM's by now.
        let vm = self.guests.find(share.vm.as_str(), until).await?;
        match vm.name.as_str() == target.vm || vm.id.as_str() == target.vm {
            true => Ok(vm),
            false => Err(elsewhere()),
        }
    }

    /// Has a browser ask again by an address that can be shown, with a cookie.
    fn without_token(
        &self,
        target: &Target,
        shown: &Shown,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let expires = self.key.as_ref().and_then(|key| shown.allowed(key));
        let cookie = expires.and_then(Result::ok).and_then(|share| {
            let token = shown.token.as_deref()?;
            ticket::cookie(token, share.expires, self.tls)
        });
        // Two slashes would name another host.
        let place = format!("/{}", target.path.trim_start_matches('/'));
        let place = HeaderValue::from_str(&place)
            .map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the path cannot be passed on"))?;
        let mut response = Response::new(body(Bytes::new()));
        *response.status_mut() = StatusCode::SEE_OTHER;
        let headers = response.headers_mut();
        headers.insert(header::LOCATION, place);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        );
        if let Some(cookie) = cookie {
            headers.insert(header::SET_COOKIE, cookie);
        }
        Ok(response)
    }

    /// Sends a request until there is an answer.
    async fn repeatedly(
        &self,
        server: &Server,
        sent: &Sent,
        until: Instant,
    ) -> Result<Exchanged, Refusal> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut sender = match self.pool.take(server) {
                Some(kept) => kept,
                None => self.opened(server, until).await?,
            };
            let empty = Empty::new().map_err(|never| match never {}).boxed();
            // It asks for no other protocol.
            match exchange(&mut sender, sent.with(empty), None).await {
                Ok(exchanged) => {
                    self.pool.put(server.clone(), sender);
                    return Ok(exchanged);
                }
                Err(error) if tries < TRIES && Instant::now() < until => {
                    tracing::debug!(vm = %server.vm, port = %server.port, %error, "sent again");
                    self.pool.forget(server);
                }
                Err(error) => return Err(broke(server, &error)),
            }
        }
    }

    /// Sends a request on a connection of its own.
    async fn once(
        &self,
        server: &Server,
        request: Request<GuestBody>,
        client: OnUpgrade,
        until: Instant,
    ) -> Result<Exchanged, Refusal> {
        let mut sender = self.opened(server, until).await?;
        let exchanged = exchange(&mut sender, request, Some(client)).await;
        let exchanged = exchanged.map_err(|error| broke(server, &error))?;
        if !exchanged.switched {
            self.pool.put(server.clone(), sender);
        }
        Ok(exchanged)
    }

    async fn opened(
        &self,
        server: &Server,
        until: Instant,
    ) -> Result<hyper::client::conn::http1::SendRequest<GuestBody>, Refusal> {
        let stream = self.guests.connect(server, until).await?;
        opened(stream).await.map_err(|error| broke(server, &error))
    }
}

/// A request as servers are sent it, but for its body.
struct Sent {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl Sent {
    fn with(&self, body: GuestBody) -> Request<GuestBody> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

fn broke(server: &Server, error: &hyper::Error) -> Refusal {
    let Server { vm, port } = server;
    let why = format!(
        "port {port} of {vm} gave no answer in HTTP, and the request may have been carried out: {error}"
    );
    Refusal::new(StatusCode::BAD_GATEWAY, why)
}

/// Says who asked, and by what address; what a client says of that itself is not passed on.
fn forwarded(headers: &mut HeaderMap, target: &Target, from: IpAddr, tls: bool) {
    let mut say = |name: &'static str, value: Option<String>| {
        let name = HeaderName::from_static(name);
        headers.remove(&name);
        if let Some(Ok(value)) = value.map(|value| HeaderValue::from_str(&value)) {
            headers.insert(name, value);
        }
    };
    say("forwarded", None);
    say("x-forwarded-for", Some(from.to_string()));
    let scheme = if tls { "https" } else { "http" };
    say("x-forwarded-proto", Some(scheme.to_owned()));
    say("x-forwarded-prefix", target.prefix());
    let host = headers.get(header::HOST).cloned();
    let name = HeaderName::from_static("x-forwarded-host");
    headers.remove(&name);
    if let Some(host) = host {
        headers.insert(name, host);
    }
}
