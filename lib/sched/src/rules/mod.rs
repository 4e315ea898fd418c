//! The orders of queues.

mod bvt;
mod cfs;
mod credit;
mod credit2;
mod edf;
mod rr;
mod virtual_time;

pub use bvt::Bvt;
pub use cfs::{Cfs, CfsKnobs};
pub use credit::Credit;
pub use credit2::Credit2;
pub use edf::{Edf, Flavour};
pub use rr::RoundRobin;

use crate::units::VcpuId;

/// The entry of a vCPU in a table that grows.
fn slot<T: Clone + Default>(table: &mut Vec<T>, vcpu: VcpuId) -> &mut T {
    if table.len() <= vcpu.at() {
        table.resize(vcpu.at() + 1, T::default());
    }
    &mut table[vcpu.at()]
}
