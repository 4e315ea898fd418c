//! The guest kernel's interfaces that no safe crate offers: the random number
//! generator's pool, network interfaces by ioctl, raw frames, joining a cgroup before exec,
//! going before other threads, the ends of processes, discarding free blocks, growing a file
//! system.
//!
//! The only place in the guest's programs that may say `unsafe`.
#![allow(unsafe_code)]

pub mod announce;
pub mod command;
pub mod first;
pub mod grow;
pub mod heap;
pub mod interface;
pub mod process;
pub mod random;
pub mod trim;
