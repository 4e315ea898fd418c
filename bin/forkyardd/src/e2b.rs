//! The API of E2B over this host's VMs: its SDKs work with another URL.
//!
//! ```text
//! api: /sandboxes…                       --X-API-Key: a token of this host--> control
//! PORT-SANDBOX.DOMAIN, E2b-Sandbox-Id    --49983--> envd: process, filesystem, files
//!                                        --else---> proxy: HTTP of the guest's port
//! ```
//!
//! Translation and nothing else: what is done is done by the methods of `Host` that the native API
//! has, and requests that those refuse fail here as well. Nothing is kept but watchers of folders and
//! samples of what sandboxes use, which end with the daemon: what is particular to a sandbox is in its VM's labels. What comes over
//! the network beyond the loopback comes by TLS.

mod control;
mod envd;
mod files;
mod filesystem;
mod input;
mod metrics;
mod process;
mod proxy;
mod reply;
mod watch;

use crate::{
    doors::{Party, Visit},
    gate::{Asker, ConnectionPeer},
    http::{self, Bodies},
    idle::Idle,
    listen,
    remote::{FAREWELL, Remote},
};
use anyhow::Context;
use axum::{
    Router,
    extract::{ConnectInfo, DefaultBodyLimit, Request, State},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
};
use forkyard_auth::{Access, bearer};
use forkyard_e2b::{ENVD_PORT, SandboxAddress, SandboxKey, is_token, is_told, target};
use forkyard_fork::Host;
use forkyard_types::{VmId, VmState, VmView};
use reply::Failure;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Instant,
};
use tokio::net::TcpListener;
use tower::ServiceExt;

/// Most bytes of a request that is no file.
const BODY: usize = 8 << 20;

/// Choices of the operator.
#[derive(Clone, Debug)]
pub struct Choices {
    /// Template that `base` is, and that others than images and checkpoints are not.
    pub base: String,
    /// MiB of memory of a sandbox that boots.
    pub memory_mib: u64,
    /// Domain under which clients find ports of sandboxes.
    pub domain: Option<String>,
}

/// State that handlers share.
#[derive(Clone, Debug)]
struct E2b {
    host: Arc<Host>,
    access: Arc<Access>,
    key: Arc<SandboxKey>,
    choices: Arc<Choices>,
    domain: String,
    watchers: watch::Watchers,
    metrics: metrics::Metrics,
    bodies: Bodies,
}

/// The endpoint, listening.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
    router: Router,
    tls: Option<Arc<forkyard_tls::ServerConfig>>,
}

impl Endpoint {
    /// Listens, by TLS if that is beyond the loopback.
    pub async fn open(
        address: SocketAddr,
        certificate: Option<(&Path, &Path)>,
        state: &Path,
        choices: Choices,
        shared: &http::Shared,
    ) -> anyhow::Result<Self> {
        let listener = listen::bind(address).await?;
        let listens = listener.local_addr()?;
        let tls = match address.ip().is_loopback() {
            true => None,
            false => Some(listen::certificate(address, certificate, state)?.server()?),
        };
        let domain = choices.domain.clone();
        let e2b = E2b {
            host: shared.host.clone(),
            access: shared.access.clone(),
            key: Arc::new(SandboxKey::kept_in(state).context("the key of sandboxes' tokens")?),
            domain: domain.unwrap_or_else(|| format!("localhost:{}", listens.port())),
            choices: Arc::new(choices),
            watchers: watch::Watchers::default(),
            metrics: metrics::Metrics::default(),
            bodies: shared.bodies.clone(),
        };
        tracing::info!(listen = %listens, tls = tls.is_some(), "listening for clients of E2B");
        let router = router(e2b, &shared.idle);
        Ok(Self {
            listener,
            router,
            tls,
        })
    }

    /// Serves until `stop` is done, and what is under way then for a while.
    pub async fn serve(self, stop: impl Future<Output = ()> + Clone + Send + 'static) {
        if let Some(tls) = self.tls {
            let listener = self.listener;
            return Remote { listener, tls }.serve(self.router, stop).await;
        }
        let router = self.router.layer(from_fn(known));
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let served = axum::serve(self.listener, service).with_graceful_shutdown(stop.clone());
        let farewell = async {
            stop.await;
            tokio::time::sleep(FAREWELL).await;
        };
        tokio::select! {
            served = served.into_future() => {
                if let Err(error) = served {
                    tracing::error!(%error, "the endpoint for clients of E2B ended");
                }
            }
            () = farewell => {}
        }
    }
}

/// Notes the peer of a connection without TLS.
async fn known(
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(ConnectionPeer {
        address,
        certificate: None,
    });
    next.run(request).await
}

fn router(e2b: E2b, idle: &Idle) -> Router {
    let control = control::router(e2b.clone()).layer(DefaultBodyLimit::max(BODY));
    let data = Router::new()
        .fallback(data)
        .with_state(e2b.clone())
        .layer(from_fn(crate::audit::note));
    Router::new()
        .fallback(dispatch)
        .with_state(Planes { e2b, control, data })
        .layer(from_fn_with_state(idle.clone(), http::busy))
        .layer(from_fn(http::read_out))
}

/// Requests for the API, and those for ports of sandboxes.
#[derive(Clone, Debug)]
struct Planes {
    e2b: E2b,
    control: Router,
    data: Router,
}

async fn dispatch(State(planes): State<Planes>, mut request: Request) -> Response {
    let named = target(request.headers(), request.uri().host());
    let target = match (named, files::Signed::of(&request)) {
        (None, Some(signed)) => match planes.e2b.signer(Who::of(&request), &signed).await {
            Ok(signer) => Some(signer),
            Err(refused) => return refused.into_response(),
        },
        (named, _) => named,
    };
    let plane = match target {
        Some(target) => {
            // For the log: the sandbox's token names no user.
            let asker = Asker::User(format!("of sandbox {}", target.id));
            request.extensions_mut().insert(asker);
            request.extensions_mut().insert(target);
            planes.data
        }
        None => planes.control,
    };
    match plane.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

async fn data(State(e2b): State<E2b>, request: Request) -> Response {
    let Some(target) = request.extensions().get::<SandboxAddress>().cloned() else {
        return Failure::not_found("no sandbox is named").into_response();
    };
    let vm = match e2b.sandbox(&target.id) {
        Some(vm)
            if is_told(&vm.labels, vm.id, &target.id)
                || e2b.holds_token(&vm, target.port, &request) =>
        {
            vm
        }
        // Without a token it is not told whether a VM of another kind exists.
        Some(_) | None => return reply::gone(&target.id),
    };
    match target.port {
        ENVD_PORT => envd::answer(&e2b, &vm, request).await,
        port => proxy::pass(&e2b, &vm, port, request).await,
    }
}

impl E2b {
    /// True if a request shows a token of this VM's that the API handed out, or for a file a signature by it.
    fn holds_token(&self, vm: &VmView, port: u16, request: &Request) -> bool {
        let shown = |header: &str, purpose: &str| {
            let value = request.headers().get(header)?.to_str().ok()?;
            Some(is_token(value, &self.key.token(purpose, vm.id)))
        };
        shown("x-access-token", "envd") == Some(true)
            || shown(proxy::TRAFFIC.as_str(), "traffic") == Some(true)
            || (port == ENVD_PORT
                && files::Signed::of(request)
                    .is_some_and(|signed| signed.is_by(&self.key.token("envd", vm.id))))
    }

    /// The sandbox by whose token a request for a file is signed: where all have one address, that of a file
    /// names none. An address that has failed before waits first.
    async fn signer(&self, who: Who, signed: &files::Signed) -> Result<SandboxAddress, Failure> {
        tokio::time::sleep(self.access.delay(who.address, Instant::now())).await;
        let mut running = self.host.list().into_iter();
        let is_it = |vm: &VmView| {
            vm.state == VmState::Running && signed.is_by(&self.key.token("envd", vm.id))
        };
        if let Some(signer) = running.find(is_it) {
            return Ok(SandboxAddress {
                id: signer.id.to_string(),
                port: ENVD_PORT,
            });
        }
        self.access.charge(who.address, Instant::now());
        let why = "the signature does not hold, or its sandbox does not run";
        Err(Failure::unauthorized(why))
    }

    /// A VM that runs, by id or name.
    fn sandbox(&self, id: &str) -> Option<VmView> {
        let vm = self.host.find(id).ok()?;
        (vm.state == VmState::Running).then_some(vm)
    }

    /// A VM that is a sandbox: it runs, or stands still.
    fn any_sandbox(&self, id: &str) -> Result<VmView, Failure> {
        let found = self.host.find(id).ok();
        let is_one = |vm: &VmView| [VmState::Running, VmState::Paused].contains(&vm.state);
        found
            .filter(is_one)
            .ok_or_else(|| Failure::not_found(format!("sandbox {id:?} was not found")))
    }

    /// Lets a request in with a token of this host's; returns the token's name.
    async fn admit(&self, who: Who) -> Result<String, Failure> {
        let token = who.token.as_deref();
        let delay = self.access.delay(who.address, Instant::now());
        let admitted = self
            .access
            .admit(who.address, token, crate::now(), Instant::now());
        match admitted {
            Ok(token) => {
                who.welcome(&token.name)?;
                Ok(token.name)
            }
            Err(refused) => {
                crate::counts::not_let_in(&refused);
                tokio::time::sleep(delay).await;
                Err(Failure::unauthorized(&format!(
                    "{refused}: `forkyard token create NAME` on the host makes one; give it as E2B_API_KEY"
                )))
            }
        }
    }

    /// Refuses a request whose token of a sandbox does not hold.
    async fn refuse(&self, who: Who, why: &str) -> Failure {
        let delay = self.access.delay(who.address, Instant::now());
        self.access.charge(who.address, Instant::now());
        tokio::time::sleep(delay).await;
        Failure::unauthorized(why)
    }
}

/// Origin of a request, and what it shows.
#[derive(Debug)]
struct Who {
    address: IpAddr,
    token: Option<String>,
    /// The place of its connection, if it came by TLS.
    visit: Option<Arc<Visit>>,
}

impl Who {
    fn of(request: &Request) -> Self {
        let text = |name: &str| request.headers().get(name)?.to_str().ok();
        let bearer = text("authorization").and_then(bearer);
        let peer = request.extensions().get::<ConnectionPeer>();
        Self {
            // Every listener sets it; no request is admitted or refused because of it.
            address: peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.address.ip()),
            token: text("x-api-key").or(bearer).map(str::to_owned),
            visit: request.extensions().get::<Arc<Visit>>().cloned(),
        }
    }

    /// Gives a connection whose request was let in a place among those of this party.
    fn welcome(&self, party: &str) -> Result<(), Failure> {
        self.seat(Party::Token(party.to_owned()))
    }

    /// Gives a connection to a sandbox's port a place among those of that sandbox.
    fn greet(&self, vm: VmId) -> Result<(), Failure> {
        self.seat(Party::Sandbox(vm))
    }

    fn seat(&self, party: Party) -> Result<(), Failure> {
        let Some(visit) = &self.visit else {
            return Ok(());
        };
        visit
            .admit(party)
            .map_err(|full| Failure::exhausted(full.to_string()))
    }
}
