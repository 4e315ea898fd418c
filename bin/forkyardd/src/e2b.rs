//! The API of E2B over this host's VMs: its SDKs work with another URL.
//!
//! ```text
//! api: /sandboxes…                       --X-API-Key: a token of this host--> control
//! PORT-SANDBOX.DOMAIN, E2b-Sandbox-Id    --49983--> envd: process, filesystem, files
//!                                        --else---> proxy: HTTP of the guest's port
//! ```
//!
//! Translation and nothing else: what is done is done by the methods of `Host` that the native API
//! has, and requests that those refuse fail here as well. Nothing is kept but watchers of folders,
//! which end with the daemon: what is particular to a sandbox is in its VM's labels. What comes over
//! the network beyond the loopback comes by TLS.

mod control;
mod envd;
mod files;
mod filesystem;
mod input;
mod process;
mod proxy;
mod reply;
mod watch;

use crate::{
    doors::{Party, Visit},
    gate::{Asker, Peer},
    http::{self, Bodies},
    idle::Idle,
    listen,
    remote::{FAREWELL, Remote},
};
use anyhow::Context;
use axum::{
    Router,
    extract::{ConnectInfo, DefaultBodyLimit, Request, State},
    http::{HeaderMap, HeaderValue, header},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
};
use forkyard_access::Access;
use forkyard_e2b::{ENVD_PORT, SandboxAddress, of_host};
use forkyard_fork::Host;
use forkyard_types::{Labels, VmId, VmState, VmView};
use reply::Failure;
use std::{
    fs,
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
    time::Instant,
};
use tokio::net::TcpListener;
use tower::ServiceExt;

/// Labels of the sandbox's that are not its metadata begin so.
const OURS: &str = "e2b.";
/// Template that it was made of.
const TEMPLATE: &str = "e2b.template";
/// Set if it is paused, and not removed, when its time is up.
const AUTO_PAUSE: &str = "e2b.autopause";
/// Set if its ports are reached with a token alone.
const PRIVATE: &str = "e2b.private";
/// Seconds that a sandbox is wanted if nothing is said.
const TIMEOUT_S: u32 = 300;
/// Most bytes of a request that is no file.
const BODY: usize = 8 << 20;

/// What the operator chose.
#[derive(Clone, Debug)]
pub struct Choices {
    /// Template that `base` is, and that others than images and checkpoints are not.
    pub base: String,
    /// MiB of memory of a sandbox that boots.
    pub memory_mib: u64,
    /// Domain under which clients find ports of sandboxes.
    pub domain: Option<String>,
}

/// What handlers share.
#[derive(Clone, Debug)]
struct E2b {
    host: Arc<Host>,
    access: Arc<Access>,
    key: Arc<Key>,
    choices: Arc<Choices>,
    domain: String,
    watchers: watch::Watchers,
    bodies: Bodies,
}

/// Secret that tokens of sandboxes are made of; kept, so that they hold for the next daemon.
struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    fn kept_in(state: &Path) -> anyhow::Result<Self> {
        let path = state.join("e2b.key");
        let read = |path: &Path| -> io::Result<Option<[u8; 32]>> {
            match fs::read(path) {
                Ok(bytes) => Ok(bytes.try_into().ok()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        if let Some(key) = read(&path)? {
            return Ok(Self(key));
        }
        // Absent, or cut off as the last daemon died.
        let drawn: String = (0..4).map(|_| VmId::random().to_string()).collect();
        let key = *blake3::hash(drawn.as_bytes()).as_bytes();
        let new = path.with_extension("new");
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = file.open(&new)?;
        file.write_all(&key)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        Ok(Self(key))
    }

    /// The token for a use of a sandbox.
    fn token(&self, purpose: &str, vm: VmId) -> String {
        let text = format!("{purpose}:{vm}");
        blake3::keyed_hash(&self.0, text.as_bytes()).to_string()
    }
}

/// True if a token is the one that is wanted; takes the same time wherever it is wrong.
fn is_token(shown: &str, wanted: &str) -> bool {
    blake3::hash(shown.as_bytes()) == blake3::hash(wanted.as_bytes())
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
            key: Arc::new(Key::kept_in(state).context("the key of sandboxes' tokens")?),
            domain: domain.unwrap_or_else(|| format!("localhost:{}", listens.port())),
            choices: Arc::new(choices),
            watchers: watch::Watchers::default(),
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

/// Notes who is at the other end of a connection without TLS.
async fn known(
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(Peer {
        address,
        certificate: None,
    });
    next.run(request).await
}

fn router(e2b: E2b, idle: &Idle) -> Router {
    let control = control::router(e2b.clone()).layer(DefaultBodyLimit::max(BODY));
    let data = Router::new()
        .fallback(data)
        .with_state(e2b)
        .layer(from_fn(crate::audit::note));
    Router::new()
        .fallback(dispatch)
        .with_state(Planes { control, data })
        .layer(from_fn_with_state(idle.clone(), http::busy))
}

/// Requests for the API, and those for ports of sandboxes.
#[derive(Clone, Debug)]
struct Planes {
    control: Router,
    data: Router,
}

async fn dispatch(State(planes): State<Planes>, mut request: Request) -> Response {
    let plane = match target(request.headers(), request.uri().host()) {
        Some(target) => {
            // For the log: the sandbox's token names no user.
            let asker = Asker::User(format!("of sandbox {}", target.id));
            request.extensions_mut().insert(asker);
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
    let Some(target) = target(request.headers(), request.uri().host()) else {
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

/// The sandbox that a request is for, and the port there; none if it is for the API.
fn target(headers: &HeaderMap, host: Option<&str>) -> Option<SandboxAddress> {
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

/// True if a request that shows no token may be for a VM that it names so: a sandbox of this
/// endpoint's, by its id, which is drawn. Names are guessed, and other VMs are none of its business.
fn is_told(labels: &Labels, id: VmId, named: &str) -> bool {
    labels.0.contains_key(TEMPLATE) && id.as_str() == named
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
                && request.uri().path() == "/files"
                && files::is_signed(request, &self.key.token("envd", vm.id)))
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
                crate::metrics::not_let_in(&refused);
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

/// Where a request came from, and what it shows.
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
        let bearer = text("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let peer = request.extensions().get::<Peer>();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_token_a_sandbox_is_found_by_its_id_and_no_other_vm_at_all() {
        let id = VmId::random();
        let ours = Labels([(TEMPLATE.to_owned(), "base".to_owned())].into());
        let others = Labels([("user".to_owned(), "ada".to_owned())].into());
        assert!(is_told(&ours, id, id.as_str()));
        for (labels, named) in [(&ours, "p"), (&others, id.as_str()), (&others, "p")] {
            assert!(!is_told(labels, id, named), "{labels:?} {named}");
        }
    }

    #[test]
    fn the_key_is_kept_and_tokens_are_of_one_sandbox_and_one_purpose() {
        let folder = tempfile::tempdir().expect("folder");
        let key = Key::kept_in(folder.path()).expect("made");
        let (a, b) = (VmId::random(), VmId::random());
        let again = Key::kept_in(folder.path()).expect("kept");
        assert_eq!(key.token("envd", a), again.token("envd", a));
        assert_ne!(key.token("envd", a), key.token("envd", b));
        assert_ne!(key.token("envd", a), key.token("traffic", a));
        assert!(is_token(&key.token("envd", a), &again.token("envd", a)));
        assert!(!is_token("", &key.token("envd", a)));
        fs::write(folder.path().join("e2b.key"), b"cut").expect("written");
        let new = Key::kept_in(folder.path()).expect("made anew");
        assert_ne!(key.token("envd", a), new.token("envd", a));
    }

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
}
