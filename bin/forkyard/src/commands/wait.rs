//! `wait`: until a VM is as it is wanted.

use super::{signals::interruptible, vms::Impatient};
use crate::{args::Format, output};
use anyhow::bail;
use clap::{Args, ValueEnum};
use forkyard_api_client::{Client, ClientError, EventStream, of_vm};
use forkyard_types::{ErrorKind, EventKind, EventKinds, EventsRequest, VmState, VmView};
use hyper::Method;
use std::{process::ExitCode, time::Duration};
use tokio::time::{sleep, timeout};

/// A look without an event: those of other nodes of a cluster are not told here.
const LOOK: Duration = Duration::from_secs(1);
/// Hint after an interrupt.
const STAYS: &str = "`forkyard ps` shows it";

/// `wait`
#[derive(Debug, Args)]
pub struct Wait {
    /// Name or id of the VM, which need not exist yet.
    pub vm: String,
    /// State to wait for.
    #[arg(long, value_enum, default_value = "running")]
    pub until: Until,
    /// Give up after so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: Option<u32>,
}

/// State of a VM that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Until {
    /// The VM runs, and its agent has answered.
    Running,
    /// The VM is paused at its user's request.
    Paused,
    /// The VM has ended, and can be started again or removed.
    Stopped,
    /// There is no such VM.
    Removed,
}

/// A state, seen.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Wanted,
    NotYet,
    /// The VM ended otherwise.
    Never(String),
}

/// Waits; says the VM then, or nothing of one that is removed.
pub async fn wait(client: &Client, format: Format, wanted: Wait) -> anyhow::Result<ExitCode> {
    let waiting = async {
        match wanted.timeout {
            None => until(client, format, &wanted).await,
            Some(seconds) => {
                let limit = Duration::from_secs(seconds.into());
                match timeout(limit, until(client, format, &wanted)).await {
                    Ok(done) => done,
                    Err(_) => Err(Impatient::after(seconds).into()),
                }
            }
        }
    };
    let vm = interruptible(STAYS, waiting).await??;
    match (format, vm) {
        (Format::Json, vm) => output::json(&vm)?,
        (Format::Text, Some(vm)) => say!("{} is {}", vm.name, vm.state),
        (Format::Text, None) => {}
    }
    Ok(ExitCode::SUCCESS)
}

async fn until(client: &Client, format: Format, wanted: &Wait) -> anyhow::Result<Option<VmView>> {
    // Before the first look, so that nothing happens unseen in between.
    let mut events = listen(client).await?;
    let (mut was, mut told) = (None, false);
    loop {
        let vm = match look(client, &wanted.vm).await {
            Ok(vm) => vm,
            // Its VMs run on, and the next daemon takes them over.
            Err(error) if error.is_no_daemon() || matches!(error, ClientError::Broke { .. }) => {
                sleep(LOOK).await;
                if let Ok(anew) = listen(client).await {
                    events = anew;
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let state = vm.as_ref().map(|vm| vm.state);
        match seen(wanted.until, was, state) {
            Seen::Wanted => return Ok(vm),
            Seen::Never(why) => bail!("{} {why}", wanted.vm),
            Seen::NotYet => {}
        }
        if !told
            && format == Format::Text
            && let Some(why) = awaited(wanted, state)
        {
            tell!("{why}");
            told = true;
        }
        was = state.or(was);
        tokio::select! {
            _ = happens(&mut events) => {}
            () = sleep(LOOK) => {}
        }
    }
}

async fn listen(client: &Client) -> Result<EventStream, ClientError> {
    let request = EventsRequest {
        kind: EventKinds([EventKind::Vm].into()),
        vm: None,
        family: None,
        since: None,
        follow: true,
    };
    client.host_events(request).await
}

/// Waits for an event; a daemon that ends has none, and is asked again a little later.
async fn happens(events: &mut EventStream) {
    if !matches!(events.next().await, Ok(Some(_))) {
        std::future::pending::<()>().await;
    }
}

async fn look(client: &Client, vm: &str) -> Result<Option<VmView>, ClientError> {
    match client.call(Method::GET, &of_vm(vm, "")).await {
        Ok(vm) => Ok(Some(vm)),
        Err(ClientError::Refused(error)) if error.kind == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Says what others have to do before a VM is as it is wanted; none if it may come by itself.
fn awaited(wanted: &Wait, state: Option<VmState>) -> Option<String> {
    let vm = &wanted.vm;
    match state {
        None => Some(format!("there is no VM {vm} yet: waiting until there is")),
        Some(VmState::Stopped) if wanted.until != Until::Removed => Some(format!(
            "{vm} is stopped: waiting until `forkyard start` or its restart policy starts it"
        )),
        Some(
            VmState::Starting
            | VmState::Warm
            | VmState::Running
            | VmState::Paused
            | VmState::Ending
            | VmState::Stopped
            | VmState::Checkpoint,
        ) => None,
    }
}

/// Compares what is wanted with a VM's state, and the one before; none if there is no VM.
fn seen(wanted: Until, was: Option<VmState>, state: Option<VmState>) -> Seen {
    let never = |why: &str| Seen::Never(why.to_owned());
    match (wanted, state) {
        (Until::Running, Some(VmState::Running))
        | (Until::Paused, Some(VmState::Paused))
        | (Until::Stopped, Some(VmState::Stopped))
        | (Until::Removed, None) => Seen::Wanted,
        (Until::Running | Until::Paused | Until::Stopped, Some(VmState::Checkpoint)) => {
            never("is a checkpoint, which never runs")
        }
        (Until::Running | Until::Paused | Until::Stopped, None) if was.is_some() => {
            never("has been removed")
        }
        // A VM that was stopped from the beginning may be started yet.
        (Until::Running | Until::Paused, Some(VmState::Stopped))
            if was.is_some_and(|was| was != VmState::Stopped) =>
        {
            never("has stopped: `forkyard inspect` says why")
        }
        (Until::Running | Until::Paused | Until::Stopped | Until::Removed, _) => Seen::NotYet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_that_is_not_there_or_stopped_is_told_of() {
        let wait = |until| Wait {
            vm: "p".into(),
            until,
            timeout: None,
        };
        for until in [Until::Running, Until::Paused, Until::Stopped] {
            let told = awaited(&wait(until), None).expect("told");
            assert_eq!(told, "there is no VM p yet: waiting until there is");
        }
        let told = awaited(&wait(Until::Running), Some(VmState::Stopped)).expect("told");
        assert!(told.starts_with("p is stopped: "), "{told}");
        assert_eq!(awaited(&wait(Until::Removed), Some(VmState::Stopped)), None);
        assert_eq!(awaited(&wait(Until::Paused), Some(VmState::Running)), None);
    }

    #[test]
    fn a_state_that_can_come_no_more_is_not_waited_for() {
        use VmState::{Checkpoint, Running, Starting, Stopped};
        let never = |wanted, was, state| matches!(seen(wanted, was, state), Seen::Never(_));
        assert_eq!(seen(Until::Running, None, Some(Running)), Seen::Wanted);
        assert_eq!(seen(Until::Running, None, None), Seen::NotYet);
        assert_eq!(seen(Until::Running, None, Some(Stopped)), Seen::NotYet);
        assert!(never(Until::Running, Some(Starting), Some(Stopped)));
        let still = seen(Until::Running, Some(Stopped), Some(Stopped));
        assert_eq!(still, Seen::NotYet);
        assert!(never(Until::Stopped, Some(Running), None));
        assert!(never(Until::Running, None, Some(Checkpoint)));
        assert_eq!(seen(Until::Removed, Some(Running), None), Seen::Wanted);
        assert_eq!(seen(Until::Removed, None, None), Seen::Wanted);
        let held = seen(Until::Removed, None, Some(Checkpoint));
        assert_eq!(held, Seen::NotYet);
    }
}
