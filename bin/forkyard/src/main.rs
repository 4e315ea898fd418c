//! `forkyard`: the command line, a client of the daemon's API. It starts the
//! daemon if none runs.
//!
//! Exit codes: 0 done; 1 the request failed; 2 the command line is wrong;
//! 3 some of several things asked for failed; 4 no daemon could be reached;
//! 5 not done within `--timeout`; 130, 143, 129 ended by SIGINT, SIGTERM, SIGHUP; 141 the reader of the output has gone;
//! `exec` exits as the guest's command did, and with 125 if the request failed.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod output;
mod args;
mod commands;
mod completion;
mod daemon;

use clap::Parser;
use commands::signals::Interrupted;
use forkyard_api_client::ClientError;
use std::{
    ffi::{OsStr, OsString},
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
};

fn main() -> ExitCode {
    completion::answer();
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        // Help and the version are no errors.
        Err(error) if error.use_stderr() && wants_json(std::env::args_os()) => {
            output::errors_as_json();
            output::complain_of_words(&reworded(&error.to_string()));
            return unheard(std::env::args());
        }
        Err(error) if error.use_stderr() && std::env::args_os().any(|it| acts(&it)) => {
            // In the user's own words, without colours of the parser's.
            tell!("{}", reworded(&error.to_string()).trim_end());
            return unheard(std::env::args());
        }
        Err(error) if error.use_stderr() => {
            let text = error.render();
            let text = match std::io::stderr().is_terminal() {
                true => text.ansi().to_string(),
                false => text.to_string(),
            };
            // Where standard error cannot be written nothing can be told.
            let _ = std::io::stderr().write_all(reworded(&text).as_bytes());
            return unheard(std::env::args());
        }
        Err(error) => {
            return match error.print() {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => std::process::exit(output::cannot_write(&error)),
            };
        }
    };
    if args.output == args::Format::Json {
        output::errors_as_json();
    }
    let is_exec = matches!(args.command, args::Command::Exec(_));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(commands::run(args));
            // A thread that still waits, for a reader of a FIFO say, must not be waited for.
            runtime.shutdown_background();
            outcome
        }
        Err(source) => Err(anyhow::Error::new(source).context("cannot start")),
    };
    outcome.unwrap_or_else(|error| {
        output::complain(&error);
        let refused = error.downcast_ref();
        if is_exec {
            // The others are the command's own.
            ExitCode::from(commands::exec::FAILED)
        } else if error.is::<NoDaemon>() || refused.is_some_and(ClientError::is_no_daemon) {
            ExitCode::from(4)
        } else if error.is::<commands::vms::Impatient>() {
            ExitCode::from(5)
        } else if let Some(ended) = error.downcast_ref::<Interrupted>() {
            ExitCode::from(ended.code())
        } else {
            ExitCode::FAILURE
        }
    })
}

/// Says in plain words what the standard library has said of a number.
fn reworded(text: &str) -> String {
    const WORDS: [(&str, &str); 6] = [
        ("invalid digit found in string", "wanted a whole number"),
        (
            "cannot parse integer from empty string",
            "wanted a whole number",
        ),
        (
            "number too large to fit in target type",
            "the number is too large",
        ),
        (
            "number too small to fit in target type",
            "the number is too small",
        ),
        ("invalid float literal", "wanted a number"),
        ("cannot parse float from empty string", "wanted a number"),
    ];
    let words = WORDS.into_iter();
    words.fold(text.to_owned(), |text, (theirs, ours)| {
        text.replace(theirs, ours)
    })
}

/// Tells whether a word would do something to a terminal.
fn acts(word: &OsStr) -> bool {
    let text = word.to_string_lossy();
    output::plain(&text) != text
}

/// Status where the words make no sense: of `exec` one that is not its command's.
fn unheard(mut words: impl Iterator<Item = String>) -> ExitCode {
    let command = words.nth(1);
    match command.as_deref() {
        Some("exec") => ExitCode::from(commands::exec::FAILED),
        Some(_) | None => ExitCode::from(2),
    }
}

/// Tells whether words that make no sense as a whole ask for JSON.
fn wants_json(words: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<_> = words.take_while(|word| word != "--").collect();
    let asks = |pair: &[OsString]| (pair[0] == "-o" || pair[0] == "--output") && pair[1] == "json";
    let alone = |word: &OsString| {
        ["-ojson", "-o=json", "--output=json"]
            .iter()
            .any(|it| word == it)
    };
    words.windows(2).any(asks) || words.iter().any(alone)
}

/// A daemon could not be started.
#[derive(Debug)]
struct NoDaemon(String);

impl std::fmt::Display for NoDaemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoDaemon {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_numbers_are_told_in_plain_words() {
        for (words, wanted) in [
            ("forkyard fork f --count x", "wanted a whole number"),
            ("forkyard fork f --count 70000", "70000"),
            ("forkyard run tiny --vcpus -1", "-1"),
        ] {
            let error = args::Args::try_parse_from(words.split(' ')).expect_err(words);
            let text = reworded(&error.to_string());
            assert!(text.contains(wanted), "{text}");
            for theirs in ["digit found", "target type", "parse integer"] {
                assert!(!text.contains(theirs), "{text}");
            }
        }
    }

    #[test]
    fn wrong_words_that_ask_for_json_are_told_so_in_json() {
        let wants = |words: &str| wants_json(words.split(' ').map(OsString::from));
        for words in [
            "forkyard -o json nosuch",
            "forkyard fork --count x -o json",
            "forkyard --output=json",
            "forkyard ps -ojson",
        ] {
            assert!(wants(words), "{words}");
        }
        for words in [
            "forkyard",
            "forkyard -o text json",
            "forkyard exec p -- x -o json",
        ] {
            assert!(!wants(words), "{words}");
        }
    }
}
