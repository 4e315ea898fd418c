//! `ticket`: what guests were granted.

use crate::{args::Format, output};
use clap::Subcommand;
use forkyard_api_client::Client;
use forkyard_types::{ListedVm, TicketId, TicketSeat, TicketView, VmId};
use hyper::Method;
use std::process::ExitCode;

/// `ticket`
#[derive(Debug, Subcommand)]
pub enum Ticket {
    /// List the tickets that are not used up, and how many of their clones live.
    #[command(after_help = "Example: forkyard ticket ls, or forkyard ticket ls -o json")]
    Ls,
    /// End a ticket's clones, and give back what it promised.
    #[command(after_help = "Example: forkyard ticket rm 7Zk3mQ2xB9a")]
    Rm {
        /// Tickets, by id.
        #[arg(required = true)]
        tickets: Vec<TicketId>,
    },
}

/// Lists tickets, or removes some.
pub async fn ticket(client: &Client, format: Format, ticket: Ticket) -> anyhow::Result<ExitCode> {
    match ticket {
        Ticket::Ls => list(client, format).await,
        Ticket::Rm { tickets } => remove(client, format, tickets).await,
    }
}

async fn remove(
    client: &Client,
    format: Format,
    tickets: Vec<TicketId>,
) -> anyhow::Result<ExitCode> {
    let mut removed: Vec<TicketView> = Vec::new();
    for ticket in &tickets {
        let path = format!("/v1/tickets/{ticket}");
        match client.call(Method::DELETE, &path).await {
            Ok(ticket) => removed.push(ticket),
            Err(error) => output::complain(&error.into()),
        }
    }
    match format {
        Format::Json => output::json(&removed)?,
        Format::Text => removed.iter().for_each(|ticket| say!("{}", ticket.id)),
    }
    Ok(match (removed.len(), tickets.len()) {
        (done, asked) if done == asked => ExitCode::SUCCESS,
        (0, _) => ExitCode::FAILURE,
        (_, _) => ExitCode::from(super::vms::PARTLY),
    })
}

async fn list(client: &Client, format: Format) -> anyhow::Result<ExitCode> {
    let tickets: Vec<TicketView> = client.call(Method::GET, "/v1/tickets").await?;
    match format {
        Format::Json => output::json(&tickets)?,
        Format::Text => {
            let vms: Vec<ListedVm> = client.call(Method::GET, "/v1/vms").await?;
            show(&tickets, &vms);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(tickets: &[TicketView], vms: &[ListedVm]) {
    let named = |id: VmId| {
        let vm = vms.iter().find(|listed| listed.vm.id == id);
        vm.map_or(id.to_string(), |listed| listed.vm.name.to_string())
    };
    let row = |ticket: &TicketView| {
        [
            ticket.id.to_string(),
            named(ticket.owner),
            ticket.phase.to_string(),
            ticket.clones.len().to_string(),
            states(&ticket.clones),
            hosts(&ticket.clones),
        ]
    };
    let rows: Vec<_> = tickets.iter().map(row).collect();
    output::table(
        ["ID", "OWNER", "PHASE", "CLONES", "OF THEM", "HOSTS"],
        &rows,
    );
}

/// As in "3 alive, 1 ended".
fn states(clones: &[TicketSeat]) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for clone in clones {
        let state = clone.state.to_string();
        match counts.iter_mut().find(|(known, _)| *known == state) {
            Some((_, count)) => *count += 1,
            None => counts.push((state, 1)),
        }
    }
    let counted = counts
        .iter()
        .map(|(state, count)| format!("{count} {state}"));
    counted.collect::<Vec<_>>().join(", ")
}

fn hosts(clones: &[TicketSeat]) -> String {
    let mut hosts: Vec<_> = clones
        .iter()
        .map(|clone| clone.host.as_deref().unwrap_or("here"))
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts.join(", ")
}
