//! Live migration: a running VM goes on, on another host, as who it is.
//!
//! ```text
//! here                                             there
//! an instant, taken live    --- Prepare ------->   its pages come, a machine waits
//! what was written since    --- Round   ------->   comes; again until little is left (converge)
//! intent recorded, guest stops
//! what is left, its devices --- Land    ------->   comes, loads: recorded as running (A),
//!                                                  user code goes on
//! ended                     <-- Landed  --------
//! ```
//!
//! It is a fork across hosts of which one clone is made and the parent ended; what differs is
//! that nothing of the VM changes: its id, name, place in the family, address and epoch go along
//! (Supercloud, paper section 3.1, and library requirement L6).
//!
//! The VM goes on at exactly one host, whatever dies. Until (A) it is the host here that has it,
//! and goes on with it if anything fails; after (A) it is the host there. If the answer is lost, the VM
//! stands still here until that host has said which it was ([`resolve`]): it answers `Ended` only once
//! it can never land. What is recorded decides, so either daemon may die at any step.
//!
//! | fails | then |
//! |---|---|
//! | before `Land` is sent | the guest goes on here; what is there of it is given up |
//! | after that, and it has not landed | the same, once that host has said so, or is lost for good |
//! | after that, and it has | it is there |

mod arrive;
mod converge;
mod land;
mod leave;
mod resolve;
mod send;

pub(crate) use arrive::Incoming;
