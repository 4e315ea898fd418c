//! `volume why`: reasons for which a block is where it is.

use forkyard_types::{VolumeHolding, VolumeTransfer, VolumeWhy};
use std::time::{Duration, UNIX_EPOCH};

/// Shows them.
pub fn show(why: &VolumeWhy) {
    let version = why.version.map(|it| format!(", version {it}"));
    let hosts = why.hosts.join(", ");
    say!(
        "block {} at {}{}: {}",
        why.block,
        why.offset,
        version.unwrap_or_default(),
        match (why.holding, why.hosts.is_empty()) {
            (VolumeHolding::Unwritten, _) => "never written, it reads as zero".to_owned(),
            (VolumeHolding::Zero, _) => "zeroed or discarded".to_owned(),
            (VolumeHolding::Here, true) => "here".to_owned(),
            (VolumeHolding::Here, false) => format!("here; other hosts of the volume: {hosts}"),
            (VolumeHolding::Elsewhere, _) => format!("not here yet, fetched from {hosts}"),
        }
    );
    say!("now       {}", why.law.words);
    for transfer in &why.transfers {
        let VolumeTransfer {
            at,
            host,
            snapshot,
            is_sent,
            why,
            law,
        } = transfer;
        let host = host.as_deref().unwrap_or("another host");
        let did = match is_sent {
            true => "moved",
            false => "left ",
        };
        say!("{did}     {}, {host}, {snapshot}: {why}", moment(*at));
        if let Some(law) = law {
            say!("          {}", law.words);
        }
    }
    match (why.transfers.is_empty(), why.is_cut) {
        (true, false) => say!("never sent or fetched since the server of volumes began"),
        (true, true) => say!("not sent or fetched of late; what was before is not kept"),
        (false, true) => say!("what was before is not kept"),
        (false, false) => {}
    }
}

fn moment(seconds: u64) -> String {
    // What has more digits cannot be written so.
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds.min(253_370_764_800)));
    humantime::format_rfc3339_seconds(at.unwrap_or(UNIX_EPOCH)).to_string()
}
