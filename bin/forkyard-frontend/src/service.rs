//! A service: which of its VMs is chosen, and the connection to it.

use crate::{
    config::{Bounds, ServiceEntry},
    counts,
    hosts::Hosts,
    target::Target,
};
use forkyard_api_client::PortStream;
use forkyard_frontend::{
    Health, HostName, NoTarget, ProbeOutcome, Publication, Role, Traffic, choose,
};
use forkyard_gateway::{Pool, ProxyRefusal, ReplyBody, ServerWay, Unreached};
use forkyard_types::ErrorKind;
use hyper::StatusCode;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout_at};

/// Between two tries: the first, and the most.
const PAUSE: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// Time for which a VM that no host has is waited for.
const GONE: Duration = Duration::from_secs(2);
/// Time for which an answer that a VM does not run may be out of date.
const STALE: Duration = Duration::from_millis(250);

/// A server: the VM, and the host through which it is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    vm: String,
    host: HostName,
}

/// A service.
#[derive(Debug)]
pub struct Service {
    /// Name of the service.
    pub name: String,
    /// Configuration.
    pub entry: ServiceEntry,
    /// VMs that it leads to.
    pub targets: Vec<Arc<Target>>,
    /// Connections to them.
    pub pool: Pool<Server, ReplyBody>,
    bounds: Bounds,
    hosts: Arc<Hosts>,
    begun: Instant,
    open: AtomicUsize,
    last: AtomicU64,
    state: Mutex<State>,
}

/// State towards other front-ends.
#[derive(Clone, Debug)]
pub struct State {
    /// Role of this front-end.
    pub role: Role,
    /// State of the DNS.
    pub publication: Publication,
    /// Address by HTTP of the front-end that is nearest, if that is another one.
    pub nearest: Option<String>,
}

/// A client's connection, or a request, until dropped.
#[derive(Debug)]
pub struct Visit(Arc<Service>);

impl Service {
    /// One whose VMs no host has told of.
    pub fn new(
        name: String,
        entry: ServiceEntry,
        hosts: Arc<Hosts>,
        bounds: Bounds,
        begun: Instant,
    ) -> Self {
        let target = |vm: &String| Arc::new(Target::new(vm, hosts.names(), entry.requests));
        Self {
            targets: entry.vms.iter().map(target).collect(),
            pool: Pool::keeping(entry.requests),
            name,
            entry,
            bounds,
            hosts,
            begun,
            open: AtomicUsize::new(0),
            last: AtomicU64::new(0),
            state: Mutex::new(State {
                role: Role::Active,
                publication: Publication::Unseen,
                nearest: None,
            }),
        }
    }

    /// Returns the state towards other front-ends.
    pub fn state(&self) -> State {
        // Whole at every moment.
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces that state.
    pub fn becomes(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Returns the time since this program began.
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the host that the service is at: that of its first VM whose host says so.
    pub fn place(&self) -> Option<HostName> {
        self.targets.iter().find_map(|target| target.place())
    }

    /// Counts a client's connection or request.
    pub fn visited(self: &Arc<Self>) -> Visit {
        self.open.fetch_add(1, Relaxed);
        self.touch();
        Visit(Arc::clone(self))
    }

    fn touch(&self) {
        let now = u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Relaxed);
    }

    /// Returns the traffic so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            open: self.open.load(Relaxed),
            last: Duration::from_millis(self.last.load(Relaxed)),
        }
    }

    /// Returns the deadline of what comes now.
    pub fn until(&self) -> Instant {
        Instant::now() + self.bounds.patience()
    }

    /// Chooses a VM, and waits for one until the deadline if there may be one in a moment. Those in
    /// `tried` are left out.
    pub async fn pick(
        &self,
        tried: &[Arc<Target>],
        until: Instant,
    ) -> Result<Arc<Target>, ProxyRefusal> {
        let (begun, mut pause) = (Instant::now(), PAUSE[0]);
        let is_left = |it: &&Arc<Target>| !tried.iter().any(|tried| Arc::ptr_eq(tried, it));
        let left: Vec<_> = self.targets.iter().filter(is_left).collect();
        loop {
            let mut news = self.hosts.news();
            let candidates: Vec<_> = left.iter().map(|it| it.candidate()).collect();
            let why = match choose(&candidates) {
                Ok(index) => return Ok(Arc::clone(left[index])),
                Err(why) => why,
            };
            let until = match why {
                NoTarget::NotNow => until,
                NoTarget::Gone => until.min(begun + GONE),
                // It may have been resumed this moment: hosts are asked once more.
                NoTarget::Still { .. } => until.min(begun + STALE),
                NoTarget::Sick => Instant::now(),
            };
            if Instant::now() >= until {
                return Err(self.refuses(&why));
            }
            self.hosts.kick();
            tokio::select! {
                _ = news.changed() => {}
                () = sleep(pause) => pause = longer(pause),
            }
        }
    }

    fn refuses(&self, why: &NoTarget) -> ProxyRefusal {
        let hint = match why {
            NoTarget::NotNow => "`forkyard ps` on its hosts tells how it is",
            NoTarget::Sick => "is its server running? Its health check fails",
            NoTarget::Still { .. } => "resume or start it",
            NoTarget::Gone => "run it, or give the service another VM",
        };
        let why = format!(
            "{} ({}): {why}; {hint}",
            self.name,
            self.entry.vms.join(", ")
        );
        ProxyRefusal::new(StatusCode::SERVICE_UNAVAILABLE, why)
    }

    /// Connects to a VM through any host that has it; waits until the deadline while it moves, or
    /// its daemon starts again.
    pub async fn connect(&self, way: &ToTarget<'_>) -> Result<(Server, PortStream), ProxyRefusal> {
        let (target, until) = (way.target, way.until);
        let mut pause = PAUSE[0];
        loop {
            let mut news = self.hosts.news();
            let place = target.place();
            let mut why = None;
            for host in target.routes() {
                let Some(client) = self.hosts.client(&host) else {
                    continue;
                };
                let asked = client.connect(&target.vm, self.entry.port);
                let Ok(asked) = timeout_at(until, asked).await else {
                    break;
                };
                let error = match asked {
                    Ok(stream) => {
                        // Where a path is checked, a connection alone proves nothing.
                        if way.counts && self.entry.health.path.is_none() {
                            self.probed(target, ProbeOutcome::Answered, place.as_ref());
                        }
                        let vm = target.vm.clone();
                        return Ok((Server { vm, host }, stream));
                    }
                    Err(error) => Unreached::from(error),
                };
                tracing::debug!(vm = target.vm, %host, error = %error.error, "not connected");
                match error.error.kind {
                    // The VM has said so: no other host knows better.
                    ErrorKind::Guest => {
                        if way.counts {
                            self.probed(target, ProbeOutcome::Failed, place.as_ref());
                        }
                        return Err(error.into());
                    }
                    ErrorKind::Exhausted => {
                        // Idle ones take places of the VM's.
                        self.pool.forget(|it| it.vm == target.vm);
                    }
                    ErrorKind::NotFound
                    | ErrorKind::Conflict
                    | ErrorKind::Host
                    | ErrorKind::Timeout
                    | ErrorKind::Invalid
                    | ErrorKind::Unauthorized
                    | ErrorKind::Forbidden => {}
                }
                why.get_or_insert(error);
            }
            if Instant::now() >= until {
                return Err(why.map_or_else(|| self.refuses(&NoTarget::NotNow), ProxyRefusal::from));
            }
            match choose(&[target.candidate()]) {
                Ok(_) | Err(NoTarget::NotNow | NoTarget::Gone) => {}
                Err(NoTarget::Sick) if !way.counts => {}
                Err(why @ (NoTarget::Sick | NoTarget::Still { .. })) => {
                    return Err(self.refuses(&why));
                }
            }
            self.hosts.kick();
            tokio::select! {
                _ = news.changed() => {}
                () = sleep(pause) => pause = longer(pause),
            }
        }
    }

    /// Takes down how a VM answered.
    pub fn probed(&self, target: &Target, probe: ProbeOutcome, place: Option<&HostName>) {
        let Some(health) = target.probed(probe, place, self.entry.health.fall) else {
            return;
        };
        let well = health != Health::Sick;
        counts::healthy(&self.name, &target.vm, well);
        match well {
            true => tracing::info!(service = self.name, vm = target.vm, "it answers"),
            false => tracing::warn!(
                service = self.name,
                vm = target.vm,
                "it does not answer, and is not chosen until it does"
            ),
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.touch();
        self.0.open.fetch_sub(1, Relaxed);
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 3 / 2).min(PAUSE[1])
}

/// Way to one VM of a service.
#[derive(Debug)]
pub struct ToTarget<'a> {
    /// The service.
    pub service: &'a Service,
    /// The VM.
    pub target: &'a Target,
    /// Deadline.
    pub until: Instant,
    /// True if the VM's health is judged by whether it takes the connection.
    pub counts: bool,
}

impl ServerWay for ToTarget<'_> {
    type Key = Server;
    type Stream = PortStream;

    /// Connections through a host that the VM is leaving go on, and wait with it. Once it is at
    /// another, they are used no more.
    fn kept(&self) -> Vec<Server> {
        let hosts = match self.target.place() {
            Some(host) => vec![host],
            None => self.target.routes(),
        };
        let vm = &self.target.vm;
        let server = |host| Server {
            vm: vm.clone(),
            host,
        };
        hosts.into_iter().map(server).collect()
    }

    async fn connect(&self) -> Result<(Server, PortStream), ProxyRefusal> {
        self.service.connect(self).await
    }

    fn server(&self) -> String {
        format!("port {} of {}", self.service.entry.port, self.target.vm)
    }
}
