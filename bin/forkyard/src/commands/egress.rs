//! `egress`: what the VMs of a family may reach.

use crate::{
    args::{Format, Net, way_out},
    output,
};
use clap::Args;
use forkyard_api_client::{Client, of_vm};
use forkyard_types::{Allow, Destination, EgressRequest, NetworkPolicy, VmInspect};
use hyper::Method;
use std::process::ExitCode;

/// `egress`
#[derive(Debug, Args)]
pub struct Egress {
    /// Name or id of a VM of the family.
    vm: String,
    /// The way out: none, or nat. Implied by --allow and --deny.
    #[arg(long, value_enum)]
    net: Option<Net>,
    /// Reach only this, as 192.0.2.0/24, 192.0.2.7:443, example.org or *.example.org:443; can be repeated.
    #[arg(long, value_name = "DESTINATION[:PORT]")]
    allow: Vec<Destination>,
    /// Do not reach this, even if it is allowed; can be repeated.
    #[arg(long, value_name = "NETWORK[:PORT]")]
    deny: Vec<Allow>,
}

/// Shows what the VMs of a family may reach, or says it anew.
pub async fn egress(client: &Client, format: Format, wanted: Egress) -> anyhow::Result<ExitCode> {
    let Egress {
        vm,
        net,
        allow,
        deny,
    } = wanted;
    let shown = net.is_none() && allow.is_empty() && deny.is_empty();
    let policy: NetworkPolicy = match shown {
        true => {
            let seen: VmInspect = client.call(Method::GET, &of_vm(&vm, "inspect")).await?;
            seen.network
        }
        false => {
            let out = way_out(net, &allow, &deny);
            let request = EgressRequest { out, allow, deny };
            client.post(&of_vm(&vm, "egress"), &request).await?
        }
    };
    match format {
        Format::Json => output::json(&policy)?,
        Format::Text => say!("{}", output::network(&policy)),
    }
    Ok(ExitCode::SUCCESS)
}
