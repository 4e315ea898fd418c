//! Schedules the vCPUs of virtual machines from user space.
//!
//! It is two processes: the dispatcher, and a guard that lets every vCPU go
//! should the dispatcher die. Either may be killed at any time. It ends when it
//! has had nobody to schedule for ten seconds.

use anyhow::Context;
use clap::{Parser, Subcommand};
use forkyard_dispatch::{
    Dispatcher,
    guard::{Program, guard},
    socket::serve,
};
use forkyard_sched::Policy;
use forkyard_sys_host::sched::{Class, set_class};
use std::{
    fs, io,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
};

/// Schedules the vCPUs of virtual machines.
#[derive(Debug, Parser)]
#[command(name = "forkyard-dispatcher", version)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Schedule, and listen
    Serve {
        /// Socket to listen at
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
    },
    /// Read of groups on standard input, and let them go when it ends
    #[command(hide = true)]
    Guard,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().role {
        Role::Guard => {
            guard(io::stdin().lock());
            Ok(())
        }
        Role::Serve { socket } => dispatch(&socket),
    }
}

fn dispatch(socket: &Path) -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let lock_path = socket.with_extension("lock");
    let lock = fs::File::create(&lock_path).with_context(|| lock_path.display().to_string())?;
    lock.try_lock()
        .with_context(|| format!("another dispatcher serves {}", socket.display()))?;
    // Only the holder of the lock may take the path over.
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| socket.display().to_string());
        }
        _ => {}
    }
    let listener = UnixListener::bind(socket).with_context(|| socket.display().to_string())?;
    let program = Program {
        path: std::env::current_exe().context("this program has no name")?,
        arguments: vec!["guard".to_owned()],
    };
    let mut dispatcher = Dispatcher::new(Policy::Sbco, program)?;
    // After the guard has been started, which needs no hurry.
    if let Err(error) = set_class(0, Class::First(1)) {
        tracing::warn!(%error, "without the right to run first: turns will be rough");
    }
    serve(&mut dispatcher, listener);
    fs::remove_file(socket).with_context(|| socket.display().to_string())
}
