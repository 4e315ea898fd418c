//! Carries pieces of substrates to and from object stores, for forkyardd.
//!
//! ```text
//! daemon --order (a line of JSON, standard input)--> forkyard-porter --requests--> the store
//!                    <--what it says (lines of JSON, standard output)--
//! ```
//!
//! A process of its own for each order: no other uses the stores' keys or speaks to servers, and
//! what comes from a store is checked again by the daemon, piece by piece, before it is used. It holds
//! a few pieces in memory, whatever the size of a substrate.
//!
//! | fails | then |
//! |---|---|
//! | the store, for longer than requests are repeated | it says so and ends |
//! | a piece is missing or damaged | likewise; files that it has begun are the daemon's to remove |
//! | the daemon dies | its input ends, and it does |
//! | it is killed | the daemon says so; a lease is left in the store, and goes when it is old |

mod collection;
mod fetch;
mod objects;
mod push;

use forkyard_objects::order::{Done, Failed, Order, Said, Work};
use nix::sys::stat::{Mode, umask};
use objects::Objects;
use std::{
    io::{self, Read, Write},
    process::ExitCode,
};

fn main() -> ExitCode {
    // Memory and disks of guests are in what it writes to a folder.
    umask(Mode::from_bits_truncate(0o077));
    let mut line = String::new();
    let order = match io::stdin().read_line(&mut line) {
        Ok(_) => serde_json::from_str::<Order>(&line),
        Err(error) => Err(serde_json::Error::io(error)),
    };
    let order = match order {
        Ok(order) => order,
        Err(error) => {
            eprintln!(
                "forkyard-porter: forkyardd starts this program, and tells it what to do: {error}"
            );
            return ExitCode::from(2);
        }
    };
    // With the daemon.
    std::thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    // Of two in one process none would be chosen by itself.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let said = match runtime {
        Ok(runtime) => runtime.block_on(carry_out(order)),
        Err(error) => Err(Failed::Here(error.to_string())),
    };
    let (last, code) = match said {
        Ok(done) => (Said::Done(done), ExitCode::SUCCESS),
        Err(failed) => (Said::Failed(failed), ExitCode::FAILURE),
    };
    match say(&last) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

async fn carry_out(order: Order) -> Result<Done, Failed> {
    let objects = Objects::open(&order)?;
    match order.work {
        Work::List => objects.list(|said| say(&said)).await,
        Work::Get { name } => {
            let said = objects.manifest(&name).await?;
            say(&said)?;
            Ok(Done::default())
        }
        Work::Put {
            name,
            manifest,
            files,
            over,
            verify,
        } => {
            let push = push::Pushed {
                name,
                manifest,
                files,
                over,
                verify,
            };
            push::push(&objects, push).await
        }
        Work::Fetch { files } => fetch::fetch(&objects, files).await,
        Work::Remove { name } => {
            objects.remove(&name).await?;
            collection::collect(&objects).await
        }
        Work::Collect => collection::collect(&objects).await,
    }
}

fn say(said: &Said) -> Result<(), Failed> {
    let lost = |error: io::Error| Failed::Here(format!("cannot answer: {error}"));
    let mut line = serde_json::to_vec(said).map_err(|error| lost(error.into()))?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)
        .and_then(|()| out.flush())
        .map_err(lost)
}
