//! `forkyard-guest`: the one program of ours in a guest, under five names.
//!
//! `/init` in the initramfs makes any root file system a guest; the agent
//! talks to the host; `vmfork` is the fork API for shells; `poweroff` and `reboot` are
//! there where the image has no init. Static, and without
//! a runtime of threads it does not need: it is in every guest's memory.

mod agent;
mod connect;
mod dock;
mod files;
mod foreign;
mod init;
mod route;
mod vmfork;
mod who;

use nix::sys::reboot::RebootMode;
use std::{path::Path, process::ExitCode};

/// Name the agent runs under: systemd spares processes whose name begins so
/// when it ends all others at shutdown (systemd.io/ROOT_STORAGE_DAEMONS).
const AGENT: &str = "@forkyard-guest";
/// Path of this program, once the root file system is there.
const PROGRAM: &str = "/opt/forkyard/bin/forkyard-guest";

fn main() -> ExitCode {
    let raw: Vec<std::ffi::OsString> = std::env::args_os().collect();
    // Paths need not be UTF-8.
    if let [_, role, words @ ..] = raw.as_slice()
        && role == "files"
    {
        return files::main(words);
    }
    let words: Vec<String> = raw
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let (name, words) = words
        .split_first()
        .map_or(("", [].as_slice()), |(name, words)| (name.as_str(), words));
    let name = Path::new(name)
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    match (name, words) {
        ("vmfork", words) => vmfork::main(words),
        ("init", _) if std::process::id() == 1 => init::main(),
        ("poweroff", _) => init::entry::end(RebootMode::RB_POWER_OFF),
        ("reboot", _) => init::entry::end(RebootMode::RB_AUTOBOOT),
        (_, [role, port]) if role == "connect" => connect::main(port),
        (_, [role, words @ ..]) if role == "dock" => dock::main(words),
        (_, [role, words @ ..]) if role == "route" => route::main(words),
        (_, [role]) if role == "sync" => {
            nix::unistd::sync();
            ExitCode::SUCCESS
        }
        (_, [role]) if role == "entry" => init::entry::main(),
        (_, [role, words @ ..]) if role == "agent" => agent::supervise(words),
        (_, [role]) if role == "worker" => agent::work(),
        (_, [role, words @ ..]) if role == "vmfork" => vmfork::main(words),
        _ => {
            eprintln!(
                "forkyard-guest: started by the guest's initramfs, not by hand; for shells there is `vmfork`"
            );
            ExitCode::from(2)
        }
    }
}
