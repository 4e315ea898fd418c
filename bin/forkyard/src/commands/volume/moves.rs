//! `volume move` and `volume bring`.

use super::path;
use crate::{
    args::{self, Format},
    commands::{signals::interruptible, vms::spinner},
    output,
};
use forkyard_api_client::Client;
use forkyard_types::{
    BringVolume, ByteCount, DiskTransfer, MoveVolume, VmName, VolumeMovePhase, VolumeMoveReport,
    VolumeMoved, VolumeMoving, VolumeView,
};
use hyper::Method;
use indicatif::ProgressFinish;
use std::{convert::Infallible, process::ExitCode, time::Duration};
use tokio::time::sleep;

/// Advice about a volume that moves.
const MOVES: &str = "`forkyard volume inspect VOLUME` shows how far it is, and where";
/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(500);

/// Volume that is to move.
#[derive(Debug, clap::Args)]
pub struct Move {
    /// Name of the volume.
    name: VmName,
    /// Host: its name here or its address. In a cluster: a node.
    #[arg(long, value_name = "NODE|ADDRESS")]
    to: String,
    #[command(flatten)]
    part: Part,
}

/// Volume that is to come.
#[derive(Debug, clap::Args)]
pub struct Bring {
    /// Name of the volume.
    name: VmName,
    /// Host that it is at: its name here or its address. If absent: the node where the cluster says that it
    /// is, or the host that a copy here is of.
    #[arg(long, value_name = "NODE|ADDRESS")]
    from: Option<String>,
    #[command(flatten)]
    part: Part,
}

/// Part that is sent before it is at home there.
#[derive(Debug, clap::Args)]
struct Part {
    /// Part of it that is sent before it is at home there: all (`ahead`), what was used of late (`on-demand`;
    /// the rest is fetched when it is read, and by and by), or all if that is 64 MiB at most (`auto`).
    #[arg(long, value_enum, default_value = "auto")]
    disk: args::Disk,
}

impl Part {
    fn transfer(&self) -> DiskTransfer {
        match self.disk {
            args::Disk::Auto => DiskTransfer::Auto,
            args::Disk::Ahead => DiskTransfer::Ahead,
            args::Disk::OnDemand => DiskTransfer::OnDemand,
        }
    }
}

/// Moves a volume to another host.
pub async fn move_to(client: &Client, format: Format, it: Move) -> anyhow::Result<ExitCode> {
    let request = MoveVolume {
        disk: it.part.transfer(),
        to: it.to,
    };
    let at = format!("{}/move", path(&it.name));
    let moved = async { client.post::<VolumeMoved>(&at, &request).await };
    let moved = interruptible(MOVES, shown(client, &it.name, moved)).await??;
    tell(format, &moved, &format!("is at home at {}", request.to))
}

/// Moves a volume here.
pub async fn bring(client: &Client, format: Format, it: Bring) -> anyhow::Result<ExitCode> {
    let request = BringVolume {
        disk: it.part.transfer(),
        from: it.from,
    };
    let at = format!("{}/bring", path(&it.name));
    let moved = async { client.post::<VolumeMoved>(&at, &request).await };
    let moved = interruptible(MOVES, shown(client, &it.name, moved)).await??;
    tell(format, &moved, "is at home here")
}

fn tell(format: Format, moved: &VolumeMoved, place: &str) -> anyhow::Result<ExitCode> {
    match format {
        Format::Json => output::json(moved)?,
        Format::Text => {
            say!("{} {place}", moved.volume.name);
            say!("{}", told(&moved.report));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Does the work, and shows meanwhile how far the volume is, on standard error, where that is a terminal.
/// As cancel-safe as the work.
async fn shown<T>(client: &Client, name: &VmName, work: impl Future<Output = T>) -> T {
    let bar = spinner(format!("moving {name}")).with_finish(ProgressFinish::AndClear);
    if bar.is_hidden() {
        return work.await;
    }
    let look = async {
        loop {
            sleep(LOOK).await;
            // What it comes to is what counts: that it cannot be watched is no error.
            let seen = client.call::<VolumeView>(Method::GET, &path(name)).await;
            if let Some(moving) = seen.ok().and_then(|seen| seen.moving) {
                bar.set_message(format!("moving {name}: {}", how_far(&moving)));
            }
        }
    };
    let look = async {
        let never: Infallible = look.await;
        never
    };
    tokio::select! {
        biased;
        done = work => done,
        never = look => match never {},
    }
}

/// Describes how far a volume is.
pub fn how_far(moving: &VolumeMoving) -> String {
    let VolumeMoving { to, phase, sent } = moving;
    match phase {
        VolumeMovePhase::Preparing => format!("asking {to} what it has of it"),
        VolumeMovePhase::Copying => format!("{sent} sent to {to}"),
        VolumeMovePhase::HandingOver => format!("handing it over to {to}"),
        VolumeMovePhase::Unsettled => {
            format!("{to} is asked whether it has it; nothing opens it until that is known")
        }
    }
}

fn told(report: &VolumeMoveReport) -> String {
    let VolumeMoveReport {
        total_us,
        hand_over_us,
        sent,
        left,
        snapshots,
        term,
    } = *report;
    let along = match snapshots {
        0 => String::new(),
        1 => " with 1 snapshot".to_owned(),
        many => format!(" with {many} snapshots"),
    };
    let left = match left {
        ByteCount(0) => String::new(),
        left => format!("; {left} are fetched by and by"),
    };
    format!(
        "sent {sent}{along} in {:.1} s, of which the hand-over took {:.0} ms; term {term}{left}",
        total_us as f64 / 1e6,
        hand_over_us as f64 / 1e3,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::Term;

    #[test]
    fn a_report_says_what_was_sent_and_what_is_fetched() {
        let report = VolumeMoveReport {
            total_us: 2_340_000,
            hand_over_us: 61_000,
            sent: ByteCount(3 << 20),
            left: ByteCount(0),
            snapshots: 1,
            term: Term(2),
        };
        assert_eq!(
            told(&report),
            "sent 3 MiB with 1 snapshot in 2.3 s, of which the hand-over took 61 ms; term 2"
        );
        let report = VolumeMoveReport {
            left: ByteCount(1 << 30),
            snapshots: 0,
            ..report
        };
        assert_eq!(
            told(&report),
            "sent 3 MiB in 2.3 s, of which the hand-over took 61 ms; term 2; 1 GiB are fetched by and by"
        );
    }
}
