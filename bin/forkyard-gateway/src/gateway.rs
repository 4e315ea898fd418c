//! A request's way: to its port, if it may, and back.

use crate::{
    counts::{self, By},
    guest::{Guests, Server},
    shares::Shares,
    token::{self, Shown, Source},
};
use bytes::Bytes;
use forkyard_api_client::PortStream;
use forkyard_gateway::{
    Form, ForwardedRequest, Giver, Pool, PortPermission, ProxyRefusal, ReplyBody, ServerWay,
    ShareError, ShareKey, TakenPlace, Target, body,
    headers::{self, RequestTarget},
    may_be_repeated, once, repeatedly, strip, upgrades,
};
use forkyard_types::VmView;
use http_body_util::BodyExt;
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::{Body, Incoming},
    header::{self, HeaderName, HeaderValue},
};
use std::{net::IpAddr, sync::Arc};
use tokio::time::Instant;

/// Giver of answers of the gateway's own.
const GATEWAY: Giver = Giver {
    name: "forkyard-gateway",
    mark: HeaderName::from_static("x-forkyard-gateway"),
};

/// Place of a client's connection, for as long as anything of it is there.
pub type Place = Arc<TakenPlace>;

/// Passes requests on.
#[derive(Debug)]
pub struct Gateway {
    /// VMs.
    pub guests: Guests,
    /// Domain below which they are.
    pub domain: String,
    /// Key that signs tokens; none if no token is wanted.
    pub key: Option<ShareKey>,
    /// Tokens that the daemon has given out.
    pub shares: Shares,
    /// True if clients speak TLS.
    pub tls: bool,
    /// Connections to servers.
    pub pool: Pool<Server, ReplyBody>,
}

impl Gateway {
    /// Answers a request. Dropped, the connection to the server is closed.
    pub async fn answer(
        &self,
        request: Request<Incoming>,
        from: IpAddr,
        place: Place,
    ) -> Response<ReplyBody> {
        match self.pass(request, from, place).await {
            Ok((response, by)) => {
                counts::answered(response.status(), by);
                response
            }
            Err(refusal) => {
                let response = refusal.answer(&GATEWAY);
                counts::answered(response.status(), By::Gateway);
                response
            }
        }
    }

    async fn pass(
        &self,
        mut request: Request<Incoming>,
        from: IpAddr,
        place: Place,
    ) -> Result<(Response<ReplyBody>, By), ProxyRefusal> {
        let asked = RequestTarget::of(&request)?;
        let mut target = self.target(&asked)?;
        let shown = Shown::take(&mut target, request.headers_mut());
        let until = self.guests.until();
        let switches = upgrades(request.headers());
        let vm = match &self.key {
            None => self.guests.find(&target.vm, until).await?,
            Some(key) => {
                let (token, source, vm, expires) = self.admit(key, &target, &shown, until).await?;
                if source == Source::Cookie && (switches || !request.method().is_safe()) {
                    headers::same_origin(request.headers(), &asked)?;
                }
                let asks_again = source == Source::Address && target.form == Form::Host;
                if asks_again && request.method() == Method::GET && !switches {
                    let response = self.without_token(&target, token, expires)?;
                    return Ok((response, By::Gateway));
                }
                vm
            }
        };
        let server = Server {
            vm: vm.id,
            port: target.port,
        };
        let client = hyper::upgrade::on(&mut request);
        let (mut head, incoming) = request.into_parts();
        strip(&mut head.headers, &[], switches);
        headers::forwarded(&mut head.headers, &asked, Some(&target), from, self.tls);
        let uri: Uri = target.path.parse().map_err(|_| {
            ProxyRefusal::new(StatusCode::BAD_REQUEST, "the path cannot be passed on")
        })?;
        let empty = incoming.is_end_stream();
        let again = may_be_repeated(&head.method) && empty && !switches;
        let sent = ForwardedRequest {
            method: head.method,
            uri,
            headers: head.headers,
            body: Bytes::new(),
        };
        let way = ToServer {
            gateway: self,
            server: &server,
            until,
        };
        let exchanged = match again {
            true => repeatedly(&self.pool, &way, &sent).await?,
            false => {
                let incoming = incoming.map_err(Into::into).boxed();
                let client = switches.then_some((client, place));
                once(&self.pool, &way, sent.with(incoming), client).await?
            }
        };
        let mut response = exchanged.response;
        // A server cannot say that this answer is not its own.
        response.headers_mut().remove(&GATEWAY.mark);
        if target.form == Form::Path {
            headers::of_shared_origin(response.headers_mut());
        }
        let response = response.map(|it| it.map_err(Into::into).boxed());
        Ok((response, By::Server))
    }

    fn target(&self, asked: &RequestTarget) -> Result<Target, ProxyRefusal> {
        let found = Target::of(Some(&asked.host), &asked.path, &self.domain);
        // Without tokens, DNS rebinding: a page of another domain that points at this gateway would
        // have the same origin as the VMs' ports.
        let found = found.filter(|target| {
            self.key.is_some() || target.form == Form::Host || asked.is_of(&self.domain)
        });
        found.ok_or_else(|| {
            let why = format!(
                "no VM's port is here: ask for PORT-VM.{} or /vms/VM/ports/PORT/",
                self.domain
            );
            ProxyRefusal::new(StatusCode::NOT_FOUND, why)
        })
    }

    /// Finds the VM if a token admits to its port; returns that token with its expiry. A client
    /// without one does not learn whether the VM exists.
    async fn admit<'a>(
        &self,
        key: &ShareKey,
        target: &Target,
        shown: &'a Shown,
        until: Instant,
    ) -> Result<(&'a str, Source, VmView, u64), ProxyRefusal> {
        let unauthorized = |why: &str| ProxyRefusal::new(StatusCode::UNAUTHORIZED, why);
        let (token, source, share) = match shown.allowed(key) {
            Some(Ok(allowed)) => allowed,
            Some(Err(why @ (ShareError::Unknown | ShareError::Expired))) => {
                match self.given_out(shown, until).await? {
                    Some(allowed) => allowed,
                    None => {
                        let why = format!("{why}: ask its issuer for another");
                        return Err(unauthorized(&why));
                    }
                }
            }
            None => {
                return Err(unauthorized(
                    "a token is wanted, in the address (?forkyard_token=) or the header \
                     X-Forkyard-Token; `forkyard share add VM PORT` gives one out",
                ));
            }
        };
        let elsewhere = || unauthorized("the token is for another port or another VM");
        if share.port != target.port {
            return Err(elsewhere());
        }
        // By the token's id, which is found by no name: a name may be another VM's by now.
        let vm = self.guests.find(share.vm.as_str(), until).await?;
        let named = vm.name.as_str() == target.vm || vm.id.as_str() == target.vm;
        match vm.id == share.vm && named {
            true => Ok((token, source, vm, share.expires)),
            false => Err(elsewhere()),
        }
    }

    /// Finds the first token that the daemon has given out and not taken back. One whose VM there is
    /// not is none.
    async fn given_out<'a>(
        &self,
        shown: &'a Shown,
        until: Instant,
    ) -> Result<Option<(&'a str, Source, PortPermission)>, ProxyRefusal> {
        for (token, source) in shown.all() {
            let found = self.shares.find(token, &self.guests, until, token::now());
            match found.await {
                Ok(Some(share)) => return Ok(Some((token, source, share))),
                Ok(None) => {}
                Err(error) if error.status == StatusCode::NOT_FOUND => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Has a browser ask again by an address that can be shown, with a cookie.
    fn without_token(
        &self,
        target: &Target,
        token: &str,
        expires: u64,
    ) -> Result<Response<ReplyBody>, ProxyRefusal> {
        let cookie = token::cookie(token, expires, self.tls);
        let place = HeaderValue::from_str(&headers::own_path(&target.path)).map_err(|_| {
            ProxyRefusal::new(StatusCode::BAD_REQUEST, "the path cannot be passed on")
        })?;
        let mut response = Response::new(body(Bytes::new()));
        *response.status_mut() = StatusCode::SEE_OTHER;
        let headers = response.headers_mut();
        headers.insert(header::LOCATION, place);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let none = HeaderValue::from_static("no-referrer");
        headers.insert(header::REFERRER_POLICY, none);
        if let Some(cookie) = cookie {
            headers.insert(header::SET_COOKIE, cookie);
        }
        Ok(response)
    }
}

/// Way to a port of a VM, wherever it is.
struct ToServer<'a> {
    gateway: &'a Gateway,
    server: &'a Server,
    until: Instant,
}

impl ServerWay for ToServer<'_> {
    type Key = Server;
    type Stream = PortStream;

    fn kept(&self) -> Vec<Server> {
        vec![self.server.clone()]
    }

    async fn connect(&self) -> Result<(Server, PortStream), ProxyRefusal> {
        // Idle ones take places of the VM's.
        let crowded = || self.gateway.pool.forget(|it| it.vm == self.server.vm);
        let guests = &self.gateway.guests;
        let stream = guests.connect(self.server, self.until, crowded).await?;
        Ok((self.server.clone(), stream))
    }

    fn server(&self) -> String {
        format!("port {} of {}", self.server.port, self.server.vm)
    }
}
