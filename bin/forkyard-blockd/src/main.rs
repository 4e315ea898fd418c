//! Serves volumes by NBD until told to end, and is the command line to do so.
//!
//! Outlives the program that started it. May be killed at any time. SIGTERM and SIGINT: flush
//! all volumes and end.

mod arguments;

use anyhow::Context;
use arguments::{Arguments, Command};
use clap::Parser;
use forkyard_blockd::{Answer, BlockServer, BlockdClient, BlockdSetup, EndRequest, Request};
use nix::sys::{
    signal::{SigSet, Signal},
    stat::{Mode, umask},
};
use std::{
    io::{IsTerminal, Write},
    path::Path,
    process::ExitCode,
    thread,
};

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
        keys,
        nbd,
        users,
        replace,
        segment_bits,
    } = command
    {
        if replace {
            end(&socket)?;
        }
        return serve(BlockdSetup {
            folder,
            keys,
            nbd,
            control: socket,
            users: users.unwrap_or_default(),
            geometry: segment_bits,
        });
    }
    if let Command::End = command {
        return Ok(BlockdClient::connect(&socket)?.end()?);
    }
    match command.request()? {
        Some(request @ Request::Send { .. }) => send(&socket, &request),
        Some(request @ Request::Receive { .. }) => receive(&socket, &request),
        Some(request) => ask(&socket, &request),
        None => Ok(()),
    }
}

fn ask(socket: &Path, request: &Request) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    match BlockdClient::connect(socket)?.ask(request)? {
        Answer::Volumes(names) => {
            for name in names {
                writeln!(out, "{name}")?;
            }
        }
        Answer::Volume(status) => writeln!(out, "{}", serde_json::to_string_pretty(&status)?)?,
        Answer::Opened { export } => writeln!(out, "{export}")?,
        Answer::Blocks(blocks) => writeln!(out, "{blocks}")?,
        Answer::Counts(counts) => writeln!(out, "{}", serde_json::to_string_pretty(&counts)?)?,
        Answer::Why(why) => writeln!(out, "{}", serde_json::to_string_pretty(&why)?)?,
        Answer::Needs(needs) => {
            for need in needs {
                writeln!(out, "{}\t{}\t{}", need.volume, need.snapshot, need.by)?;
            }
        }
        Answer::Done {} | Answer::Stream {} | Answer::Failed { .. } => {}
    }
    Ok(())
}

fn send(socket: &Path, request: &Request) -> anyhow::Result<()> {
    let out = std::io::stdout();
    anyhow::ensure!(
        !out.is_terminal(),
        "a stream is nothing to look at: write it to a file, or to `receive` elsewhere"
    );
    let mut from = BlockdClient::connect(socket)?.send(request)?;
    forkyard_blockd::relay(&mut from, &mut out.lock()).context("the snapshot was not sent")?;
    Ok(())
}

fn receive(socket: &Path, request: &Request) -> anyhow::Result<()> {
    let mut client = BlockdClient::connect(socket)?;
    let mut to = client.receive(request)?;
    let copied = std::io::copy(&mut std::io::stdin().lock(), &mut to);
    // The server does not read on where it has found something wrong: it says what.
    to.shutdown(std::net::Shutdown::Write)?;
    client.finish()?;
    copied.map(drop).context("cannot read the stream")
}

/// Ends a server, if there is one, and waits until it has gone.
fn end(socket: &Path) -> anyhow::Result<()> {
    match BlockdClient::connect(socket) {
        Ok(client) => client.end().context("the server does not end"),
        Err(_) => Ok(()),
    }
}

fn serve(setup: BlockdSetup) -> anyhow::Result<()> {
    // What volumes hold is for this user alone.
    umask(Mode::from_bits_truncate(0o077));
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    // Before any thread exists, so that none takes the signal instead.
    signals.thread_block().context("cannot block signals")?;
    let server = BlockServer::start(setup)?;
    let ender = server.ender();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if signals.wait().is_ok() {
                let _ = ender.send(EndRequest::own());
            }
        })?;
    // The program that started this one may have stopped listening.
    let _ = writeln!(std::io::stdout(), "ready");
    server.wait().context("cannot flush all volumes")
}
