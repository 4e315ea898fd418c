//! `node`: the nodes of a cluster.

use crate::{args::Format, output};
use clap::Subcommand;
use forkyard_api_client::{Client, escaped};
use forkyard_types::{Invitation, InviteRequest, NodeName, NodeView, QuotaRequest, QuotaView};
use hyper::Method;
use std::{process::ExitCode, time::Duration};

/// Some of several things asked for failed.
const PARTLY: u8 = 3;

/// `node`
#[derive(Debug, Subcommand)]
pub enum Node {
    /// List the nodes, how they stand, and what is taken of them.
    #[command(after_help = "Example: forkyard node ls")]
    Ls,
    /// Print a token with which one host becomes a node: on the node that founded
    /// the cluster.
    #[command(
        after_help = "Example: forkyard node invite --expires 1h\nand on the new host: forkyardd --join TOKEN --node b --advertise 10.0.0.2"
    )]
    Invite {
        /// Time it holds, as in 30m or 12h.
        #[arg(long, value_parser = humantime::parse_duration, default_value = "1h")]
        expires: Duration,
    },
    /// Have nodes take nothing new; what runs there runs on.
    #[command(after_help = "Example: forkyard node drain b")]
    Drain {
        /// Names.
        #[arg(required = true)]
        nodes: Vec<NodeName>,
    },
    /// Have nodes take new work again.
    #[command(after_help = "Example: forkyard node activate b")]
    Activate {
        /// Names.
        #[arg(required = true)]
        nodes: Vec<NodeName>,
    },
    /// Remove nodes for good, and forget their VMs.
    #[command(after_help = "Example: forkyard node rm b")]
    Rm {
        /// Names.
        #[arg(required = true)]
        nodes: Vec<NodeName>,
        /// Also those that are alive and have VMs, which run on there.
        #[arg(long)]
        force: bool,
    },
    /// Show what users have of the cluster, or say what one may have.
    #[command(
        after_help = "Examples:\n  forkyard node quota\n  forkyard node quota ci --vcpus 64\n  forkyard node quota ci --unlimited"
    )]
    Quota {
        /// The user: the name of a token.
        user: Option<String>,
        /// vCPUs of all the user's VMs together.
        #[arg(long, requires = "user")]
        vcpus: Option<u32>,
        /// As many as there are.
        #[arg(long, requires = "user", conflicts_with = "vcpus")]
        unlimited: bool,
    },
}

/// Lists, invites, drains, activates or removes nodes.
pub async fn node(client: &Client, format: Format, node: Node) -> anyhow::Result<ExitCode> {
    match node {
        Node::Ls => {
            let nodes: Vec<NodeView> = client.call(Method::GET, "/v1/nodes").await?;
            match format {
                Format::Json => output::json(&nodes)?,
                Format::Text => show(&nodes),
            }
            Ok(ExitCode::SUCCESS)
        }
        Node::Invite { expires } => invite(client, format, expires).await,
        Node::Drain { nodes } => {
            let path = |node: &NodeName| (Method::POST, format!("/v1/nodes/{node}/drain"));
            each(client, format, &nodes, path).await
        }
        Node::Activate { nodes } => {
            let path = |node: &NodeName| (Method::POST, format!("/v1/nodes/{node}/activate"));
            each(client, format, &nodes, path).await
        }
        Node::Rm { nodes, force } => {
            let path =
                |node: &NodeName| (Method::DELETE, format!("/v1/nodes/{node}?force={force}"));
            each(client, format, &nodes, path).await
        }
        Node::Quota {
            user,
            vcpus,
            unlimited,
        } => {
            let quotas: Vec<QuotaView> = match user {
                Some(user) if vcpus.is_some() || unlimited => {
                    let path = format!("/v1/quotas/{}", escaped(&user));
                    client.post(&path, &QuotaRequest { vcpus }).await?
                }
                user => {
                    let mut all: Vec<QuotaView> = client.call(Method::GET, "/v1/quotas").await?;
                    all.retain(|it| user.as_ref().is_none_or(|user| it.user == *user));
                    all
                }
            };
            match format {
                Format::Json => output::json(&quotas)?,
                Format::Text => show_quotas(quotas),
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn invite(client: &Client, format: Format, expires: Duration) -> anyhow::Result<ExitCode> {
    let request = InviteRequest {
        expires_s: expires.as_secs(),
    };
    let invitation: Invitation = client.post("/v1/nodes", &request).await?;
    match format {
        Format::Json => output::json(&invitation)?,
        Format::Text => {
            say!("{}", invitation.token);
            tell!(
                "on the new host, within {}: FORKYARD_JOIN=TOKEN forkyardd --node NAME --advertise IP",
                humantime::format_duration(expires)
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn each(
    client: &Client,
    format: Format,
    nodes: &[NodeName],
    request: impl Fn(&NodeName) -> (Method, String),
) -> anyhow::Result<ExitCode> {
    let mut done: Vec<NodeView> = Vec::new();
    for node in nodes {
        let (method, path) = request(node);
        match client.call(method, &path).await {
            Ok(node) => done.push(node),
            Err(error) => output::complain(&error.into()),
        }
    }
    let code = match (done.len() == nodes.len(), done.is_empty()) {
        (true, _) => ExitCode::SUCCESS,
        (false, true) => ExitCode::FAILURE,
        (false, false) => ExitCode::from(PARTLY),
    };
    match format {
        Format::Json => output::json(&done)?,
        Format::Text => done.iter().for_each(|node| say!("{}", node.name)),
    }
    Ok(code)
}

fn show(nodes: &[NodeView]) {
    let row = |node: &NodeView| {
        let here = if node.here { "*" } else { "" };
        [
            format!("{}{here}", node.name),
            node.state.to_string(),
            node.api.to_string(),
            node.vms.to_string(),
            format!("{}/{}", node.taken.vcpus, node.offers.vcpus),
            format!("{} / {}", node.taken.memory, node.offers.memory),
        ]
    };
    let rows: Vec<_> = nodes.iter().map(row).collect();
    output::table(["NODE", "STATE", "API", "VMS", "VCPUS", "MEMORY"], &rows);
}

fn show_quotas(quotas: Vec<QuotaView>) {
    let row = |quota: QuotaView| {
        let limit = quota
            .vcpus
            .map_or("any".to_owned(), |vcpus| vcpus.to_string());
        [quota.user, quota.taken.to_string(), limit]
    };
    let rows: Vec<_> = quotas.into_iter().map(row).collect();
    output::table(["USER", "VCPUS", "MAY HAVE"], &rows);
}
