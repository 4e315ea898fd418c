//! `sessions`: commands that go on in a VM without a client.

use super::exec;
use crate::{args::Format, output};
use clap::Subcommand;
use forkyard_api_client::{Client, of_vm};
use forkyard_types::{ExitStatus, KeptCommand};
use hyper::Method;
use std::process::ExitCode;

/// `sessions`
#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// List the commands that a VM keeps: those that run, and the last that have ended.
    #[command(after_help = "Example: forkyard sessions ls p")]
    Ls {
        /// Name or id of the VM.
        vm: String,
    },
    /// Show what a command has written as far as that is kept, and what it goes on to write; exit
    /// as it does.
    ///
    /// The command goes on when this program ends. Exit codes as of `forkyard exec`.
    #[command(
        after_help = "Examples:\n  forkyard sessions attach p 312\n  echo more | forkyard sessions attach -i p 312"
    )]
    Attach {
        /// Pass standard input on to the command. Its end is not passed on.
        #[arg(long, short)]
        interactive: bool,
        /// Name or id of the VM.
        vm: String,
        /// The command's process id.
        pid: u32,
    },
    /// Kill a command and all that it started, or send it another signal.
    #[command(
        after_help = "Example: forkyard sessions kill p 312, or forkyard sessions kill --signal 15 p 312"
    )]
    Kill {
        /// Number of the signal.
        #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u8).range(1..=64))]
        signal: u8,
        /// Name or id of the VM.
        vm: String,
        /// The command's process id.
        pid: u32,
    },
}

/// Lists commands, attaches to one, or kills one.
pub async fn sessions(
    client: &Client,
    format: Format,
    wanted: Sessions,
) -> anyhow::Result<ExitCode> {
    match wanted {
        Sessions::Ls { vm } => list(client, format, &vm).await,
        Sessions::Attach {
            interactive,
            vm,
            pid,
        } => exec::attach(client, format, interactive, &vm, pid).await,
        Sessions::Kill { signal, vm, pid } => {
            let path = of_vm(&vm, &format!("sessions/{pid}?signal={signal}"));
            client.call::<()>(Method::DELETE, &path).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn list(client: &Client, format: Format, vm: &str) -> anyhow::Result<ExitCode> {
    let all: Vec<KeptCommand> = client.call(Method::GET, &of_vm(vm, "sessions")).await?;
    if format == Format::Json {
        output::json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |command: &KeptCommand| {
        [
            command.pid.to_string(),
            match command.exit {
                None => "running".to_owned(),
                Some(ExitStatus::Code(code)) => format!("exited {code}"),
                Some(ExitStatus::Signal(signal)) => format!("signal {signal}"),
            },
            command.attached.to_string(),
            command.kept.to_string(),
            command.lost.to_string(),
            command.tag.as_deref().map(output::line).unwrap_or_default(),
            command.argv.join(" ").escape_debug().to_string(),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    output::table(
        ["PID", "STATE", "ATTACHED", "KEPT", "LOST", "TAG", "COMMAND"],
        &rows,
    );
    Ok(ExitCode::SUCCESS)
}
