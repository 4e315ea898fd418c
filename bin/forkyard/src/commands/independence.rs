//! `independent`: disks that come to depend on nothing.

use crate::{args::Format, output};
use clap::Args;
use forkyard_api_client::{Client, of_vm};
use forkyard_types::{IndependenceView, VmInspect};
use hyper::Method;
use std::{process::ExitCode, time::Duration};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// `independent`
#[derive(Debug, Args)]
pub struct Independent {
    /// Names or ids of VMs.
    #[arg(required = true)]
    pub vms: Vec<String>,
    /// Return once their disks depend on nothing.
    #[arg(long)]
    pub wait: bool,
}

/// Has the disks of VMs come to depend on nothing.
pub async fn independent(
    client: &Client,
    format: Format,
    wanted: Independent,
) -> anyhow::Result<ExitCode> {
    let mut seen = Vec::new();
    for vm in &wanted.vms {
        let path = of_vm(vm, "independence");
        let begun: VmInspect = client.call(Method::POST, &path).await?;
        seen.push(begun);
    }
    for one in &mut seen {
        while wanted.wait && !one.independence.independent {
            tokio::time::sleep(LOOK).await;
            let path = of_vm(one.vm.id.as_str(), "inspect");
            *one = client.call(Method::GET, &path).await?;
            anyhow::ensure!(
                one.independence.independent || one.vm.pid.is_some(),
                "{} has stopped: it goes on once it is started",
                one.vm.name
            );
        }
    }
    match format {
        Format::Json => output::json(&seen)?,
        Format::Text => seen
            .iter()
            .for_each(|one| say!("{}: {}", one.vm.name, told(&one.independence))),
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells in words how far one is.
pub fn told(it: &IndependenceView) -> String {
    match (it.independent, it.wanted, &it.problem) {
        (true, _, _) => "its disk depends on nothing".to_owned(),
        (false, true, Some(problem)) => format!("to be independent, and tried again: {problem}"),
        (false, true, None) => format!("{} of {} copied", it.copied, it.total),
        (false, false, _) => "its disk depends on what it lies over".to_owned(),
    }
}
