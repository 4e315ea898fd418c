//! Images that come from another host for one VM that moves here, and their
//! source.

use super::{
    incoming_images::{Hold, Origin},
    keys::key_of,
    take::{origin, way_to},
};
use crate::{Host, HostError};
use forkyard_pager::{Fetching, Over, PeerKey};
use forkyard_types::{Handout, ImageId, PageCount};
use std::net::{IpAddr, SocketAddr};

/// See the module.
#[derive(Debug)]
pub(crate) struct Coming {
    hold: Hold,
    origin: Origin,
    server: SocketAddr,
    local: IpAddr,
    key: PeerKey,
    /// Images of others that these are told by the differences from.
    below: Vec<ImageId>,
}

impl Coming {
    /// Keeps an image of others for as long as these come: the last to need it drops it.
    pub fn lie_over(&mut self, image: ImageId) {
        self.hold.add(image);
        self.below.push(image);
    }

    /// Keeps another image, which came.
    pub fn add(&mut self, image: ImageId) {
        self.hold.add(image);
    }
}

impl Host {
    /// Notes from where images of these names come, and keeps them as long as that lives.
    pub(crate) fn coming_from(
        &self,
        handout: &Handout,
        images: impl IntoIterator<Item = ImageId>,
    ) -> Result<Coming, HostError> {
        Ok(Coming {
            hold: self.hold(images)?,
            origin: origin(handout),
            server: handout.pager,
            local: way_to(handout.pager)?,
            key: key_of(&handout.key)?,
            below: Vec::new(),
        })
    }

    /// True if an image came from the host that this handout is from, for whichever VM.
    pub(crate) fn is_from(&self, image: ImageId, handout: &Handout) -> bool {
        self.peers
            .incoming_images
            .came_from_host(image, origin(handout).server)
    }

    /// Has the file of an image exist that will come.
    pub(crate) async fn promise_one(
        &self,
        coming: &Coming,
        (image, pages): (ImageId, PageCount),
    ) -> Result<(), HostError> {
        self.note_origin(coming, image)?;
        let promised = self
            .parts
            .pager_call(move |pager| pager.promise(image, pages));
        Ok(promised
            .await
            .inspect_err(|_| self.peers.incoming_images.forget_origin(image))?)
    }

    /// Has an image come, all of it.
    pub(crate) async fn fetch_one(
        &self,
        coming: &Coming,
        (image, pages): (ImageId, PageCount),
        over: Option<Over>,
    ) -> Result<(), HostError> {
        let known = self.note_origin(coming, image)?;
        let fetching = Fetching {
            pages,
            key: coming.key,
            server: coming.server,
            local: coming.local,
            settle: true,
            first: Vec::new(),
            last: Vec::new(),
            over,
        };
        let fetched = self
            .parts
            .pager_call(move |pager| pager.fetch(image, fetching));
        fetched.await.inspect_err(|_| {
            if !known {
                self.peers.incoming_images.forget_origin(image);
            }
        })?;
        self.peers.incoming_images.expect(image, Some(pages));
        Ok(())
    }

    fn note_origin(&self, coming: &Coming, image: ImageId) -> Result<bool, HostError> {
        let foreign = |_| HostError::ForeignImage { image };
        self.peers
            .incoming_images
            .comes_from(image, coming.origin)
            .map_err(foreign)
    }

    /// Drops an image that is needed no more.
    pub(crate) async fn forget_image(&self, coming: &mut Coming, image: ImageId) {
        coming.hold.let_go(image);
        self.retire_arrived(coming.origin, image).await;
    }

    /// Keeps none of them any longer, and drops these unless a VM has them.
    pub(crate) async fn forget_images(&self, coming: Coming, images: &[ImageId]) {
        let Coming {
            hold,
            origin,
            below,
            ..
        } = coming;
        drop(hold);
        for image in images {
            self.retire_arrived(origin, *image).await;
        }
        // Unless the VM that it came for, or what is kept of one that left, still has it.
        for image in below {
            self.snapshots.retire(image).await;
        }
    }

    /// Never one that was here before, of others.
    async fn retire_arrived(&self, origin: Origin, image: ImageId) {
        if self.peers.incoming_images.came_from(image, origin) {
            self.snapshots.retire(image).await;
        }
    }
}
