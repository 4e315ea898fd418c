//! The host kernel's interfaces that no safe crate offers: page maps, memory
//! of other processes, anonymous files, descriptor passing, FUSE, taps, ARP, TCP
//! connections, mount namespaces.
//!
//! The only place on the host side that may say `unsafe`. No policy; no raw
//! pointer crosses a public face.
#![allow(unsafe_code)]

pub mod arp;
pub mod contain;
pub mod fdpass;
pub mod filter;
pub mod fuse;
pub mod huge;
pub mod jail;
pub mod mapping;
pub mod memory;
pub mod pagemap;
pub mod peer;
pub mod private;
pub mod process;
pub mod sched;
pub mod signals;
pub mod tap;
pub mod tcp;
pub mod userfault;
