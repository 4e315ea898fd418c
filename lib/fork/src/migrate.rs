//! Live migration: a running VM goes on, on another host, under its identity.
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
//! A disk of slices goes as memory does: as page images. Volumes go by their snapshots, before the
//! first copy, with each round, and while the guest stands still; they are at home where the VM is
//! ([`volume`]). Ports of the host that lead to the VM are taken there before anything is sent, and
//! lead to it there from (A) on; a VM that is paused stays so.
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
//! Several VMs move as one by the same steps and one `Land` for all of them ([`together`]).
//!
//! | fails | then |
//! |---|---|
//! | before `Land` is sent | the guest goes on here; what is there of it is given up |
//! | after that, and it has not landed | the same, once that host has said so, or is lost for good |
//! | after that, and it has | it is there |

mod arrive;
mod commands;
mod converge;
mod copy;
mod give_up;
mod hand_over;
mod land;
mod leave;
mod refuse;
mod resolve;
mod send;
mod slow;
mod stream;
mod together;
mod volume;
mod volume_come;
mod way_back;

pub(crate) use arrive::Incoming;
pub(crate) use stream::Sending;
pub(crate) use volume::{HOT, SMALL};
pub use volume_come::IncomingVolume;

use forkyard_types::ImageId;

/// Page images of a VM: of its memory, and of its disk unless that is a volume.
#[derive(Clone, Copy, Debug)]
struct Images {
    memory: ImageId,
    disk: Option<ImageId>,
}

impl Images {
    fn all(self) -> impl Iterator<Item = ImageId> {
        [self.memory].into_iter().chain(self.disk)
    }
}
