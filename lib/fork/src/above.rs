//! Uses of page images, and ends of families, that snapshots do not know of.

use crate::Host;
use forkyard_snapshot::Above;
use forkyard_types::{FamilyId, ImageId};
use futures::{FutureExt as _, future::BoxFuture};

impl Above for Host {
    fn needs(&self, image: ImageId) -> bool {
        self.peers.incoming_images.is_held(image) || self.is_of_substrate(image)
    }

    fn dropped(&self, image: ImageId) {
        self.peers.incoming_images.forget_origin(image);
    }

    fn erased(&self, family: FamilyId) -> BoxFuture<'_, ()> {
        self.end_family_if_empty(family).boxed()
    }
}
