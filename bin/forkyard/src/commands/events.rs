//! `events`.

use crate::{NoDaemon, args::Format, output};
use clap::Args;
use forkyard_api_client::{Client, ClientError, EventStream};
use forkyard_types::{
    EventKind, EventKinds, EventsRequest, FamilyId, ForkPhase, HostEvent, MigrationPhase,
    MigrationReached, Occurrence, Since,
};
use std::{
    pin::pin,
    process::ExitCode,
    time::{Duration, UNIX_EPOCH},
};

/// `events`
#[derive(Debug, Args)]
pub struct Events {
    /// Only of this VM, its forks and its tickets: name or id.
    #[arg(long)]
    pub vm: Option<String>,
    /// Only of this family of VMs.
    #[arg(long)]
    pub family: Option<FamilyId>,
    /// Only of these kinds: vm, fork, ticket, checkpoint, image, node, transfer; may be repeated.
    #[arg(long, value_delimiter = ',')]
    pub kind: Vec<EventKind>,
    /// Begin after this position: a number, 0 for all that are kept, or STREAM-NUMBER, as this
    /// command tells it when it ends.
    #[arg(long, value_name = "N")]
    pub since: Option<Since>,
    /// End after the events that there are: without --since, all that are kept.
    #[arg(long)]
    pub no_follow: bool,
}

/// Shows what happens on the host, a line an event, until the daemon ends or the user
/// interrupts.
pub async fn events(client: &Client, format: Format, wanted: Events) -> anyhow::Result<ExitCode> {
    let follow = !wanted.no_follow;
    let request = EventsRequest {
        kind: EventKinds(wanted.kind.into_iter().collect()),
        vm: wanted.vm,
        family: wanted.family,
        since: match follow {
            true => wanted.since,
            false => wanted.since.or(Some(Since::Seq(0))),
        },
        follow,
    };
    let mut events = client.host_events(request).await?;
    let mut unread = pin!(output::reader_gone());
    let mut signals = super::signals::Ended::watched()?;
    loop {
        let next = tokio::select! {
            biased;
            next = events.next() => next,
            signal = signals.told() => return Ok(ExitCode::from(signal.saturating_add(128))),
            () = &mut unread => return Ok(ExitCode::from(output::READER_GONE)),
        };
        match next {
            Ok(Some(event)) => match format {
                Format::Json => say!("{}", serde_json::to_string(&event)?),
                Format::Text => say!("{}", line(&event)),
            },
            Ok(None) if !follow => return Ok(ExitCode::SUCCESS),
            Ok(None) | Err(ClientError::Broke { .. }) => return Err(ended(&events).into()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn ended(events: &EventStream) -> NoDaemon {
    let resume = match events.position() {
        Some(position) => format!("; go on with --since {position}"),
        None => String::new(),
    };
    NoDaemon(format!(
        "the daemon has ended, and with it its events{resume}"
    ))
}

/// An event, for people.
fn line(event: &HostEvent) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(event.time_ms));
    let time = time.map_or_else(String::new, |time| {
        humantime::format_rfc3339_millis(time).to_string()
    });
    let subject = &event.subject;
    let name = match event.kind {
        EventKind::Vm | EventKind::Fork | EventKind::Migration | EventKind::Checkpoint => {
            subject.vm.as_ref().map(|vm| vm.name.to_string())
        }
        EventKind::Ticket => subject.ticket.map(|ticket| ticket.to_string()),
        EventKind::Image => subject.image.clone(),
        EventKind::Node => subject.node.as_ref().map(ToString::to_string),
        EventKind::Transfer => subject.pages.map(|pages| pages.to_string()),
        EventKind::Stream => None,
    };
    let name = name.unwrap_or_default();
    let text = output::line(&text(event));
    format!(
        "{time} {:>5} {:<10} {name:<16} {text}",
        event.seq, event.kind
    )
}

/// Description of what happened.
fn text(event: &HostEvent) -> String {
    let because = |why: &Option<String>| match why {
        Some(why) => format!(": {why}"),
        None => String::new(),
    };
    let fork = || match event.subject.fork {
        Some(fork) => format!("fork {fork}"),
        None => "fork".to_owned(),
    };
    match &event.what {
        Occurrence::VmCreated(vm) => match (vm.parent, event.subject.fork) {
            (Some(parent), Some(fork)) => {
                format!("{}, a clone of {parent} by fork {fork}", vm.state)
            }
            (Some(parent), None) => format!("{}, a clone of {parent}", vm.state),
            (None, _) => format!("{}, of image {}", vm.state, vm.image),
        },
        Occurrence::VmChanged(vm) => format!("{} -> {}{}", vm.from, vm.to, because(&vm.failure)),
        Occurrence::VmSilence(vm) => match &vm.why {
            Some(why) => format!("does not answer: {why}"),
            None => "answers again".into(),
        },
        Occurrence::VmRemoved(vm) => format!("removed{}", because(&vm.failure)),
        Occurrence::ForkBegun(begun) => format!("{} begun, {} clones", fork(), begun.clones),
        Occurrence::ForkReached(reached) => format!("{} {}", fork(), phase(reached.phase)),
        Occurrence::ForkOver(over) => match over.failed {
            0 => format!("{} over, {} ready", fork(), over.ready),
            failed => format!(
                "{} over, {} ready, {failed} failed: {}",
                fork(),
                over.ready,
                over.why.join("; ")
            ),
        },
        Occurrence::MigrationReached(reached) => {
            format!("moving to {}, {}", reached.to, how_far(reached))
        }
        Occurrence::MigrationOver(over) => match over.gap_us {
            Some(gap) => format!("goes on at {} after {} ms", over.to, gap / 1000),
            None => format!("did not move to {}{}", over.to, because(&over.why)),
        },
        Occurrence::TicketChanged(ticket) => format!("{}, {} clones", ticket.stage, ticket.clones),
        Occurrence::CheckpointMade(made) => match made.parent {
            Some(parent) => format!("kept, of {parent}"),
            None => "kept".into(),
        },
        Occurrence::CheckpointRemoved(_) => "removed".into(),
        Occurrence::ImageChanged(image) => match image.built {
            Some(bytes) => format!("built, {bytes}"),
            None => "removed".into(),
        },
        Occurrence::NodeChanged(node) => match (node.from, node.to) {
            (None, Some(to)) => format!("joined, {to}"),
            (Some(from), Some(to)) => format!("{from} -> {to}"),
            (_, None) => "removed".into(),
        },
        Occurrence::TransferOver(over) => match over.lost.0 {
            0 => format!("{} have come", over.pages),
            _ => format!("{} of {} are lost", over.lost, over.pages),
        },
        Occurrence::Lagged(lagged) => match lagged.missed {
            Some(missed) => format!("{missed} events before this were missed"),
            None => "events before this were missed: the stream is another one".into(),
        },
    }
}

/// Phase of a migration, with what is known of what is left.
pub fn how_far(reached: &MigrationReached) -> String {
    match (reached.phase, reached.left, reached.gap_us) {
        (MigrationPhase::Copying, ..) => "a first copy is sent".into(),
        (MigrationPhase::HandingOver, ..) => "handing over".into(),
        (MigrationPhase::Converging, Some(left), Some(gap)) => {
            format!(
                "{} rounds sent, {left} left: it would stand still for {} ms",
                reached.rounds,
                gap / 1000
            )
        }
        (MigrationPhase::Converging, ..) => format!("{} rounds sent", reached.rounds),
    }
}

fn phase(phase: ForkPhase) -> &'static str {
    match phase {
        ForkPhase::Granted => "granted",
        ForkPhase::Received => "received",
        ForkPhase::Starting => "starting clones",
        ForkPhase::Ready => "ready",
        ForkPhase::Failed => "failed",
    }
}
