//! Connections to ports of VMs, which may be moving, asleep, or without a daemon for a moment.
//!
//! ```text
//! connected | not now: wait, and try again until patience ends | never
//! ```

use forkyard_client::{Client, ClientError, PortStream, of_vm};
use forkyard_types::{ApiError, ErrorKind, GuestPort, VmId, VmState, VmView};
use hyper::{Method, StatusCode};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// A port of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// The VM.
    pub vm: VmId,
    /// Its port.
    pub port: GuestPort,
}

/// The VMs of a daemon, or of the cluster that it belongs to.
#[derive(Clone, Debug)]
pub struct Guests {
    client: Client,
    wake: bool,
    patience: Duration,
}

/// No connection.
#[derive(Debug)]
pub struct Unreached {
    /// As HTTP has it.
    pub status: StatusCode,
    /// Why.
    pub error: ApiError,
}

impl Guests {
    /// Those that `client` reaches. With `wake` a VM that sleeps is woken.
    pub fn new(client: Client, wake: bool, patience: Duration) -> Self {
        Self {
            client,
            wake,
            patience,
        }
    }

    /// Until when somebody who asks now waits.
    pub fn until(&self) -> Instant {
        Instant::now() + self.patience
    }

    /// Finds a VM by its name or id.
    pub async fn find(&self, vm: &str, until: Instant) -> Result<VmView, Unreached> {
        loop {
            match self.client.call(Method::GET, &of_vm(vm, "")).await {
                Ok(found) => return Ok(found),
                Err(error) => wait(unreached(error), until).await?,
            }
        }
    }

    /// Connects to a port.
    pub async fn connect(&self, server: &Server, until: Instant) -> Result<PortStream, Unreached> {
        let vm = server.vm.as_str();
        loop {
            match self.client.connect(vm, server.port).await {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    let later = unreached(error);
                    if later.error.kind == ErrorKind::Conflict {
                        self.stir(vm).await?;
                    }
                    wait(later, until).await?;
                }
            }
        }
    }

    /// Has a VM that sleeps wake, if that is wanted; refuses what no waiting helps.
    async fn stir(&self, vm: &str) -> Result<(), Unreached> {
        let found: Result<VmView, _> = self.client.call(Method::GET, &of_vm(vm, "")).await;
        let Ok(found) = found else {
            return Ok(());
        };
        let (what, to_wake) = match found.state {
            VmState::Paused => ("resume", "it is paused"),
            VmState::Stopped => ("start", "it has stopped"),
            VmState::Checkpoint => {
                return Err(asleep(&found, "it is a checkpoint, which never runs"));
            }
            // It may be moving, or begin to run.
            VmState::Starting | VmState::Warm | VmState::Running | VmState::Ending => return Ok(()),
        };
        if !self.wake {
            return Err(asleep(&found, to_wake));
        }
        tracing::info!(vm = %found.name, "{what}: there is a request for it");
        let path = of_vm(vm, what);
        match self.client.call::<VmView>(Method::POST, &path).await {
            // Another request may have been there first.
            Ok(_)
            | Err(ClientError::Refused(ApiError {
                kind: ErrorKind::Conflict,
                ..
            })) => Ok(()),
            Err(error) => Err(unreached(error)),
        }
    }
}

fn asleep(vm: &VmView, why: &str) -> Unreached {
    Unreached {
        status: StatusCode::SERVICE_UNAVAILABLE,
        error: ApiError {
            kind: ErrorKind::Conflict,
            message: format!("{} does not run: {why}", vm.name),
            hint: Some("resume or start it, or let the gateway do so: --wake".to_owned()),
        },
    }
}

/// Waits a little if what is not now may be later.
async fn wait(unreached: Unreached, until: Instant) -> Result<(), Unreached> {
    let for_now = [
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    if !for_now.contains(&unreached.status) || Instant::now() >= until {
        return Err(unreached);
    }
    sleep(PAUSE).await;
    Ok(())
}

/// An error as HTTP has it. 503 and 429 are what may be otherwise in a moment.
fn unreached(error: ClientError) -> Unreached {
    let message = error.to_string();
    let hint = error.hint().map(str::to_owned);
    let ClientError::Refused(error) = error else {
        let kind = ErrorKind::Host;
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let error = ApiError {
            kind,
            message,
            hint,
        };
        return Unreached { status, error };
    };
    let status = match error.kind {
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict | ErrorKind::Host => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Exhausted => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Guest => StatusCode::BAD_GATEWAY,
        ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        // The gateway's own rights are meant, not the client's.
        ErrorKind::Unauthorized | ErrorKind::Forbidden => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Unreached { status, error }
}
