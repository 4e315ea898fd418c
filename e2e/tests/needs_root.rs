//! The whole system as its users meet it: real guests, emulated, through the
//! command line. Needs to be root, and what `cargo xtask test` prepares.

#[path = "needs_root/addresses.rs"]
mod addresses;
#[path = "needs_root/again.rs"]
mod again;
#[path = "needs_root/autoscale.rs"]
mod autoscale;
#[path = "needs_root/bad_links.rs"]
mod bad_links;
#[path = "needs_root/balloon.rs"]
mod balloon;
#[path = "needs_root/checkpoint.rs"]
mod checkpoint;
#[path = "needs_root/clock.rs"]
mod clock;
#[path = "needs_root/cluster.rs"]
mod cluster;
#[path = "needs_root/compose.rs"]
mod compose;
#[path = "needs_root/copy.rs"]
mod copy;
#[path = "needs_root/crash.rs"]
mod crash;
#[path = "needs_root/disjoint.rs"]
mod disjoint;
#[path = "needs_root/e2b.rs"]
mod e2b;
#[path = "needs_root/events.rs"]
mod events;
#[path = "needs_root/examples.rs"]
mod examples;
#[path = "needs_root/exec.rs"]
mod exec;
#[path = "needs_root/far.rs"]
mod far;
#[path = "needs_root/fork.rs"]
mod fork;
#[path = "needs_root/friendly.rs"]
mod friendly;
#[path = "needs_root/frontend.rs"]
mod frontend;
#[path = "needs_root/gateway.rs"]
mod gateway;
#[path = "needs_root/generations.rs"]
mod generations;
#[path = "needs_root/guest_api.rs"]
mod guest_api;
#[path = "needs_root/hang.rs"]
mod hang;
#[path = "needs_root/hostile.rs"]
mod hostile;
#[path = "needs_root/identity.rs"]
mod identity;
#[path = "needs_root/import.rs"]
mod import;
#[path = "needs_root/inherited.rs"]
mod inherited;
#[path = "needs_root/jobs.rs"]
mod jobs;
#[path = "needs_root/live.rs"]
mod live;
#[path = "needs_root/mcp.rs"]
mod mcp;
#[path = "needs_root/memory_runs_out.rs"]
mod memory_runs_out;
#[path = "needs_root/migrate.rs"]
mod migrate;
#[path = "needs_root/multicast.rs"]
mod multicast;
#[path = "needs_root/network.rs"]
mod network;
#[path = "needs_root/nodes.rs"]
mod nodes;
#[path = "needs_root/on_demand.rs"]
mod on_demand;
#[path = "needs_root/outside.rs"]
mod outside;
#[path = "needs_root/overlay.rs"]
mod overlay;
#[path = "needs_root/patience.rs"]
mod patience;
#[path = "needs_root/pause.rs"]
mod pause;
#[path = "needs_root/ports.rs"]
mod ports;
#[path = "needs_root/pytest.rs"]
mod pytest;
#[path = "needs_root/python.rs"]
mod python;
#[path = "needs_root/quotas.rs"]
mod quotas;
#[path = "needs_root/sched.rs"]
mod sched;
#[path = "needs_root/server.rs"]
mod server;
#[path = "needs_root/sessions.rs"]
mod sessions;
#[path = "needs_root/slurm.rs"]
mod slurm;
#[path = "needs_root/span.rs"]
mod span;
#[path = "needs_root/spread.rs"]
mod spread;
#[path = "needs_root/steps.rs"]
mod steps;
#[path = "needs_root/steps_across.rs"]
mod steps_across;
#[path = "needs_root/substrate.rs"]
mod substrate;
#[path = "needs_root/templates.rs"]
mod templates;
#[path = "needs_root/tickets.rs"]
mod tickets;
#[path = "needs_root/under_way.rs"]
mod under_way;
#[path = "needs_root/volume.rs"]
mod volume;
#[path = "needs_root/warm.rs"]
mod warm;
