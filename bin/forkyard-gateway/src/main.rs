//! `forkyard-gateway`: HTTP, WebSockets and TCP for servers in VMs, wherever those are and go.
//!
//! ```text
//! browser --HTTP(S)--> gateway --the daemon's API--> daemon --> agent --> server in the guest
//! ```
//!
//! A client of the daemon like others: it may be killed, and run on another machine, and there may
//! be many. What it keeps is a key that signs tokens.

mod arguments;
mod counts;
mod gateway;
mod guest;
mod serve;
mod shares;
mod token;

use anyhow::Context;
use arguments::{Arguments, Command, Format, Share};
use clap::Parser;
use forkyard_api_client::{Client, TokenSecret, Trust, of_vm};
use forkyard_gateway::{PortPermission as Allowed, ShareKey};
use forkyard_types::VmView;
use hyper::Method;
use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
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
            eprintln!("forkyard-gateway: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let client = match arguments.url {
        Some(place) => {
            // Not a word of the command line: others can see those.
            let token = std::env::var("FORKYARD_TOKEN").ok().map(TokenSecret);
            Client::at(place, token, &arguments.ca.unwrap_or(Trust::System))?
        }
        None => Client::new(&arguments.run_dir),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    match arguments.command {
        Command::Serve(wanted) => runtime.block_on(serve::serve(client, wanted)),
        Command::Share(wanted) => runtime.block_on(share(&client, wanted)),
    }
}

/// Makes a token, and says it.
async fn share(client: &Client, wanted: Share) -> anyhow::Result<()> {
    // One that is made here would be no gateway's.
    let key = ShareKey::kept_in(&wanted.key)
        .context("the gateway makes its key when it starts; --key names another")?;
    let vm: VmView = client.call(Method::GET, &of_vm(&wanted.vm, "")).await?;
    let allowed = Allowed {
        vm: vm.id,
        port: wanted.port,
        expires: token::now()
            .checked_add(wanted.expires.as_secs())
            .context("--expires is too long")?,
    };
    let token = allowed.token(&key);
    let url = wanted.base;
    let url = url.map(|base| base.address(&vm.name, vm.id, wanted.port, &token));
    let mut out = std::io::stdout().lock();
    if wanted.output == Format::Json {
        let told = serde_json::json!({
            "vm": vm.name, "id": vm.id, "port": wanted.port, "token": token, "url": url,
            "expires": allowed.expires,
        });
        writeln!(out, "{told}")?;
    } else {
        writeln!(out, "{}", url.unwrap_or(token))?;
    }
    Ok(())
}
