//! Serves volumes by NBD until told to end, and is the command line to do so.
//!
//! Outlives the program that started it. May be killed at any time. SIGTERM and SIGINT: flush
//! all volumes and end.

mod arguments;

use anyhow::Context;
use arguments::{Arguments, Command};
use clap::Parser;
use forkyard_blockd::{Answer, Client, Request, Server, Setup};
use nix::sys::signal::{SigSet, Signal};
use std::{
    io::{IsTerminal, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

/// Time that a server takes to end, once its volumes are flushed.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forkyard-blockd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { socket, command } = arguments;
    if let Command::Serve {
        folder,
        nbd,
        replace,
    } = command
    {
        if replace {
            end(&socket)?;
        }
        return serve(folder, nbd, socket);
    }
    match command.request()? {
        Some(request) => ask(&socket, &request),
        None => Ok(()),
    }
}

fn ask(socket: &Path, request: &Request) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    match Client::connect(socket)?.ask(request)? {
        Answer::Volumes(names) => {
            for name in names {
                writeln!(out, "{name}")?;
            }
        }
        Answer::Volume(status) => writeln!(out, "{}", serde_json::to_string_pretty(&status)?)?,
        Answer::Opened { export } => writeln!(out, "{export}")?,
        Answer::Done {} | Answer::Failed(_) => {}
    }
    Ok(())
}

/// Ends a server, if there is one.
fn end(socket: &Path) -> anyhow::Result<()> {
    let Ok(mut client) = Client::connect(socket) else {
        return Ok(());
    };
    client
        .ask(&Request::End {})
        .context("the server does not end")?;
    let begun = Instant::now();
    while UnixStream::connect(socket).is_ok() {
        anyhow::ensure!(begun.elapsed() < PATIENCE, "the server does not end");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn serve(folder: PathBuf, nbd: PathBuf, control: PathBuf) -> anyhow::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    // Before any thread exists, so that none takes the signal instead.
    signals.thread_block().context("cannot block signals")?;
    let server = Server::start(Setup {
        folder,
        nbd,
        control,
    })?;
    let ender = server.ender();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if signals.wait().is_ok() {
                let _ = ender.send(());
            }
        })?;
    // The program that started this one may have stopped listening.
    let _ = writeln!(std::io::stdout(), "ready");
    server.wait().context("cannot flush all volumes")
}
