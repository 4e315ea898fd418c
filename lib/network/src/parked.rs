//! Frames for a VM that stands still elsewhere and will go on here.
//!
//! ```text
//! park      a tap of our own on the family's bridge: frames for the VM wait in it
//! stretch   they go to the VM's own tap, and those that wait go there, too
//! unpark    the VM does not come: they are lost
//! ```
//!
//! The VM's own tap is on no bridge meanwhile: its guest's kernel, which runs before it is certain that
//! it goes on here, hears nothing and is not heard. The kernel keeps [`MOST`] frames. The tap
//! goes with this program.

use crate::{NetworkError, Networks, names::Link, refused, silence};
use forkyard_types::{FamilyId, VmId};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    net::if_::if_nametoindex,
    unistd,
};
use rtnetlink::{LinkBridgePort, LinkUnspec};
use std::os::fd::OwnedFd;

/// Most frames that wait for one VM: the length of a tap's queue.
const MOST: u64 = 1000;
/// Longest frame, with the header before it.
const LONGEST: usize = 65_550;

impl Networks {
    /// Makes a place where frames for a VM wait. Not cancel-safe.
    pub async fn park(&self, family: FamilyId, vm: VmId) -> Result<(), NetworkError> {
        let (bridge, link) = (Link::Bridge(family).name(), Link::Parked(vm).name());
        let tap = |source| NetworkError::Tap {
            link: link.clone(),
            source,
        };
        let frames = forkyard_sys_host::tap::create(&link).map_err(tap)?;
        fcntl(&frames, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|errno| tap(errno.into()))?;
        silence(&link);
        let index = |link: &str| {
            if_nametoindex(link).map_err(|_| NetworkError::NoLink {
                link: link.to_owned(),
            })
        };
        let (bridge, own) = (index(&bridge)?, index(&link)?);
        let links = self.netlink.link();
        let plug = LinkUnspec::new_with_index(own).controller(bridge).build();
        let plugged = links.set(plug).execute().await;
        plugged.map_err(|source| refused("plug in", &link, source))?;
        // Takes what is for its VM, and tells the bridge nothing.
        let port = LinkBridgePort::new(own)
            .learning(false)
            .flood(false)
            .bcast_flood(false)
            .mcast_flood(false)
            .build();
        let set = links.change(port).execute().await;
        set.map_err(|source| refused("set up", &link, source))?;
        let up = LinkUnspec::new_with_index(own).up().build();
        let opened = links.set(up).execute().await;
        opened.map_err(|source| refused("open", &link, source))?;
        self.parked().insert(vm, frames);
        Ok(())
    }

    /// Drops the frames that wait for a VM.
    pub fn unpark(&self, vm: VmId) {
        self.parked().remove(&vm);
    }

    /// Sends the frames that wait for a VM on, by a bridge that has its port for them.
    pub(crate) fn release(&self, vm: VmId) {
        let Some(frames) = self.parked().remove(&vm) else {
            return;
        };
        let released = drain(&frames);
        tracing::debug!(%vm, released, "frames that had waited for it");
        metrics::counter!("forkyard_overlay_frames_waited_total").increment(released);
    }
}

/// Writes each frame back into the tap it was read from: the bridge finds its port anew.
fn drain(frames: &OwnedFd) -> u64 {
    let mut frame = vec![0; LONGEST];
    let mut count = 0;
    // What comes meanwhile goes to the port: no more than were there.
    while count < MOST {
        let Ok(length) = unistd::read(frames, &mut frame) else {
            break;
        };
        if let Err(error) = unistd::write(frames, &frame[..length]) {
            tracing::debug!(%error, "a frame that had waited is lost");
        }
        count += 1;
    }
    count
}
