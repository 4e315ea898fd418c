//! Substrates as they are shown.

use super::path;
use crate::{args::Format, output};
use forkyard_api_client::Client;
use forkyard_types::{
    ByteCount, StandbyView, SubstrateInspect, SubstratePart, SubstrateView, VmName,
};
use hyper::Method;
use std::process::ExitCode;

/// Lists substrates, a line each.
pub fn show(all: &[SubstrateView]) {
    let row = |it: &SubstrateView| {
        [
            it.name.to_string(),
            match it.boot {
                true => "boot".to_owned(),
                false => output::word(&it.kind),
            },
            match it.ready {
                true => it.size.to_string(),
                false => "docking".to_owned(),
            },
            it.image.clone(),
            it.vcpus.to_string(),
            it.memory.to_string(),
            it.vms.len().to_string(),
            it.standby
                .as_ref()
                .map_or_else(String::new, |it| format!("{} of {}", it.ready, it.wanted)),
            it.owner.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    output::table(
        [
            "NAME", "KIND", "SIZE", "IMAGE", "VCPUS", "MEMORY", "VMS", "READY", "OWNER",
        ],
        &rows,
    );
}

/// Shows where a substrate's bytes are.
pub async fn inspect(client: &Client, format: Format, name: &VmName) -> anyhow::Result<ExitCode> {
    let seen: SubstrateInspect = client.call(Method::GET, &path(name)).await?;
    if format == Format::Json {
        output::json(&seen)?;
        return Ok(ExitCode::SUCCESS);
    }
    show(std::slice::from_ref(&seen.substrate));
    say!("\nfrom     {}", seen.substrate.from);
    for vm in &seen.substrate.vms {
        say!("vm       {vm}");
    }
    let sizes = &seen.sizes;
    say!(
        "sizes    memory to {} by {}, vCPUs to {}, disk from {} to {}",
        sizes.most_memory,
        sizes.block,
        sizes.most_vcpus,
        sizes.disk,
        sizes.most_disk
    );
    let substrate = &seen.substrate;
    for standby in substrate.standby.iter().chain(&substrate.standby_larger) {
        say!("standby  {}", standing_by(standby));
        if let Some(problem) = &standby.problem {
            say!("standby  none made: {problem}");
        }
    }
    if let Some(backup) = &seen.backup {
        let problem = backup.problem.iter().map(|why| format!(": {why}"));
        let problem: String = problem.collect();
        say!(
            "backup   {} in {}{problem}",
            output::word(&backup.state),
            backup.store
        );
    }
    if let Some(parts) = &seen.parts {
        let part = |part: &SubstratePart| {
            let over = part.over.map(|image| format!(", over image {image}"));
            let over = over.unwrap_or_default();
            format!(
                "{} of data, {} of its own, in {}{over}",
                part.raw, part.own, part.file
            )
        };
        say!("memory   {}", part(&parts.memory));
        say!("disk     {}", part(&parts.disk));
        say!("devices  {}", parts.devices);
    }
    let Some(guest) = seen.guest else {
        return Ok(ExitCode::SUCCESS);
    };
    say!("back     {} of free memory", guest.given_back);
    say!("cleared  {} files", guest.cleared);
    for service in &guest.stopped {
        say!("stopped  {service}");
    }
    let mut used: Vec<(&String, &ByteCount)> = guest.used.iter().collect();
    used.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.0));
    for (what, bytes) in used {
        say!("guest    {what} {bytes}");
    }
    for note in &guest.notes {
        say!("note     {note}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Describes VMs that are kept ready.
pub fn standing_by(it: &StandbyView) -> String {
    let wanted = match it.count {
        None => "by demand".to_owned(),
        Some(count) => format!("of {count}"),
    };
    let disk = match it.disk.0 {
        0 => String::new(),
        _ => format!(", disk of {}", it.disk),
    };
    format!(
        "{} of {} ready ({wanted}, within {}), {} each; taken {}, missed {}; {} and {} vCPUs{disk}",
        it.ready, it.wanted, it.limit, it.each, it.hits, it.misses, it.memory, it.vcpus
    )
}
