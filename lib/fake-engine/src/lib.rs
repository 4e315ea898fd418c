//! An engine without an emulator, for tests of what is above the engine.
//!
//! ```text
//! daemon ── FakeEngine ── fake.sock ──.
//!    `───── Guest ──────── agent.sock ─┤ forkyard-fake-machine: a process of its own with
//!    `───── Console ──── console.sock ─' real memory, a state that can be saved, an agent
//! ```
//!
//! Real: the process that outlives its daemon, its memory (anonymous, or a private view of
//! the pager's file), its sockets, the slices of its disk. Made up: the processor, the
//! kernel and the programs; see `forkyard-fake-machine` for those it knows. What the guest
//! knows lies in the memory, so that a clone knows what its parent knew at the fork, and
//! nothing if the fork went wrong.
//!
//! A test has a call to a machine fail by a file; see [`faults`].

mod control;
mod engine;
pub mod faults;
mod link;
mod machine;
mod processes;

pub use control::{CONTROL, EngineOrder, MachineEvent, OrderRefusal, Reply, Word};
pub use engine::FakeEngine;
pub use machine::{FakeMachine, FakeShell};
