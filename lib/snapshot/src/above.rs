//! Facts that the layer above knows, and is told.

use forkyard_types::{FamilyId, ImageId};
use futures::future::BoxFuture;
use std::fmt::Debug;

/// Layer above snapshots. It knows of uses of page images that are in no VM's record, and has state of its
/// own that goes with an image, or with a family.
pub trait Above: Debug + Send + Sync {
    /// Tells whether an image is needed that neither a record nor a VM here names: one on its way
    /// here, or of a substrate. Asked before an image is retired; if in doubt, it is needed.
    fn needs(&self, image: ImageId) -> bool;

    /// Notes that the pager serves an image no more under its name. Told once for each, or not at all if
    /// the daemon ends meanwhile.
    fn dropped(&self, image: ImageId);

    /// Notes that a record of this family was erased, which may have been its last. Told after the
    /// record has gone; the erasure waits for it.
    fn erased(&self, family: FamilyId) -> BoxFuture<'_, ()>;
}
