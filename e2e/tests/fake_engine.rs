//! Whole hosts whose machines are made up: the daemon of users, the pager, networks,
//! disks and records are real. Needs to be root, and what `cargo xtask test` prepares.
//!
//! For whatever is decided above the engine: which VM there is, whose it is, and what is
//! left of it. What a guest does belongs into the tests of real ones (`needs_root`).

#[path = "fake_engine/accel.rs"]
mod accel;
#[path = "fake_engine/across.rs"]
mod across;
#[path = "fake_engine/addresses.rs"]
mod addresses;
#[path = "fake_engine/along.rs"]
mod along;
#[path = "fake_engine/data.rs"]
mod data;
#[path = "fake_engine/ensemble.rs"]
mod ensemble;
#[path = "fake_engine/faults.rs"]
mod faults;
#[path = "fake_engine/former.rs"]
mod former;
#[path = "fake_engine/frontend.rs"]
mod frontend;
#[path = "fake_engine/gateway.rs"]
mod gateway;
#[path = "fake_engine/group.rs"]
mod group;
#[path = "fake_engine/independence.rs"]
mod independence;
#[path = "fake_engine/life.rs"]
mod life;
#[path = "fake_engine/migrate.rs"]
mod migrate;
#[path = "fake_engine/objects.rs"]
mod objects;
#[path = "fake_engine/police.rs"]
mod police;
#[path = "fake_engine/ports.rs"]
mod ports;
#[path = "fake_engine/python.rs"]
mod python;
#[path = "fake_engine/s3.rs"]
mod s3;
#[path = "fake_engine/standby.rs"]
mod standby;
#[path = "fake_engine/steps.rs"]
mod steps;
#[path = "fake_engine/substrates.rs"]
mod substrates;
#[path = "fake_engine/ticket_steps.rs"]
mod ticket_steps;
#[path = "fake_engine/tickets.rs"]
mod tickets;
#[path = "fake_engine/unattended.rs"]
mod unattended;
#[path = "fake_engine/volume_homes.rs"]
mod volume_homes;
#[path = "fake_engine/volume_moves.rs"]
mod volume_moves;
#[path = "fake_engine/volumes.rs"]
mod volumes;
#[path = "fake_engine/websocket.rs"]
mod websocket;

/// Program of a machine that is made up.
const MACHINE: &str = "forkyard-fake-machine";
