//! One connection to a QEMU's monitor.
//!
//! Commands are sent one at a time, and each waits for the answer to the one
//! before, also if its caller has given up on it: so no answer is ever taken
//! for another's. Of the events only whether the vCPUs run is kept: a flood of
//! them takes no memory.

mod bounded;
mod command;
mod handshake;

pub(crate) use command::{
    BlockCommit, BlockDevice, BlockResize, BlockStream, BlockdevAdd, QueryBlock, QueryJobs,
    QueryNamedBlockNodes,
};

use crate::{Cause, QmpError};
use futures::StreamExt;
use handshake::{Reading, Writing};
use qapi::{
    ExecuteError,
    futures::{QapiEvents, QapiService},
    qmp::{Event, QmpCommand, ShutdownCause},
};
use std::{io, path::Path, time::Duration};
use tokio::{net::UnixStream, sync::watch, task::JoinHandle, time::timeout};

/// State of the vCPUs according to the events so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing.
    Nothing,
    /// They were last let go.
    Resumed,
    /// They were last stopped.
    Stopped,
}

/// A connection. Closed when dropped; QEMU then accepts the next.
pub(crate) struct Qmp {
    service: QapiService<Writing>,
    seen: watch::Receiver<Seen>,
    cause: watch::Receiver<Cause>,
    pump: JoinHandle<()>,
    patience: Duration,
}

impl std::fmt::Debug for Qmp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qmp")
            .field("seen", &*self.seen.borrow())
            .finish_non_exhaustive()
    }
}

impl Drop for Qmp {
    fn drop(&mut self) {
        // The task holds the reading half: the connection is closed with it.
        self.pump.abort();
    }
}

impl Qmp {
    /// Connects and shakes hands. `patience` bounds this and every command.
    /// Cancel-safe.
    pub(crate) async fn connect(path: &Path, patience: Duration) -> Result<Self, QmpError> {
        let shake = async {
            let stream = UnixStream::connect(path).await.map_err(|source| {
                let path = path.to_owned();
                QmpError::Connect { path, source }
            })?;
            let greeting = |source| QmpError::Greeting { source };
            handshake::shake(stream).await.map_err(greeting)
        };
        let (service, events) = timeout(patience, shake)
            .await
            .map_err(|_| QmpError::Timeout { after: patience })??
            .into_parts();
        let (sender, seen) = watch::channel(Seen::Nothing);
        let (told, cause) = watch::channel(Cause::Unknown);
        let pump = follow(
            events,
            Told {
                seen: sender,
                cause: told,
            },
        );
        Ok(Self {
            service,
            seen,
            cause,
            pump,
            patience,
        })
    }

    /// Carries out one command. Cancel-safe: the connection stays good,
    /// though the command may still be carried out.
    pub(crate) async fn execute<C>(&self, command: C) -> Result<C::Ok, QmpError>
    where
        C: QmpCommand + Send + 'static,
        C::Ok: Send + 'static,
    {
        let after = self.patience;
        // A task of its own, for the answer must be waited for by a task
        // before the next command goes out. It ends with the connection.
        let answer = tokio::spawn(self.service.execute(command));
        let answer = match timeout(after, answer).await {
            Err(_) => return Err(QmpError::Timeout { after }),
            Ok(Err(failed)) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is being shut down.
                Err(_) => return Err(QmpError::Closed),
            },
            Ok(Ok(answer)) => answer,
        };
        match answer {
            Ok(answer) => Ok(answer),
            Err(ExecuteError::Qapi(error)) => Err(QmpError::Refused {
                class: error.class,
                desc: error.desc,
            }),
            Err(ExecuteError::Io(source)) if source.kind() == io::ErrorKind::InvalidData => {
                Err(QmpError::Answer { source })
            }
            Err(ExecuteError::Io(_)) => Err(QmpError::Closed),
        }
    }

    /// Tells whether by the last event the vCPUs stand still.
    pub(crate) fn seen_stopped(&self) -> bool {
        *self.seen.borrow() == Seen::Stopped
    }

    /// Waits until the vCPUs were last stopped, not let go; for ever if the
    /// connection ends. Cancel-safe.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut seen = self.seen.clone();
        async move {
            if seen.wait_for(|seen| *seen == Seen::Stopped).await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// Waits for the connection's end. Cancel-safe.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut seen = self.seen.clone();
        async move { while seen.changed().await.is_ok() {} }
    }

    /// Waits for the connection's end, and returns what the machine said of its own
    /// before. Cancel-safe.
    pub(crate) fn cause(&self) -> impl Future<Output = Cause> + Send + 'static {
        let mut cause = self.cause.clone();
        let after = self.patience;
        async move {
            // The last that is said comes before the end, and is read before it.
            let ended = async { while cause.changed().await.is_ok() {} };
            let _ = timeout(after, ended).await;
            *cause.borrow()
        }
    }

    /// Waits until the vCPUs were last let go, not stopped. Cancel-safe.
    pub(crate) async fn resumed(&self) -> Result<(), QmpError> {
        let after = self.patience;
        let mut seen = self.seen.clone();
        let resumed = seen.wait_for(|seen| *seen == Seen::Resumed);
        match timeout(after, resumed).await {
            Err(_) => Err(QmpError::Timeout { after }),
            Ok(Err(_)) => Err(QmpError::Closed),
            Ok(Ok(_)) => Ok(()),
        }
    }
}

/// Not async: what is, the compiler makes anew for every crate that waits for it,
/// and here that would be all that reads QEMU's many events.
fn follow(events: QapiEvents<Reading>, told: Told) -> JoinHandle<()> {
    tokio::spawn(pump(events, told))
}

/// State that events have told of.
struct Told {
    seen: watch::Sender<Seen>,
    cause: watch::Sender<Cause>,
}

/// Reads until the connection ends: hands answers to their commands, keeps
/// what the events say.
async fn pump(mut events: QapiEvents<Reading>, told: Told) {
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                tracing::debug!(?event, "QMP event");
                if let Some(now) = fold(&event) {
                    told.seen.send_replace(now);
                }
                if let Event::SHUTDOWN { data, .. } = &event {
                    told.cause.send_replace(cause_of(data.reason));
                }
            }
            // An answer that is no longer awaited; after anything worse the
            // stream ends by itself.
            Err(error) => tracing::debug!(%error, "QMP message dropped"),
        }
    }
}

/// Returns the state of the vCPUs that an event implies, if any.
fn fold(event: &Event) -> Option<Seen> {
    if let Event::RESUME { .. } = event {
        Some(Seen::Resumed)
    } else if let Event::STOP { .. } = event {
        Some(Seen::Stopped)
    } else {
        None
    }
}

fn cause_of(reason: ShutdownCause) -> Cause {
    match reason {
        ShutdownCause::guest_shutdown => Cause::PoweredOff,
        ShutdownCause::guest_reset
        | ShutdownCause::guest_panic
        | ShutdownCause::subsystem_reset => Cause::Reset,
        ShutdownCause::host_qmp_quit
        | ShutdownCause::host_qmp_system_reset
        | ShutdownCause::host_signal
        | ShutdownCause::host_ui => Cause::Told,
        ShutdownCause::none | ShutdownCause::host_error | ShutdownCause::snapshot_load => {
            Cause::Unknown
        }
    }
}

#[cfg(test)]
mod tests;
