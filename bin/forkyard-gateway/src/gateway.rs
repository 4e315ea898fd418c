//! A request's way: to its port, if it may, and back.
//!
//! A request that HTTP lets be repeated (RFC 9110, 9.2.2), and that has no body, is sent once more if
//! the connection to its server breaks before an answer begins: a VM that moves breaks all of them.
//! A kept connection that turns out to be broken does not count.

use crate::{
    counts::{self, By},
    guest::{Guests, Server},
    headers::{self, Asked},
    reply::{Refusal, ReplyBody, body},
    serve::Taken,
    shares::Shares,
    token::{self, Shown, Source},
};
use bytes::Bytes;
use forkyard_gateway::{
    Exchanged, Form, Key, Pool, Share, ShareError, Target, exchange, opened, strip, upgrades,
};
use forkyard_types::VmView;
use http_body_util::{BodyExt, Empty};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Uri,
    body::{Body, Incoming},
    client::conn::http1::SendRequest,
    header::{self, HeaderValue},
    upgrade::OnUpgrade,
};
use std::{net::IpAddr, sync::Arc};
use tokio::time::Instant;

/// Requests that may be repeated.
const REPEATED: [Method; 5] = [
    Method::GET,
    Method::HEAD,
    Method::OPTIONS,
    Method::PUT,
    Method::DELETE,
];

/// Body of a request, as servers are sent it.
type GuestBody = ReplyBody;
/// Place of a client's connection, for as long as anything of it is there.
pub type Place = Arc<Taken>;

/// Passes requests on.
#[derive(Debug)]
pub struct Gateway {
    /// VMs.
    pub guests: Guests,
    /// Domain below which they are.
    pub domain: String,
    /// Key that signs tokens; none if no token is wanted.
    pub key: Option<Key>,
    /// Tokens that the daemon has given out.
    pub shares: Shares,
    /// True if clients speak TLS.
    pub tls: bool,
    /// Connections to servers.
    pub pool: Pool<Server, GuestBody>,
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
                let response = refusal.answer();
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
    ) -> Result<(Response<ReplyBody>, By), Refusal> {
        let asked = Asked::of(&request)?;
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
        headers::forwarded(&mut head.headers, &asked, &target, from, self.tls);
        let uri: Uri = target
            .path
            .parse()
            .map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the path cannot be passed on"))?;
        let empty = incoming.is_end_stream();
        let again = REPEATED.contains(&head.method) && empty && !switches;
        let sent = Sent {
            method: head.method,
            uri,
            headers: head.headers,
        };
        let exchanged = match again {
            true => self.repeatedly(&server, &sent, until).await?,
            false => {
                let incoming = incoming.map_err(Into::into).boxed();
                let client = switches.then_some((client, place));
                self.once(&server, sent.with(incoming), client, until)
                    .await?
            }
        };
        let mut response = exchanged.response;
        if target.form == Form::Path {
            headers::of_shared_origin(response.headers_mut());
        }
        let response = response.map(|it| it.map_err(Into::into).boxed());
        Ok((response, By::Server))
    }

    fn target(&self, asked: &Asked) -> Result<Target, Refusal> {
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
            Refusal::new(StatusCode::NOT_FOUND, why)
        })
    }

    /// Finds the VM if a token admits to its port; returns that token with its expiry. A client
    /// without one does not learn whether the VM exists.
    async fn admit<'a>(
        &self,
        key: &Key,
        target: &Target,
        shown: &'a Shown,
        until: Instant,
    ) -> Result<(&'a str, Source, VmView, u64), Refusal> {
        let unauthorized = |why: &str| Refusal::new(StatusCode::UNAUTHORIZED, why);
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
    ) -> Result<Option<(&'a str, Source, Share)>, Refusal> {
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
    ) -> Result<Response<ReplyBody>, Refusal> {
        let cookie = token::cookie(token, expires, self.tls);
        let place = HeaderValue::from_str(&headers::own_path(&target.path))
            .map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the path cannot be passed on"))?;
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

    /// Sends a request, and once more if its connection breaks without an answer.
    async fn repeatedly(
        &self,
        server: &Server,
        sent: &Sent,
        until: Instant,
    ) -> Result<Exchanged, Refusal> {
        let mut broken = 0;
        loop {
            let (mut sender, kept) = match self.pool.take(server) {
                Some(kept) => (kept, true),
                None => (self.opened(server, until).await?, false),
            };
            let empty = Empty::new().map_err(|never| match never {}).boxed();
            // It asks for no other protocol.
            match exchange(&mut sender, sent.with(empty), None, ()).await {
                Ok(exchanged) if exchanged.switched => return Err(nonsense(server)),
                Ok(exchanged) => {
                    self.pool.put(server.clone(), sender);
                    return Ok(exchanged);
                }
                Err(error) if error.is_parse() => return Err(broke(server, &error)),
                Err(error) if !kept && broken > 0 => return Err(broke(server, &error)),
                Err(error) => {
                    tracing::debug!(vm = %server.vm, port = %server.port, %error, "sent again");
                    broken += u32::from(!kept);
                    self.pool.forget(|it| it == server);
                }
            }
        }
    }

    /// Sends a request on a connection of its own.
    async fn once(
        &self,
        server: &Server,
        request: Request<GuestBody>,
        client: Option<(OnUpgrade, Place)>,
        until: Instant,
    ) -> Result<Exchanged, Refusal> {
        let mut sender = self.opened(server, until).await?;
        let (client, place) = client.unzip();
        let may_switch = client.is_some();
        let exchanged = exchange(&mut sender, request, client, place).await;
        let exchanged = exchanged.map_err(|error| broke(server, &error))?;
        match (exchanged.switched, may_switch) {
            (true, false) => return Err(nonsense(server)),
            (true, true) => {}
            (false, _) => self.pool.put(server.clone(), sender),
        }
        Ok(exchanged)
    }

    async fn opened(
        &self,
        server: &Server,
        until: Instant,
    ) -> Result<SendRequest<GuestBody>, Refusal> {
        // Idle ones take places of the VM's.
        let crowded = || self.pool.forget(|it| it.vm == server.vm);
        let stream = self.guests.connect(server, until, crowded).await?;
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

fn nonsense(server: &Server) -> Refusal {
    let Server { vm, port } = server;
    let why = format!("port {port} of {vm} switched protocols without being asked to");
    Refusal::new(StatusCode::BAD_GATEWAY, why)
}
