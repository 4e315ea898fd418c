//! Page images go once nothing needs them.
//!
//! | fails | then |
//! |---|---|
//! | the records cannot be read | the image stays, until its next user asks |
//! | the pager does not answer in time | it is asked again until it does: it may yet make the image |
//! | the pager refuses | the image stays; the doctor finds it |

use crate::{SnapshotError, Snapshots, dirty_tracking::kept_image};
use forkyard_pager::{PagerError, PagerRefusal};
use forkyard_types::ImageId;
use std::time::Duration;

/// After this a pager that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

impl Snapshots {
    /// Ends an image once no VM's memory is a view of it, and nothing else needs it. Not
    /// cancel-safe: dropped halfway, it may have ended it without telling the layer above.
    pub async fn retire(&self, image: ImageId) {
        let kept = self.parts.registry().all();
        if kept.iter().any(|vm| kept_image(vm) == Some(image)) {
            return;
        }
        // Asked of the records alone: many clones that end at once each ask.
        let used = self.parts.store.families_of_image(image);
        if used.is_ok_and(|families| families.is_empty())
            && !self.is_needed_above(image)
            && let Err(error) = self.drop_image(image).await
        {
            tracing::warn!(%image, error = &error as &dyn std::error::Error, "page image not retired");
            if error.is_timeout() {
                self.retire_later(image);
            }
        }
    }

    /// Takes an image's name away, in whatever use it is. One that has none any more is fine. Not
    /// cancel-safe, as [`retire`](Self::retire) is not.
    pub async fn drop_image(&self, image: ImageId) -> Result<(), SnapshotError> {
        let dropped = self.parts.pager_call(move |pager| Ok(pager.retire(image)));
        match dropped.await? {
            Ok(()) | Err(PagerError::Refused(PagerRefusal::UnknownImage { .. })) => {
                if let Some(above) = self.above() {
                    above.dropped(image);
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A pager that did not answer may do so later, and then do all that it was
    /// asked: make an image that is no longer awaited.
    pub(crate) fn retire_later(&self, image: ImageId) {
        let snapshots = self.handle();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(AGAIN).await;
                let Some(snapshots) = snapshots.upgrade() else {
                    return;
                };
                match snapshots.drop_image(image).await {
                    Err(error) if error.is_timeout() => {}
                    Ok(()) | Err(_) => return,
                }
            }
        });
    }
}
