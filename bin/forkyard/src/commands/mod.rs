//! Implementations of the commands.

pub mod autoscale;
pub mod bench;
pub mod compose;
pub mod console;
pub mod copy;
pub mod egress;
pub mod evacuate;
pub mod events;
pub mod exec;
pub mod friendly;
mod image_build;
pub mod images;
pub mod independence;
pub mod lifetime;
pub mod link;
mod logs;
mod mcp;
mod migrate;
pub mod node;
pub mod port_forward;
mod progress;
pub mod publish;
pub mod removal;
pub mod sched;
pub mod sessions;
mod settled;
mod several;
pub mod share;
pub mod signals;
mod silence;
pub mod substrate;
mod terminal;
pub mod ticket;
pub mod token;
pub mod top;
pub mod transfer;
pub mod vms;
pub mod volume;
pub mod wait;

use crate::{
    args::{Args, Command},
    completion, daemon,
};
use mcp::Reach;
use std::process::ExitCode;

/// Carries out the command.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    // What is worked out here needs no daemon, and starts none.
    if let Command::Sched(wanted) = &args.command
        && let Some(done) = sched::alone(args.output, wanted)
    {
        return done;
    }
    if let Command::Friendly(wanted) = &args.command
        && let Some(done) = friendly::alone(args.output, wanted)
    {
        return done;
    }
    if let Some(text) = completion::told(&args.command) {
        say_piece!("{}", text?);
        return Ok(ExitCode::SUCCESS);
    }
    let (client, reach) = match args.url {
        Some(place) => {
            let client = daemon::elsewhere(place, args.ca)?;
            (client.clone(), Reach::There(client))
        }
        None => {
            let client = match matches!(args.command, Command::Node(_)) {
                true => daemon::running(&args.run_dir).await?,
                false => daemon::ensure(&args.run_dir).await?,
            };
            (client, Reach::Here(args.run_dir.clone()))
        }
    };
    let format = args.output;
    match args.command {
        Command::Run(run) => vms::run(&client, format, *run).await,
        Command::Fork(fork) => vms::fork(&client, format, fork).await,
        Command::Checkpoint(checkpoint) => vms::checkpoint(&client, format, checkpoint).await,
        Command::Migrate(wanted) => migrate::migrate(&client, format, wanted).await,
        Command::Evacuate(wanted) => evacuate::evacuate(&client, format, wanted).await,
        Command::Exec(command) => exec::exec(&client, format, command).await,
        Command::Logs(wanted) => logs::logs(&client, format, wanted).await,
        Command::Console(wanted) => console::console(&client, wanted).await,
        Command::PortForward(wanted) => port_forward::port_forward(&client, format, wanted).await,
        Command::Autoscale(wanted) => autoscale::autoscale(&client, format, wanted).await,
        Command::Up(wanted) => compose::up(&client, format, wanted).await,
        Command::Down(wanted) => compose::down(&client, format, wanted).await,
        Command::Egress(wanted) => egress::egress(&client, format, wanted).await,
        Command::Publish(wanted) => publish::publish(&client, format, wanted).await,
        Command::Unpublish(wanted) => publish::unpublish(&client, format, wanted).await,
        Command::Cp(wanted) => copy::copy(&client, format, wanted).await,
        Command::Ps(wanted) => vms::list(&client, format, &wanted).await,
        Command::Sessions(wanted) => sessions::sessions(&client, format, wanted).await,
        Command::Keepalive(wanted) => lifetime::keepalive(&client, format, wanted).await,
        Command::Idle(wanted) => lifetime::idle(&client, format, wanted).await,
        Command::Update(wanted) => lifetime::update(&client, format, wanted).await,
        Command::Rename(wanted) => lifetime::rename(&client, format, wanted).await,
        Command::Independent(wanted) => independence::independent(&client, format, wanted).await,
        Command::Inspect(one) => vms::inspect(&client, format, &one.vm).await,
        Command::Pause(some) => several::pause(&client, format, some).await,
        Command::Resume(some) => several::resume(&client, format, some).await,
        Command::Start(some) => several::start(&client, format, some).await,
        Command::Restart { vms } => several::restart(&client, format, vms).await,
        Command::Wait(wanted) => wait::wait(&client, format, wanted).await,
        Command::Stop(some) => several::stop(&client, format, some).await,
        Command::Rm(some) => several::remove(&client, &args.run_dir, format, some).await,
        Command::Image(image) => images::image(&client, format, image).await,
        Command::Doctor(doctor) => images::doctor(&client, format, doctor).await,
        Command::Events(wanted) => events::events(&client, format, wanted).await,
        Command::Top(options) => top::top(&client, format, options).await,
        Command::Node(node) => node::node(&client, format, node).await,
        Command::Sched(command) => sched::sched(&client, format, command).await,
        Command::Ticket(ticket) => ticket::ticket(&client, format, ticket).await,
        Command::Substrate(command) => substrate::substrate(&client, format, command).await,
        Command::Volume(command) => volume::volume(&client, format, command).await,
        Command::Link(command) => link::link(&client, format, command).await,
        Command::Share(wanted) => share::share(&client, format, wanted).await,
        Command::Token(token) => token::token(&client, format, token).await,
        Command::Friendly(wanted) => friendly::friendly(&client, format, &wanted).await,
        // Done before there was a daemon.
        Command::Completion { .. } | Command::Manual { .. } => Ok(ExitCode::SUCCESS),
        Command::Mcp => mcp::serve(reach).await,
        Command::Bench(bench) => bench::bench(&client, &args.run_dir, format, bench).await,
    }
}
