//! `publish` and `unpublish`: ports of the host that lead to a VM, and addresses of its own.

use crate::{args::Format, output};
use clap::Args;
use forkyard_api_client::{Client, of_vm};
use forkyard_types::{Publish, PublishRequest, Unpublish, VmView};
use hyper::Method;
use std::process::ExitCode;

/// `publish`
#[derive(Debug, Args)]
pub struct Ports {
    /// Name or id of the VM.
    vm: String,
    /// Port of the host and port of the VM, of UDP with /udp at the end; or an address that the VM is to have
    /// outside, as ADDRESS/routed or ADDRESS/bridge. All of them, or none.
    #[arg(required = true, value_name = "[ADDRESS:]PORT:GUESTPORT|ADDRESS/HOW")]
    ports: Vec<Publish>,
}

/// `unpublish`
#[derive(Debug, Args)]
pub struct Closed {
    /// Name or id of the VM.
    vm: String,
    /// Port of the host, of UDP with /udp at the end; or an address of the VM's own.
    #[arg(required = true, value_name = "PORT|ADDRESS")]
    leads: Vec<Unpublish>,
}

/// Has ports of the host lead to a VM, or gives it addresses.
pub async fn publish(client: &Client, format: Format, wanted: Ports) -> anyhow::Result<ExitCode> {
    let request = PublishRequest {
        ports: wanted.ports,
    };
    let vm: VmView = client
        .post(&of_vm(&wanted.vm, "published"), &request)
        .await?;
    show(format, &vm)
}

/// Closes ports of the host that lead to a VM, or takes addresses from it.
pub async fn unpublish(
    client: &Client,
    format: Format,
    wanted: Closed,
) -> anyhow::Result<ExitCode> {
    let mut last = None;
    for lead in wanted.leads {
        let path = match lead {
            Unpublish::Port(port, transport) => {
                format!("published/{port}?transport={transport}")
            }
            Unpublish::Address(ip) => format!("published/{ip}"),
        };
        let path = of_vm(&wanted.vm, &path);
        last = Some(client.call::<VmView>(Method::DELETE, &path).await?);
    }
    match last {
        Some(vm) => show(format, &vm),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn show(format: Format, vm: &VmView) -> anyhow::Result<ExitCode> {
    match format {
        Format::Json => output::json(vm)?,
        Format::Text => vm.published.iter().for_each(|port| say!("{port}")),
    }
    Ok(ExitCode::SUCCESS)
}
