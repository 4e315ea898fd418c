//! `share`: tokens with which clients of a gateway reach ports of VMs.

use crate::{args::Format, output};
use clap::Subcommand;
use forkyard_api_client::{Client, of_vm};
use forkyard_types::{
    GatewayBase, GuestPort, ShareGrant, ShareId, ShareRequest, ShareView, VmView,
};
use hyper::Method;
use std::process::ExitCode;

/// `share`
#[derive(Debug, Subcommand)]
pub enum Share {
    /// Give out a token for one port of a VM. It is shown this once; the daemon keeps a hash of it alone.
    #[command(
        after_help = "Example: forkyard share add p 8080 --expires 8h --base https://vms.example.org"
    )]
    Add {
        /// Name or id of the VM.
        vm: String,
        /// The port.
        port: GuestPort,
        /// Time for which it holds, as in 90, 10m, 8h or 2d.
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = super::lifetime::seconds)]
        expires: u32,
        /// Purpose, for the list.
        #[arg(long, default_value = "")]
        note: String,
        /// Address at which browsers reach the gateway, with its domain: the whole address is printed then.
        #[arg(long, env = "FORKYARD_GATEWAY", value_name = "http[s]://DOMAIN[:PORT]")]
        base: Option<GatewayBase>,
    },
    /// List the tokens for ports of a VM.
    #[command(after_help = "Example: forkyard share ls p")]
    Ls {
        /// Name or id of the VM.
        vm: String,
    },
    /// Take tokens back: gateways refuse them within two seconds. What is open stays open.
    #[command(after_help = "Example: forkyard share rm p 5kx93vqa2mt")]
    Rm {
        /// Name or id of the VM.
        vm: String,
        /// Ids of the tokens.
        #[arg(required = true)]
        shares: Vec<ShareId>,
    },
}

/// Gives out, lists or takes back tokens for ports.
pub async fn share(client: &Client, format: Format, share: Share) -> anyhow::Result<ExitCode> {
    match share {
        Share::Add {
            vm,
            port,
            expires,
            note,
            base,
        } => {
            let wanted = ShareRequest {
                port,
                expires_s: expires,
                note,
            };
            add(client, format, &vm, wanted, base).await?;
        }
        Share::Ls { vm } => {
            let all: Vec<ShareView> = client.call(Method::GET, &of_vm(&vm, "shares")).await?;
            show(format, &all)?;
        }
        Share::Rm { vm, shares } => {
            let mut gone: Vec<ShareView> = Vec::new();
            for id in shares {
                let path = of_vm(&vm, &format!("shares/{id}"));
                gone.push(client.call(Method::DELETE, &path).await?);
            }
            match format {
                Format::Json => output::json(&gone)?,
                Format::Text => gone.iter().for_each(|share| say!("{}", share.id)),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn add(
    client: &Client,
    format: Format,
    vm: &str,
    wanted: ShareRequest,
    base: Option<GatewayBase>,
) -> anyhow::Result<()> {
    let made: ShareGrant = client.post(&of_vm(vm, "shares"), &wanted).await?;
    let url = match base {
        Some(base) => {
            let vm: VmView = client.call(Method::GET, &of_vm(vm, "")).await?;
            Some(base.address(&vm.name, vm.id, wanted.port, &made.token))
        }
        None => None,
    };
    match format {
        Format::Json => output::json(&serde_json::json!({
            "share": made.share, "token": made.token, "url": url,
        })),
        Format::Text => {
            say!("{}", url.unwrap_or(made.token));
            Ok(())
        }
    }
}

fn show(format: Format, all: &[ShareView]) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::json(&all);
    }
    let rows: Vec<_> = all
        .iter()
        .map(|share| {
            [
                share.id.to_string(),
                share.port.to_string(),
                super::token::day(share.expires),
                share.note.clone(),
            ]
        })
        .collect();
    output::table(["ID", "PORT", "EXPIRES", "NOTE"], &rows);
    Ok(())
}
