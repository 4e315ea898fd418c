//! Words that shells complete, and manual pages: both are made of the command line's own description.
//!
//! A shell asks this very program, by the variable `FORKYARD_COMPLETE`, what may come next. Names
//! of VMs, images, substrates and volumes are the daemon's, if one runs: a key that is pressed
//! starts none, and does not wait for one that hangs.

use crate::args::{Args, Command as Words, RUN_DIR};
use anyhow::Context;
use clap::{Arg, Command, CommandFactory, ValueEnum};
use clap_complete::{
    ArgValueCandidates, CompleteEnv, CompletionCandidate, PathCompleter, env::Shells,
};
use forkyard_api_client::{Client, Place};
use hyper::Method;
use serde_json::Value;
use std::{fs, io, path::Path, time::Duration};

/// Variable that a shell sets to ask.
const ASKS: &str = "FORKYARD_COMPLETE";
const PROGRAM: &str = "forkyard";
/// Time to wait for names: a key has been pressed.
const PATIENCE: Duration = Duration::from_millis(500);

/// Shells whose words are completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
    /// elvish
    Elvish,
    /// PowerShell
    Powershell,
}

/// Answers a shell and ends this program, if it is a shell that asks.
pub fn answer() {
    CompleteEnv::with_factory(|| with_names(Args::command()))
        .var(ASKS)
        .complete();
}

/// Gives what a command of this module prints; none for the others.
pub fn told(command: &Words) -> Option<anyhow::Result<String>> {
    if let Words::Completion { shell } = command {
        return Some(script(*shell));
    }
    if let Words::Manual { folder } = command {
        return Some(manual(folder).map(|count| format!("{count} pages\n")));
    }
    None
}

/// Gives what makes `shell` ask.
fn script(shell: Shell) -> anyhow::Result<String> {
    let name = format!("{shell:?}").to_lowercase();
    let shells = Shells::builtins();
    let completer = shells
        .completer(&name)
        .with_context(|| format!("there is no completion for {name}"))?;
    let mut script = Vec::new();
    completer
        .write_registration(ASKS, PROGRAM, PROGRAM, PROGRAM, &mut script)
        .context("cannot write the completion")?;
    Ok(String::from_utf8(script)?)
}

/// Writes a manual page for each command into a folder, which is made; returns how many.
fn manual(folder: &Path) -> anyhow::Result<usize> {
    let written = || -> io::Result<usize> {
        fs::create_dir_all(folder)?;
        clap_mangen::generate_to(Args::command(), folder)?;
        Ok(fs::read_dir(folder)?.count())
    };
    written().with_context(|| format!("cannot write manual pages to {}", folder.display()))
}

/// Says of each argument that is a name where its names come from.
fn with_names(command: Command) -> Command {
    command.mut_subcommands(|command| {
        let of = command.get_name().to_owned();
        named(command, &of).mut_subcommands(|part| {
            let makes = ["create", "dock", "pull", "build"].contains(&part.get_name());
            if makes {
                named(part, "")
            } else {
                named(part, &of)
            }
        })
    })
}

/// Names one command, which is one of `group`.
fn named(command: Command, group: &str) -> Command {
    let group = group.to_owned();
    command.mut_args(move |arg| {
        let id = arg.get_id().as_str();
        let list = match (id, group.as_str()) {
            ("vm" | "vms", _) => "/v1/vms",
            ("image", "run") | ("name", "image") => "/v1/images",
            ("name" | "names", "substrate") | ("from", "run") => "/v1/substrates",
            ("name", "volume") => "/v1/volumes",
            ("token" | "tokens", "token") => "/v1/tokens",
            ("nodes" | "node", _) => "/v1/nodes",
            ("to", "fork" | "migrate" | "evacuate") => "/v1/hosts",
            ("from" | "to", "cp") => return places(arg),
            _ => return arg,
        };
        arg.add(ArgValueCandidates::new(move || names(list, "")))
    })
}

/// Completes a path here, or `VM:`, of which the path is the guest's.
fn places(arg: Arg) -> Arg {
    arg.add(clap_complete::ArgValueCompleter::new(
        |word: &std::ffi::OsStr| {
            use clap_complete::engine::ValueCompleter;
            let typed = word.to_string_lossy();
            let of_vms = names("/v1/vms", ":");
            let mut all: Vec<_> = of_vms
                .into_iter()
                .filter(|it| it.get_value().to_string_lossy().starts_with(&*typed))
                .collect();
            all.extend(PathCompleter::any().complete(word));
            all
        },
    ))
}

/// Names of a list of the daemon's, with `end` after each; none if it is not there.
fn names(list: &'static str, end: &str) -> Vec<CompletionCandidate> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    else {
        return Vec::new();
    };
    let answer = runtime.block_on(async {
        let client = daemon().ok()?;
        let asked = client.call::<Vec<Value>>(Method::GET, list);
        tokio::time::timeout(PATIENCE, asked).await.ok()?.ok()
    });
    // Not waited for: a name that is being looked up takes its time.
    runtime.shutdown_background();
    let name = |it: &Value| {
        let name = it.as_str().or_else(|| it["name"].as_str());
        name.map(|name| format!("{name}{end}"))
    };
    answer
        .unwrap_or_default()
        .iter()
        .filter_map(name)
        // Shells take them as they are.
        .filter(|name| name.chars().all(is_plain))
        .map(CompletionCandidate::new)
        .collect()
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-_.:/@".contains(letter)
}

/// The daemon that the environment names: what the words before say is not known here.
fn daemon() -> anyhow::Result<Client> {
    let value = |name| std::env::var(name).ok().filter(|it| !it.is_empty());
    match value("FORKYARD_URL") {
        Some(url) => {
            let trust = value("FORKYARD_CA").map(|it| it.parse()).transpose()?;
            crate::daemon::elsewhere(url.parse::<Place>()?, trust)
        }
        None => {
            let run_dir = value("FORKYARD_RUN_DIR");
            Ok(Client::new(Path::new(
                run_dir.as_deref().unwrap_or(RUN_DIR),
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_is_told_how_to_ask() {
        for shell in Shell::value_variants() {
            let script = script(*shell).expect("a script");
            assert!(
                script.contains(ASKS) && script.contains(PROGRAM),
                "{shell:?}"
            );
        }
    }

    #[test]
    fn names_are_looked_for_where_a_name_is_wanted_and_not_where_one_is_made() {
        let command = with_names(Args::command());
        let asks = |words: &[&str], id: &str| {
            let mut at = &command;
            for word in words {
                at = at.find_subcommand(word).expect(word);
            }
            let arg = at.get_arguments().find(|arg| arg.get_id() == id).expect(id);
            arg.get::<ArgValueCandidates>().is_some()
        };
        for (words, id) in [
            (&["fork"][..], "vm"),
            (&["exec"], "vm"),
            (&["rm"], "vms"),
            (&["run"], "image"),
            (&["image", "rm"], "name"),
            (&["substrate", "activate"], "name"),
            (&["run"], "from"),
            (&["substrate", "dock"], "vm"),
            (&["volume", "inspect"], "name"),
            (&["sessions", "attach"], "vm"),
        ] {
            assert!(asks(words, id), "{words:?}");
        }
        assert!(!asks(&["volume", "create"], "name"));
        assert!(!asks(&["substrate", "dock"], "name"));
    }

    #[test]
    fn every_command_has_a_manual_page_with_its_examples() {
        let folder = tempfile::tempdir().expect("a folder");
        let count = manual(folder.path()).expect("written");
        assert!(count > 40, "{count}");
        let page = fs::read_to_string(folder.path().join("forkyard-fork.1")).expect("a page");
        assert!(page.contains("forkyard fork p"), "{page}");
    }
}
