//! Schedules the vCPUs of virtual machines from user space.
//!
//! It is two processes: the dispatcher, and a guard that lets every vCPU go
//! should the dispatcher die. Either may be killed at any time. It ends when it
//! has had no VM to schedule for ten seconds.

use anyhow::Context;
use clap::{Parser, Subcommand};
use forkyard_freezer::guard::guard;
use forkyard_sched::Policy;
use forkyard_sys_host::sched::{Class, OWN, set_class};
use forkyard_vcpu_dispatch::{
    Dispatcher, Mechanism,
    guard::{Changed, Processes, Program, leave_terminal},
    socket::serve,
};
use std::{
    fs, io,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Time it waits for one that is about to end, or for the guard of one that was
/// killed.
const ENDS: Duration = Duration::from_secs(50);
const POLL: Duration = Duration::from_millis(10);

/// Schedules the vCPUs of virtual machines.
#[derive(Debug, Parser)]
#[command(
    name = "forkyard-dispatcher",
    version,
    after_help = "Example: forkyard-dispatcher serve --socket /run/forkyard/sched.sock\n(forkyard sched set starts one where none runs.)"
)]
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
        /// Enforce turns by sched_ext and this scheduler in BPF, not by the freezer
        #[arg(long, value_name = "OBJECT", env = "FORKYARD_SCHED_EXT")]
        sched_ext: Option<PathBuf>,
    },
    /// Read of groups on standard input, and let them go when it ends
    #[command(hide = true)]
    Guard,
}

fn main() -> anyhow::Result<()> {
    let role = Arguments::parse().role;
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    match role {
        Role::Guard => {
            leave_terminal().context("cannot leave the terminal")?;
            first();
            guard::<Changed>(io::stdin().lock());
            Ok(())
        }
        Role::Serve { socket, sched_ext } => {
            let mechanism = match sched_ext {
                Some(object) => Mechanism::sched_ext(&object)?,
                None => Mechanism::Freezer,
            };
            dispatch(&socket, mechanism)
        }
    }
}

fn dispatch(socket: &Path, mechanism: Mechanism) -> anyhow::Result<()> {
    let lock = Arc::new(lock(socket)?);
    // Only the holder of the lock may take the path over.
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| socket.display().to_string());
        }
        _ => {}
    }
    let program = Program {
        path: std::env::current_exe().context("this program has no name")?,
        arguments: vec!["guard".to_owned()],
        holds: Some(lock),
        // It begins a session of its own, which the first of a group cannot.
        processes: Processes::Programs,
    };
    let mut dispatcher = Dispatcher::new(Policy::Sbco, program, mechanism)?;
    first();
    let listener = UnixListener::bind(socket).with_context(|| socket.display().to_string())?;
    // A user that may speak to it may stop any VM.
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600))
        .with_context(|| socket.display().to_string())?;
    serve(&mut dispatcher, listener);
    fs::remove_file(socket).with_context(|| socket.display().to_string())
}

/// Locks the place, which one dispatcher and its guard have at a time: a guard that
/// lets go would take threads from the next dispatcher's hands.
fn lock(socket: &Path) -> anyhow::Result<fs::File> {
    let path = socket.with_extension("lock");
    let lock =
        forkyard_sys_host::private::open(&path).with_context(|| path.display().to_string())?;
    let begun = Instant::now();
    while let Err(error) = lock.try_lock() {
        if begun.elapsed() > ENDS {
            let why = || format!("another dispatcher serves {}", socket.display());
            return Err(error).with_context(why);
        }
        thread::sleep(POLL);
    }
    Ok(lock)
}

/// Has this thread run before all usual ones: a scheduler of others must not
/// wait for them.
fn first() {
    if let Err(error) = set_class(0, Class::First(OWN)) {
        tracing::warn!(%error, "without the right to run first: turns will be rough");
    }
}
