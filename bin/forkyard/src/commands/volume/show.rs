//! Volumes, shown as text.

use crate::output;
use forkyard_types::{
    ByteCount, VmName, VolumeLacking, VolumeMirror, VolumeNeed, VolumeTuning, VolumeView,
    WhenMirrorAway,
};

/// Shows them as a table.
pub fn show(all: &[VolumeView]) {
    let row = |it: &VolumeView| {
        [
            it.name.to_string(),
            match it.failure {
                Some(_) => "damaged".to_owned(),
                None => it.size.to_string(),
            },
            it.stored.to_string(),
            it.vm.as_ref().map(VmName::to_string).unwrap_or_default(),
            place(it),
            match lacking(it) {
                ByteCount(0) => String::new(),
                lacking => lacking.to_string(),
            },
            it.snapshots.len().to_string(),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    let head = ["NAME", "SIZE", "STORED", "VM", "AT", "LACKING", "SNAPSHOTS"];
    output::table(head, &rows);
}

fn told(mirror: &VolumeMirror) -> String {
    let VolumeMirror {
        host,
        is_there,
        behind,
        is_promoted,
        away,
    } = mirror;
    if *is_promoted {
        return format!("{host}, where it was promoted: it is at home there");
    }
    match (is_there, behind, away) {
        (true, 0, _) => format!("{host}: all of it"),
        (true, behind, _) => format!("{host}: but for {behind} writes, which are on their way"),
        (false, behind, WhenMirrorAway::Wait) => {
            format!("{host}, which is away: flushes wait for it ({behind} writes behind)")
        }
        (false, behind, WhenMirrorAway::GoOn) => {
            format!("{host}, which is away and {behind} writes behind: flushes go on without it")
        }
    }
}

/// Node that has it, and the host that it is at if what is there is a copy.
fn place(it: &VolumeView) -> String {
    match (&it.node, &it.at) {
        (Some(node), Some(at)) => format!("{node} (copy of {at})"),
        (Some(node), None) => node.clone(),
        (None, at) => at.clone().unwrap_or_default(),
    }
}

fn lacking(it: &VolumeView) -> ByteCount {
    ByteCount(it.lacking.iter().map(|it| it.size.0).sum())
}

/// Shows all that is known of one.
pub fn describe(it: &VolumeView) {
    show(std::slice::from_ref(it));
    say!("\nepoch     {}", it.epoch);
    if let Some(term) = it.term {
        say!("term      {term}");
    }
    if let Some(moving) = &it.moving {
        say!("moving    {}", super::moves::how_far(moving));
    }
    if let Some(VolumeTuning { k, s }) = it.law {
        say!("law       K = {k}, S = {s}: `forkyard volume why` applies it to a block");
    }
    match (&it.key_file, it.encrypted) {
        (Some(key), _) => say!("encrypted its key is in {key}"),
        (None, true) => say!("encrypted its key is not there"),
        (None, false) => {}
    }
    if let Some(at) = &it.at {
        say!("copy      it is at {at}: the way back takes what differs");
    }
    for mirror in &it.mirrors {
        say!("held at   {}", told(mirror));
    }
    for lacking in &it.lacking {
        let VolumeLacking { at, size } = lacking;
        say!("lacking   {size}, fetched from {at}: when it is read, and by and by");
    }
    for VolumeNeed { host, snapshot } in &it.needed_by {
        say!("needed    {host} fetches what it lacks of {snapshot} from here");
    }
    if let Some(failure) = &it.failure {
        say!("failure   {failure}");
    }
    for snapshot in &it.snapshots {
        let vms: Vec<_> = snapshot.vms.iter().map(VmName::to_string).collect();
        let vms = match vms.is_empty() {
            true => String::new(),
            false => format!(", below {}", vms.join(", ")),
        };
        say!("snapshot  {} of {}{vms}", snapshot.name, snapshot.size);
    }
}
