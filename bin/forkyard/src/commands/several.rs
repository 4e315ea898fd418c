//! `pause`, `resume`, `start`, `restart`, `stop`, `rm`: of several VMs, or of all.

use super::{signals::interruptible, vms::PARTLY};
use crate::{
    args::{Format, Some},
    daemon, output,
};
use forkyard_api_client::{Client, ClientError, of_vm};
use forkyard_types::{ApiError, ErrorKind, ListedVm, VmView};
use hyper::Method;
use std::{collections::BTreeSet, path::Path, process::ExitCode};

/// Advice about a VM that is being changed.
const CHANGED: &str = "`forkyard ps` shows what comes of it";
/// And about one that is stopped to be started.
const STOPPED: &str = "it stops, and is not started again: `forkyard start` does that";

/// Has VMs stand still.
pub async fn pause(client: &Client, format: Format, some: Some) -> anyhow::Result<ExitCode> {
    each(client, format, some, |vm| {
        (Method::POST, of_vm(vm, "pause"))
    })
    .await
}

/// Lets VMs go on.
pub async fn resume(client: &Client, format: Format, some: Some) -> anyhow::Result<ExitCode> {
    each(client, format, some, |vm| {
        (Method::POST, of_vm(vm, "resume"))
    })
    .await
}

/// Boots VMs again that have stopped.
pub async fn start(client: &Client, format: Format, some: Some) -> anyhow::Result<ExitCode> {
    each(client, format, some, |vm| {
        (Method::POST, of_vm(vm, "start"))
    })
    .await
}

/// Powers VMs off, and boots them again from their own disks. One that has stopped is booted.
pub async fn restart(
    client: &Client,
    format: Format,
    vms: Vec<String>,
) -> anyhow::Result<ExitCode> {
    // Before any of them is stopped: a clone could not be started again.
    for vm in &vms {
        // One that there is not is told of with the others.
        if let Ok(about) = client.call::<VmView>(Method::GET, &of_vm(vm, "")).await
            && about.parent.is_some()
        {
            return Err(ClientError::Refused(no_boot(&about)).into());
        }
    }
    for vm in &vms {
        let path = of_vm(vm, "stop");
        let stopped = client.call::<VmView>(Method::POST, &path);
        match interruptible(STOPPED, stopped).await? {
            // Whatever is wrong with it, `start` says it.
            Ok(_) | Err(ClientError::Refused(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    start(client, format, Some { vms, all: false }).await
}

/// Refusal to restart a clone, or what was woken from one.
fn no_boot(vm: &VmView) -> ApiError {
    ApiError {
        kind: ErrorKind::Conflict,
        message: format!(
            "{} is a clone, and has no boot of its own that could be repeated; nothing was stopped",
            vm.name
        ),
        hint: Some("fork its parent or a checkpoint again".to_owned()),
    }
}

/// Powers VMs off.
pub async fn stop(client: &Client, format: Format, some: Some) -> anyhow::Result<ExitCode> {
    each(client, format, some, |vm| (Method::POST, of_vm(vm, "stop"))).await
}

/// Ends VMs. With the last of them goes a daemon that was started for them.
pub async fn remove(
    client: &Client,
    run_dir: &Path,
    format: Format,
    some: Some,
) -> anyhow::Result<ExitCode> {
    let all = some.all;
    let code = each(client, format, some, |vm| (Method::DELETE, of_vm(vm, ""))).await?;
    if all {
        daemon::gone(client, run_dir).await;
    }
    Ok(code)
}

/// Every VM, clones first: nothing is then taken away from under another VM. With those that are
/// being made, if they are to be waited for.
async fn every(client: &Client, made: bool) -> anyhow::Result<Vec<String>> {
    let path = match made {
        true => "/v1/vms?made=true",
        false => "/v1/vms",
    };
    let vms: Vec<ListedVm> = client.call(Method::GET, path).await?;
    // No daemon can be asked about what is on a lost node.
    let there = vms
        .into_iter()
        .filter(|vm| !vm.lost)
        .map(|listed| listed.vm);
    let mut vms: Vec<_> = there.collect();
    vms.sort_by_key(|vm| std::cmp::Reverse((vm.family, vm.member)));
    Ok(vms.into_iter().map(|vm| vm.id.to_string()).collect())
}

async fn each(
    client: &Client,
    format: Format,
    some: Some,
    request: impl Fn(&str) -> (Method, String),
) -> anyhow::Result<ExitCode> {
    let (all, mut names) = (some.all, some.vms);
    let (mut done, mut failed) = (Vec::new(), 0);
    let mut tried = BTreeSet::new();
    let mut interrupted = None;
    'all: loop {
        if all {
            // Again and again: clones of a fork under way are listed as they come. Those that do
            // not end with a parent are waited for in the end.
            for made in [false, true] {
                names = every(client, made).await?;
                names.retain(|name| tried.insert(name.clone()));
                if !names.is_empty() {
                    break;
                }
            }
        }
        for name in &names {
            let (method, path) = request(name);
            match interruptible(CHANGED, client.call::<VmView>(method, &path)).await {
                Ok(Ok(vm)) => done.push(vm),
                Err(by_user) => {
                    interrupted = Some(by_user);
                    break 'all;
                }
                // Its clone's exit or another client may have been faster.
                Ok(Err(ClientError::Refused(gone))) if all && gone.kind == ErrorKind::NotFound => {}
                Ok(Err(error)) => {
                    failed += 1;
                    output::complain(&error.into());
                }
            }
        }
        if !all || names.is_empty() {
            break;
        }
    }
    match format {
        Format::Json => output::json(&done)?,
        Format::Text => done.iter().for_each(|vm| say!("{}", vm.name)),
    }
    if let Some(interrupted) = interrupted {
        return Err(interrupted.into());
    }
    Ok(match (failed, done.len()) {
        (0, _) => ExitCode::SUCCESS,
        (_, 0) => ExitCode::FAILURE,
        (_, _) => ExitCode::from(PARTLY),
    })
}
