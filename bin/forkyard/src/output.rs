//! What the user sees: tables and JSON on standard output, the rest on
//! standard error.
//!
//! A reader that has gone, as `head` does, ends this program quietly with the status that a shell
//! gives to one that SIGPIPE ended. Standard output that cannot be written otherwise, say
//! for a full disk, is an error; standard error that cannot be written is not.

use forkyard_client::ClientError;
use forkyard_types::{ListedVm, NetworkPolicy, VmView};
use serde::Serialize;
use std::{
    fmt,
    io::{self, ErrorKind, Write},
    process::exit,
};

/// Status of a program whose reader has gone: 128 and the number of SIGPIPE.
const READER_GONE: i32 = 141;

/// Prints a line on standard output.
macro_rules! say {
    ($($words:tt)*) => { $crate::output::said(format_args!($($words)*), "\n") };
}

/// Prints a piece of a line on standard output.
macro_rules! say_piece {
    ($($words:tt)*) => { $crate::output::said(format_args!($($words)*), "") };
}

/// Prints a line on standard error.
macro_rules! tell {
    ($($words:tt)*) => { $crate::output::told(format_args!($($words)*), "\n") };
}

/// Prints a piece of a line on standard error.
macro_rules! tell_piece {
    ($($words:tt)*) => { $crate::output::told(format_args!($($words)*), "") };
}

/// Writes to standard output; ends this program if that cannot be done.
pub fn said(words: fmt::Arguments<'_>, end: &str) {
    let mut out = io::stdout().lock();
    let written = write!(out, "{words}{end}").and_then(|()| out.flush());
    if let Err(error) = written {
        exit(cannot_write(&error));
    }
}

/// Writes to standard error, if that can be done.
pub fn told(words: fmt::Arguments<'_>, end: &str) {
    let _ = write!(io::stderr().lock(), "{words}{end}");
}

/// The status to end with where standard output cannot be written, after saying why.
pub fn cannot_write(error: &io::Error) -> i32 {
    if error.kind() == ErrorKind::BrokenPipe {
        return READER_GONE;
    }
    tell!("forkyard: cannot write the output: {error}");
    1
}

/// Prints an answer as JSON.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    say!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Says what went wrong, why, and what to do.
pub fn complain(error: &anyhow::Error) {
    tell!("forkyard: {error:#}");
    if let Some(hint) = error.downcast_ref().and_then(ClientError::hint) {
        tell!("  {hint}");
    }
}

/// Prints rows under their heads, each column as wide as it must be.
pub fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) {
    let mut widths = heads.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let print = |cells: &[String; N]| {
        let line: Vec<_> = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        say!("{}", line.join("  ").trim_end());
    };
    print(&heads.map(str::to_owned));
    rows.iter().for_each(print);
}

/// Prints VMs, and if they are of a cluster on which nodes they are.
pub fn everywhere(listed: Vec<ListedVm>) {
    let places: Vec<_> = listed.iter().map(|it| (it.node.clone(), it.lost)).collect();
    let all: Vec<_> = listed.into_iter().map(|it| it.vm).collect();
    if places.iter().all(|(node, _)| node.is_none()) {
        return vms(&all);
    }
    let rows = rows(&all).into_iter().zip(places);
    let rows: Vec<_> = rows
        .map(|(row, (node, lost))| {
            let [name, state, host, rest @ ..] = row;
            let [address, ports, image, vcpus, memory, parent, family, id] = rest;
            let state = if lost { "lost".to_owned() } else { state };
            let node = node.map_or(host, |node| node.to_string());
            [
                name, state, node, address, ports, image, vcpus, memory, parent, family, id,
            ]
        })
        .collect();
    table(
        [
            "NAME", "STATE", "NODE", "ADDRESS", "PORTS", "IMAGE", "VCPUS", "MEMORY", "PARENT",
            "FAMILY", "ID",
        ],
        &rows,
    );
}

/// Prints VMs.
pub fn vms(vms: &[VmView]) {
    table(
        [
            "NAME", "STATE", "HOST", "ADDRESS", "PORTS", "IMAGE", "VCPUS", "MEMORY", "PARENT",
            "FAMILY", "ID",
        ],
        &rows(vms),
    );
}

fn rows(vms: &[VmView]) -> Vec<[String; 11]> {
    vms.iter()
        .map(|vm| {
            [
                vm.name.to_string(),
                match (&vm.silence, &vm.failure) {
                    (Some(_), _) => "silent".to_owned(),
                    (None, Some(_)) => "failed".to_owned(),
                    (None, None) => word(&vm.state),
                },
                vm.host.clone().unwrap_or_default(),
                vm.address.ip.to_string(),
                listed(&vm.published),
                vm.image.clone(),
                vm.vcpus.to_string(),
                vm.memory.to_string(),
                vm.parent
                    .map(|parent| named(vms, parent))
                    .unwrap_or_default(),
                vm.family.to_string(),
                vm.id.to_string(),
            ]
        })
        .collect()
}

/// What a family may do on the network, in the words of `run`.
pub fn network(policy: &NetworkPolicy) -> String {
    let mut words = vec![word(&policy.out)];
    words.extend(policy.allow.iter().map(|allow| format!("allow {allow}")));
    words.extend(policy.rate.map(|rate| format!("rate {rate}")));
    words.extend(policy.publish.iter().map(|port| format!("publish {port}")));
    words.join(", ")
}

fn listed(values: &[impl ToString]) -> String {
    let words: Vec<_> = values.iter().map(ToString::to_string).collect();
    words.join(",")
}

fn named(vms: &[VmView], id: forkyard_types::VmId) -> String {
    match vms.iter().find(|vm| vm.id == id) {
        Some(vm) => vm.name.to_string(),
        None => id.to_string(),
    }
}

/// The word the API uses for a value.
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// Microseconds as milliseconds.
pub fn ms(us: u64) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}
