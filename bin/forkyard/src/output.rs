//! Output for the user: tables and JSON on standard output, the rest on
//! standard error.
//!
//! A reader that has gone, as `head` does, ends this program quietly with the status that a shell
//! gives to one that SIGPIPE ended. Standard output that cannot be written otherwise, say
//! for a full disk, is an error; standard error that cannot be written is not.
//!
//! Names and messages may be a guest's: on a terminal their control characters are shown as
//! `\u001b`, which JSON reads as the same character. With `-o json`, errors are JSON too.

use crate::{
    args::Format,
    commands::{signals::Interrupted, vms::Impatient},
};
use forkyard_api_client::{Client, ClientError, of_vm};
use forkyard_types::{ApiError, ErrorKind, ListedVm, NetworkPolicy, Restart, VmView, shown};
use hyper::Method;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use std::{
    borrow::Cow,
    fmt,
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    process::{ExitCode, exit},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};
use tokio::sync::oneshot;

/// True if errors are printed as JSON.
static JSON_ERRORS: AtomicBool = AtomicBool::new(false);

/// Status of a program whose reader has gone: 128 and the number of SIGPIPE.
pub const READER_GONE: u8 = 141;

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

/// Writes to standard output; ends this program if that cannot be done.
pub fn said(words: fmt::Arguments<'_>, end: &str) {
    let mut out = io::stdout().lock();
    let written = match out.is_terminal() {
        true => write!(out, "{}{end}", plain(&words.to_string())),
        false => write!(out, "{words}{end}"),
    };
    let written = written.and_then(|()| out.flush());
    if let Err(error) = written {
        exit(cannot_write(&error));
    }
}

/// Writes to standard error, if that can be done.
pub fn told(words: fmt::Arguments<'_>, end: &str) {
    let mut out = io::stderr().lock();
    let _ = match out.is_terminal() {
        true => write!(out, "{}{end}", plain(&words.to_string())),
        false => write!(out, "{words}{end}"),
    };
}

/// Clears the terminal.
pub fn clear() {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(b"\x1b[2J\x1b[H") {
        exit(cannot_write(&error));
    }
}

/// Text that does nothing to a terminal but to be shown, line ends and tabs apart.
pub fn plain(text: &str) -> Cow<'_, str> {
    shown(text, |c| matches!(c, '\n' | '\t'))
}

/// The status to end with where standard output cannot be written, after saying why.
pub fn cannot_write(error: &io::Error) -> i32 {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return READER_GONE.into();
    }
    tell!("forkyard: cannot write the output: {error}");
    1
}

/// Waits until standard output has no reader any more, as with `| head`. Waits for ever if it is
/// a file. Takes a thread for as long as the program runs: call it once.
pub async fn reader_gone() {
    let (gone, heard) = oneshot::channel();
    thread::spawn(move || {
        let out = io::stdout();
        // An error is reported if no event is asked for.
        let mut asked = [PollFd::new(out.as_fd(), PollFlags::empty())];
        if poll(&mut asked, PollTimeout::NONE).is_ok() {
            let _ = gone.send(());
        }
    });
    if heard.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Prints an answer as JSON.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    say!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Formats a text as one line.
pub fn line(text: &str) -> String {
    plain(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// Has errors told as JSON from now on.
pub fn errors_as_json() {
    JSON_ERRORS.store(true, Ordering::Relaxed);
}

/// Says what went wrong, why, and what to do.
pub fn complain(error: &anyhow::Error) {
    show_error(as_the_api(error));
}

/// Says that the command line is wrong, with `text` from its parser.
pub fn complain_of_words(text: &str) {
    show_error(ApiError {
        kind: ErrorKind::Invalid,
        message: text.trim_start_matches("error: ").trim_end().to_owned(),
        hint: None,
    });
}

fn show_error(error: ApiError) {
    if JSON_ERRORS.load(Ordering::Relaxed) {
        return tell!("{}", serde_json::to_string(&error).unwrap_or_default());
    }
    tell!("forkyard: {}", error.message);
    if let Some(hint) = error.hint {
        tell!("  {hint}");
    }
}

/// An error as the API has them.
fn as_the_api(error: &anyhow::Error) -> ApiError {
    let client: Option<&ClientError> = error.downcast_ref();
    let kind = match client {
        Some(ClientError::Refused(refused)) => refused.kind,
        Some(_) => ErrorKind::Host,
        None if error.is::<Impatient>() || error.is::<Interrupted>() => ErrorKind::Timeout,
        None if error.is::<crate::NoDaemon>() => ErrorKind::Host,
        None if error.chain().any(|cause| cause.is::<io::Error>()) => ErrorKind::Host,
        None => ErrorKind::Invalid,
    };
    ApiError {
        kind,
        message: format!("{error:#}"),
        hint: client.and_then(ClientError::hint).map(str::to_owned),
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
        return show(&all, &all);
    }
    let rows = rows(&all, &all).into_iter().zip(places);
    let rows: Vec<_> = rows
        .map(|(row, (node, lost))| {
            let [name, state, host, rest @ ..] = row;
            let [
                address,
                ports,
                image,
                vcpus,
                memory,
                accel,
                parent,
                family,
                id,
            ] = rest;
            let state = if lost { "lost".to_owned() } else { state };
            let node = node.map_or(host, |node| node.to_string());
            [
                name, state, node, address, ports, image, vcpus, memory, accel, parent, family, id,
            ]
        })
        .collect();
    table(
        [
            "NAME", "STATE", "NODE", "ADDRESS", "PORTS", "IMAGE", "VCPUS", "MEMORY", "ACCEL",
            "PARENT", "FAMILY", "ID",
        ],
        &rows,
    );
}

/// Tells of a VM that runs.
pub fn told_of_run(format: Format, vm: &VmView) -> anyhow::Result<ExitCode> {
    match format {
        Format::Json => json(vm)?,
        Format::Text => {
            say!("{} runs at {}", vm.name, vm.address.ip);
            vm.published
                .iter()
                .for_each(|port| say!("published {port}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints VMs, and whose clones they are by name, if `client` knows.
pub async fn with_parents(client: &Client, vms: &[VmView]) {
    let mut known = vms.to_vec();
    for vm in vms {
        let Some(parent) = vm.parent else { continue };
        if known.iter().any(|vm| vm.id == parent) {
            continue;
        }
        let path = of_vm(&parent.to_string(), "");
        // One that has gone is told of by its id.
        known.extend(client.call::<VmView>(Method::GET, &path).await);
    }
    show(vms, &known);
}

fn show(vms: &[VmView], known: &[VmView]) {
    table(
        [
            "NAME", "STATE", "HOST", "ADDRESS", "PORTS", "IMAGE", "VCPUS", "MEMORY", "ACCEL",
            "PARENT", "FAMILY", "ID",
        ],
        &rows(vms, known),
    );
}

fn rows(vms: &[VmView], known: &[VmView]) -> Vec<[String; 12]> {
    vms.iter()
        .map(|vm| {
            [
                vm.name.to_string(),
                state(vm),
                vm.host.clone().unwrap_or_default(),
                vm.address.ip.to_string(),
                listed(&vm.published),
                vm.image.clone(),
                vm.vcpus.to_string(),
                vm.memory.to_string(),
                vm.accel.clone(),
                vm.parent
                    .map(|parent| named(known, parent))
                    .unwrap_or_default(),
                vm.family.to_string(),
                vm.id.to_string(),
            ]
        })
        .collect()
}

fn state(vm: &VmView) -> String {
    match (&vm.silence, &vm.failure, vm.asleep) {
        _ if vm.moving.is_some() => "moving".to_owned(),
        (Some(_), _, _) => "silent".to_owned(),
        (None, Some(_), _) => "failed".to_owned(),
        (None, None, true) => "asleep".to_owned(),
        (None, None, false) if vm.memory_wait_percent.is_some() => "thrashing".to_owned(),
        (None, None, false) => word(&vm.state),
    }
}

/// Prints what becomes of a VM in time, if anything does.
pub fn life(vm: &VmView) {
    if let Some(idle) = vm.idle {
        say!("idle     {} after {} s", word(&idle.action), idle.after_s);
    }
    match (vm.restart, vm.starts) {
        (Restart::No, _) => {}
        (restart, None) => say!("restart  {restart}"),
        (restart, Some(at)) => say!("restart  {restart}; due at {at} s since 1970"),
    }
}

/// Describes a family's rights on the network, in the words of `run`.
pub fn network(policy: &NetworkPolicy) -> String {
    let mut words = vec![word(&policy.out)];
    words.extend(policy.allow.iter().map(|allow| format!("allow {allow}")));
    words.extend(policy.deny.iter().map(|deny| format!("deny {deny}")));
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

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn control_characters_are_shown_and_do_nothing() {
        let odd = "\u{1b}]0;title\u{7}\r\u{9b}31m\u{7f}";
        let shown = plain(odd);
        assert!(!shown.contains(char::is_control), "{shown}");
        assert_eq!(shown, "\\u001b]0;title\\u0007\\u000d\\u009b31m\\u007f");
        assert_eq!(plain("é\t✓\n"), "é\t✓\n");
        assert_eq!(line("a\n\u{1b}b\t"), "a\\n\\u001bb\\t");
        // What escapes a character of JSON leaves it what it was.
        let text = serde_json::to_string(odd).expect("JSON");
        let again: String = serde_json::from_str(&plain(&text)).expect("JSON");
        assert_eq!(again, odd);
    }

    #[test]
    fn errors_are_the_apis_whoever_noticed_them() {
        let refused = ApiError {
            kind: ErrorKind::Conflict,
            message: "p is paused".into(),
            hint: Some("resume it".into()),
        };
        let error = anyhow::Error::from(ClientError::from(refused)).context("no fork");
        let told = as_the_api(&error);
        assert_eq!(told.kind, ErrorKind::Conflict);
        assert_eq!(told.message, "no fork: p is paused");
        assert_eq!(told.hint.as_deref(), Some("resume it"));
        let file = anyhow::Error::from(io::Error::from(io::ErrorKind::NotFound));
        for (error, kind) in [
            (file.context("cannot read x"), ErrorKind::Host),
            (
                anyhow!("what x is its name does not say"),
                ErrorKind::Invalid,
            ),
            (
                Interrupted::goes_on(2, "see `ps`").into(),
                ErrorKind::Timeout,
            ),
        ] {
            assert_eq!(as_the_api(&error).kind, kind, "{error}");
        }
    }
}
