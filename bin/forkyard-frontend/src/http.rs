//! A request's way by HTTP: to its service's VM and back, or to the front-end that is nearest now.
//!
//! ```text
//! head --name--> service --redirect? --> VM --place free? --> kept connection or a new one --> answer
//! ```
//!
//! While a VM moves, requests wait: for a place, for a VM, for a connection, up to the patience that is
//! configured. What may be sent twice, and is small, is sent again if its connection breaks.

use crate::{
    counts::{self, By},
    service::{Service, ToTarget},
    target::Target,
};
use bytes::Bytes;
use forkyard_frontend::Role;
use forkyard_gateway::{
    ForwardedRequest, Giver, ProxyRefusal, ReplyBody, TakenPlace, body,
    headers::{RequestTarget, forwarded, own_path},
    may_be_repeated, once, repeatedly, strip, upgrades,
};
use http_body_util::BodyExt;
use hyper::{
    Request, Response, StatusCode, Uri,
    body::{Body, Incoming},
    header::{self, HeaderName, HeaderValue},
    upgrade::OnUpgrade,
};
use std::{collections::BTreeMap, net::IpAddr, sync::Arc};
use tokio::time::{Instant, timeout_at};

/// Giver of answers of the front-end's own.
const FRONTEND: Giver = Giver {
    name: "forkyard-frontend",
    mark: HeaderName::from_static("x-forkyard-frontend"),
};
/// Name that stands for all that are not named.
const ANY: &str = "*";

/// Services by host name.
#[derive(Debug)]
pub struct Sites {
    by_name: BTreeMap<String, Arc<Service>>,
    replay: u64,
}

/// A client's connection.
#[derive(Clone, Debug)]
pub struct Client {
    /// Address.
    pub from: IpAddr,
    /// True if it speaks TLS.
    pub tls: bool,
    /// Place among all connections.
    pub place: Arc<TakenPlace>,
}

/// A request, taken apart.
struct Passed {
    sent: ForwardedRequest,
    /// Body that is sent as it comes, once.
    streamed: Option<ReplyBody>,
    /// Client's connection, if that may become one of another protocol.
    upgrade: Option<OnUpgrade>,
}

impl Sites {
    /// Those of all services.
    pub fn new(services: &[Arc<Service>], replay: u64) -> Self {
        let named = services.iter().flat_map(|service| {
            let names = service.entry.names.iter();
            names.map(|name| (name.to_ascii_lowercase(), Arc::clone(service)))
        });
        let by_name = named.collect();
        Self { by_name, replay }
    }

    fn find(&self, host: &str) -> Option<&Arc<Service>> {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        self.by_name.get(&name).or_else(|| self.by_name.get(ANY))
    }

    /// Answers a request. Dropped, the connection to the server is closed.
    pub async fn answer(&self, request: Request<Incoming>, client: Client) -> Response<ReplyBody> {
        let asked = match RequestTarget::of(&request) {
            Ok(asked) => asked,
            Err(refusal) => return refused("", refusal),
        };
        let Some(service) = self.find(&asked.host) else {
            let why = format!("no service is called {}", asked.host);
            return refused("", ProxyRefusal::new(StatusCode::MISDIRECTED_REQUEST, why));
        };
        let visit = service.visited();
        match self.pass(request, &asked, client, service).await {
            Ok((response, by)) => {
                counts::answered(&service.name, response.status(), by);
                response.map(|body| held(body, visit))
            }
            Err(refusal) => refused(&service.name, refusal),
        }
    }

    async fn pass(
        &self,
        mut request: Request<Incoming>,
        asked: &RequestTarget,
        client: Client,
        service: &Arc<Service>,
    ) -> Result<(Response<ReplyBody>, By), ProxyRefusal> {
        let switches = upgrades(request.headers());
        if !switches && let Some(response) = redirect(service, asked)? {
            return Ok((response, By::Frontend));
        }
        let upgrade = switches.then(|| hyper::upgrade::on(&mut request));
        let (mut head, incoming) = request.into_parts();
        strip(&mut head.headers, &[], switches);
        forwarded(&mut head.headers, asked, None, client.from, client.tls);
        let wrong = |_| ProxyRefusal::new(StatusCode::BAD_REQUEST, "the path cannot be passed on");
        let mut sent = ForwardedRequest {
            method: head.method,
            uri: asked.path.parse::<Uri>().map_err(wrong)?,
            headers: head.headers,
            body: Bytes::new(),
        };
        let size = incoming.size_hint().upper();
        let small = size.is_some_and(|size| size <= self.replay);
        let again = may_be_repeated(&sent.method) && small && !switches;
        let mut streamed = None;
        match again {
            true => {
                let whole = incoming.collect().await;
                let whole = whole.map_err(|error| {
                    let why = format!("the request's body did not come: {error}");
                    ProxyRefusal::new(StatusCode::BAD_REQUEST, why)
                });
                sent.body = whole?.to_bytes();
            }
            false => streamed = Some(incoming.map_err(Into::into).boxed()),
        }
        let passed = Passed {
            sent,
            streamed,
            upgrade,
        };
        let response = to_service(service, passed, client.place).await?;
        Ok((response, By::Server))
    }
}

/// Sends a client on to the front-end that is nearest, if this is not and the service has it so.
fn redirect(
    service: &Service,
    asked: &RequestTarget,
) -> Result<Option<Response<ReplyBody>>, ProxyRefusal> {
    let state = service.state();
    let elsewhere = match state.role {
        Role::Active => None,
        Role::Forwarding { .. } | Role::Drained => state.nearest,
    };
    let Some(url) = elsewhere.filter(|_| service.entry.redirect) else {
        return Ok(None);
    };
    let place = format!("{}{}", url.trim_end_matches('/'), own_path(&asked.path));
    let place = HeaderValue::from_str(&place)
        .map_err(|_| ProxyRefusal::new(StatusCode::BAD_REQUEST, "the path cannot be passed on"))?;
    let mut response = Response::new(body(Bytes::new()));
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, place);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(FRONTEND.mark, HeaderValue::from_static("1"));
    Ok(Some(response))
}

/// Sends a request to one VM of a service; to another one if it may be sent again and has no answer.
async fn to_service(
    service: &Arc<Service>,
    mut passed: Passed,
    place: Arc<TakenPlace>,
) -> Result<Response<ReplyBody>, ProxyRefusal> {
    let until = service.until();
    let mut tried = Vec::new();
    loop {
        let target = service.pick(&tried, until).await?;
        let in_use = target.used();
        let requests = Arc::clone(&target.requests).acquire_owned();
        let Ok(Ok(permit)) = timeout_at(until, requests).await else {
            let why = format!(
                "{}: {} has as many requests as it may, and none was answered in time",
                service.name, target.vm
            );
            return Err(ProxyRefusal::new(StatusCode::SERVICE_UNAVAILABLE, why));
        };
        let again = passed.streamed.is_none();
        match to_target(service, &target, &mut passed, &place, until).await {
            Ok(response) => {
                return Ok(response.map(|body| held(body, (permit, in_use))));
            }
            Err(refusal)
                if again
                    && refusal.status() == StatusCode::BAD_GATEWAY
                    && tried.len() + 1 < service.targets.len() =>
            {
                tried.push(target);
            }
            Err(refusal) => return Err(refusal),
        }
    }
}

async fn to_target(
    service: &Service,
    target: &Target,
    passed: &mut Passed,
    place: &Arc<TakenPlace>,
    until: Instant,
) -> Result<Response<ReplyBody>, ProxyRefusal> {
    let way = ToTarget {
        service,
        target,
        until,
        counts: true,
    };
    let exchanged = match passed.streamed.take() {
        None => repeatedly(&service.pool, &way, &passed.sent).await?,
        Some(body) => {
            let client = passed.upgrade.take().map(|it| (it, Arc::clone(place)));
            once(&service.pool, &way, passed.sent.with(body), client).await?
        }
    };
    Ok(exchanged
        .response
        .map(|body| body.map_err(Into::into).boxed()))
}

fn refused(service: &str, refusal: ProxyRefusal) -> Response<ReplyBody> {
    counts::answered(service, refusal.status(), By::Frontend);
    refusal.answer(&FRONTEND)
}

/// A body that keeps something until its end.
fn held(body: ReplyBody, holds: impl Send + Sync + 'static) -> ReplyBody {
    let kept = move |frame| {
        let _holds = &holds;
        frame
    };
    body.map_frame(kept).boxed()
}
