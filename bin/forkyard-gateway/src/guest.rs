//! Connections to ports of VMs, which may be moving, asleep, or without a daemon for a moment.
//!
//! ```text
//! connected | not now: wait, and try again until patience ends | never
//! ```

use crate::counts;
use forkyard_api_client::{Client, ClientError, PortStream, of_vm};
use forkyard_gateway::Unreached;
use forkyard_types::{ApiError, ErrorKind, GuestPort, ShareView, VmId, VmState, VmView};
use hyper::{Method, StatusCode};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout_at};

/// Between two tries: the first, and the most.
const PAUSE: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// A port of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// The VM.
    pub vm: VmId,
    /// Port of the VM.
    pub port: GuestPort,
}

/// The VMs of a daemon, or of the cluster that it belongs to.
#[derive(Clone, Debug)]
pub struct Guests {
    client: Client,
    wake: bool,
    patience: Duration,
    /// Those that are being woken: once for all requests that wait.
    waking: Arc<Mutex<HashSet<VmId>>>,
}

/// State found of a VM that did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stirred {
    /// The VM may be moving, or begin to run.
    Waits,
    /// The VM was woken: its servers may start.
    Woken,
}

impl Guests {
    /// Those that `client` reaches. With `wake` a VM that sleeps is woken.
    pub fn new(client: Client, wake: bool, patience: Duration) -> Self {
        Self {
            client,
            wake,
            patience,
            waking: Arc::default(),
        }
    }

    /// Deadline of a request that comes now.
    pub fn until(&self) -> Instant {
        Instant::now() + self.patience
    }

    /// Finds a VM by its name or id.
    pub async fn find(&self, vm: &str, until: Instant) -> Result<VmView, Unreached> {
        let mut pause = PAUSE[0];
        loop {
            match self.client.call(Method::GET, &of_vm(vm, "")).await {
                Ok(found) => return Ok(found),
                Err(error) => wait(error.into(), until, &mut pause).await?,
            }
        }
    }

    /// Tokens for a VM's ports that the daemon has given out; waits for the daemon until the deadline.
    pub async fn shares(&self, vm: VmId, until: Instant) -> Result<Vec<ShareView>, Unreached> {
        let (path, mut pause) = (of_vm(vm.as_str(), "shares"), PAUSE[0]);
        loop {
            match self.client.call(Method::GET, &path).await {
                Ok(all) => return Ok(all),
                Err(error) => wait(error.into(), until, &mut pause).await?,
            }
        }
    }

    /// Connects to a port. `crowded` is called if the VM has no place left for a connection.
    pub async fn connect(
        &self,
        server: &Server,
        until: Instant,
        crowded: impl Fn(),
    ) -> Result<PortStream, Unreached> {
        let (vm, mut pause) = (server.vm, PAUSE[0]);
        let mut stirred = Stirred::Waits;
        loop {
            let mut why: Unreached = match self.client.connect(vm.as_str(), server.port).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error.into(),
            };
            let kind = why.error.kind;
            if kind == ErrorKind::Exhausted {
                crowded();
            }
            if kind == ErrorKind::Conflict && stirred == Stirred::Waits {
                stirred = self.stir(vm, until).await?;
            }
            // Its server has not started yet.
            why.for_now |= kind == ErrorKind::Guest && stirred == Stirred::Woken;
            wait(why, until, &mut pause).await?;
        }
    }

    /// Has a VM that sleeps wake, if that is wanted; refuses what no waiting helps.
    async fn stir(&self, vm: VmId, until: Instant) -> Result<Stirred, Unreached> {
        let found: Result<VmView, _> = self.client.call(Method::GET, &of_vm(vm.as_str(), "")).await;
        let Ok(found) = found else {
            return Ok(Stirred::Waits);
        };
        if found.moving.is_some() {
            return Ok(Stirred::Waits);
        }
        let (what, why) = match found.state {
            VmState::Paused => ("resume", "it is paused"),
            VmState::Stopped => ("start", "it has stopped"),
            VmState::Checkpoint => {
                return Err(asleep(&found, "it is a checkpoint, which never runs"));
            }
            VmState::Starting | VmState::Warm | VmState::Running | VmState::Ending => {
                return Ok(Stirred::Waits);
            }
        };
        if !self.wake {
            return Err(asleep(&found, why));
        }
        if !lock(&self.waking).insert(vm) {
            return Ok(Stirred::Woken);
        }
        let _woken = Woken(&self.waking, vm);
        tracing::info!(vm = %found.name, "{what}: there is a request for it");
        let path = of_vm(vm.as_str(), what);
        let woken = self.client.call::<VmView>(Method::POST, &path);
        let woken = timeout_at(until, woken).await;
        counts::woken(matches!(woken, Ok(Ok(_))));
        match woken {
            Ok(Err(ClientError::Refused(error))) if error.kind != ErrorKind::Conflict => {
                Err(ClientError::from(error).into())
            }
            // Another client may have woken it first; a VM that takes longer goes on waking.
            Ok(Ok(_) | Err(_)) | Err(_) => Ok(Stirred::Woken),
        }
    }
}

/// A VM that is being woken, until dropped.
struct Woken<'a>(&'a Mutex<HashSet<VmId>>, VmId);

impl Drop for Woken<'_> {
    fn drop(&mut self) {
        lock(self.0).remove(&self.1);
    }
}

fn lock(waking: &Mutex<HashSet<VmId>>) -> MutexGuard<'_, HashSet<VmId>> {
    // Whole at every moment.
    waking.lock().unwrap_or_else(PoisonError::into_inner)
}

fn asleep(vm: &VmView, why: &str) -> Unreached {
    Unreached {
        status: StatusCode::SERVICE_UNAVAILABLE,
        error: ApiError {
            kind: ErrorKind::Conflict,
            message: format!("{} does not run: {why}", vm.name),
            hint: Some("resume or start it, or let the gateway do so: --wake".to_owned()),
        },
        for_now: false,
    }
}

/// Waits a little, longer each time, if what is not now may be later.
async fn wait(why: Unreached, until: Instant, pause: &mut Duration) -> Result<(), Unreached> {
    if !why.for_now || Instant::now() >= until {
        return Err(why);
    }
    sleep(*pause).await;
    *pause = (*pause * 3 / 2).min(PAUSE[1]);
    Ok(())
}
