//! `forkyard migrate`.

use super::{events::how_far, signals::interruptible, vms::spinner};
use crate::{
    args::{self, Format, Migrate},
    output::json,
};
use anyhow::bail;
use forkyard_api_client::{Client, of_vm};
use forkyard_types::{
    DiskTransfer, EventKind, EventKinds, EventsRequest, IfStuck, MigrateRequest, MigrateResponse,
    MigrationReport, Occurrence, PageCount,
};
use indicatif::ProgressFinish;
use std::{convert::Infallible, future::pending, process::ExitCode};

/// Advice about a VM that moves.
const MOVES: &str = "`forkyard events --vm VM` shows how far it is, `forkyard ps` where";

impl From<args::IfStuck> for IfStuck {
    fn from(wanted: args::IfStuck) -> Self {
        match wanted {
            args::IfStuck::GiveUp => Self::GiveUp,
            args::IfStuck::Stop => Self::Stop,
            args::IfStuck::Slow => Self::Slow,
        }
    }
}

/// Moves a VM to another host.
pub async fn migrate(client: &Client, format: Format, wanted: Migrate) -> anyhow::Result<ExitCode> {
    let mut vms = wanted.vms.into_iter();
    let Some(vm) = vms.next() else {
        bail!("no VM is named");
    };
    if vms.len() > 0 && !wanted.together {
        bail!("several VMs move as one: say --together, or move one after the other");
    }
    let request = MigrateRequest {
        together: vms.collect(),
        to: wanted.to,
        max_gap_ms: wanted.max_gap,
        deadline_ms: wanted.deadline.map(|seconds| u64::from(seconds) * 1000),
        if_stuck: wanted.if_stuck.into(),
        disk: match wanted.disk {
            args::Disk::Auto => DiskTransfer::Auto,
            args::Disk::Ahead => DiskTransfer::Ahead,
            args::Disk::OnDemand => DiskTransfer::OnDemand,
        },
        keep_copy: wanted.keep_copy,
    };
    let path = of_vm(&vm, "migrate");
    let is_alone = request.together.is_empty();
    let moved = async { client.post::<MigrateResponse>(&path, &request).await };
    let moved = interruptible(MOVES, shown(client, (&vm, is_alone), moved)).await??;
    match format {
        Format::Json => json(&moved)?,
        Format::Text => {
            for moved in [&moved].into_iter().chain(&moved.together) {
                let host = moved.vm.host.as_deref().unwrap_or_default();
                say!("{} goes on at {host}", moved.vm.name);
                say!("{}", told(&moved.report));
            }
            if !moved.together.is_empty() {
                say!("{}", told_of_all(moved.together.len() + 1, &moved.report));
            }
        }
    }
    if let Some(why) = &moved.no_copy {
        tell!("it moved, and no copy was kept: {why}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Does the work, and shows meanwhile how far the VM is, on standard error, where that is a
/// terminal. As cancel-safe as the work.
async fn shown<T>(
    client: &Client,
    (vm, is_alone): (&str, bool),
    work: impl Future<Output = T>,
) -> T {
    let bar = spinner(format!("moving {vm}")).with_finish(ProgressFinish::AndClear);
    if bar.is_hidden() {
        return work.await;
    }
    let look = async {
        let wanted = EventsRequest {
            kind: EventKinds([EventKind::Migration].into()),
            // Those that move together are told of one after the other.
            vm: is_alone.then(|| vm.to_owned()),
            ..EventsRequest::default()
        };
        // What it comes to is what counts: that it cannot be watched is no error.
        if let Ok(mut events) = client.host_events(wanted).await {
            while let Ok(Some(event)) = events.next().await {
                if let Occurrence::MigrationReached(reached) = event.what {
                    let name = { event.subject.vm }
                        .map_or_else(|| vm.to_owned(), |it| it.name.to_string());
                    bar.set_message(format!("moving {name}: {}", how_far(&reached)));
                }
            }
        }
        pending::<Infallible>().await
    };
    tokio::select! {
        biased;
        done = work => done,
        never = look => match never {},
    }
}

/// Describes what is true of VMs that moved together.
fn told_of_all(vms: usize, report: &MigrationReport) -> String {
    let milliseconds = |us: u64| us as f64 / 1e3;
    format!(
        "{vms} VMs as one: stopped within {:.0} ms of each other, went on within {:.0} ms",
        milliseconds(report.spread_us),
        milliseconds(report.resume_spread_us),
    )
}

fn told(report: &MigrationReport) -> String {
    let MigrationReport {
        total_us,
        rounds,
        gap_us,
        pages_ahead,
        pages_last,
        pages_there,
        blocks_left,
        slowed_to_percent,
        ..
    } = *report;
    let seconds = |us: u64| us as f64 / 1e6;
    let slowed = slowed_to_percent.map_or(String::new(), |percent| {
        format!(
            "; it wrote as fast as that is sent, and ran for {percent} % of the time until then"
        )
    });
    let left = match blocks_left {
        0 => String::new(),
        _ => format!(
            "; {} of its volumes are fetched from here by and by",
            PageCount(blocks_left).bytes().unwrap_or_default()
        ),
    };
    let there = match pages_there.0 {
        0 => String::new(),
        _ => format!(" ({pages_there} were still there)"),
    };
    format!(
        "stood still for {:.0} ms of {:.1} s; sent {pages_ahead} ahead{there}, {rounds} times what was written meanwhile, and {pages_last} in the end{slowed}{left}",
        seconds(gap_us) * 1e3,
        seconds(total_us),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_is_told_how_far_apart_they_stopped_and_went_on() {
        let report = MigrationReport {
            spread_us: 12_400,
            resume_spread_us: 900,
            ..MigrationReport::default()
        };
        assert_eq!(
            told_of_all(3, &report),
            "3 VMs as one: stopped within 12 ms of each other, went on within 1 ms"
        );
    }

    #[test]
    fn a_report_says_how_long_it_stood_still_and_what_was_sent() {
        let report = MigrationReport {
            total_us: 2_340_000,
            rounds: 2,
            gap_us: 61_000,
            pages_ahead: PageCount(7000),
            pages_last: PageCount(12),
            ..MigrationReport::default()
        };
        assert_eq!(
            told(&report),
            "stood still for 61 ms of 2.3 s; sent 7000 pages ahead, 2 times what was written meanwhile, and 12 pages in the end"
        );
    }
}
