//! Images that are fetched from another host for VMs here.

use super::incoming_images::{Origin, Whose};
use crate::{Host, HostError};
use forkyard_pager::{Fetching, PagerError, PagerRefusal};
use forkyard_types::ImageId;

impl Host {
    /// Has the pager fetch an image. One that is here is taken if it came from there for the same
    /// VMs, or if `is_own` says that it did.
    pub(super) async fn fetch_image(
        &self,
        image: ImageId,
        fetching: Fetching,
        origin: Origin,
        is_own: impl Fn() -> Result<bool, HostError>,
    ) -> Result<(), HostError> {
        let (pages, settle) = (fetching.pages, fetching.settle);
        let known = match self.peers.incoming_images.comes_from(image, origin) {
            Ok(known) => known,
            Err(_) if origin.whose == Whose::Substrate && is_own()? => true,
            Err(_) => return Err(HostError::ForeignImage { image }),
        };
        let fetched = self
            .parts
            .pager_call(move |pager| Ok(pager.fetch(image, fetching)));
        let fetched = fetched
            .await
            .map_err(HostError::from)
            .and_then(|fetched| match fetched {
                Err(PagerError::Refused(PagerRefusal::AlreadyExists { .. }))
                    if !known && !is_own()? =>
                {
                    Err(HostError::ForeignImage { image })
                }
                other => Ok(other),
            });
        let failed = !matches!(
            fetched,
            Ok(Ok(()) | Err(PagerError::Refused(PagerRefusal::AlreadyExists { .. })))
        );
        if failed && !known {
            self.peers.incoming_images.forget_origin(image);
        }
        match fetched? {
            Ok(()) => {}
            // More VMs of one image: it is here, or on its way.
            Err(PagerError::Refused(PagerRefusal::AlreadyExists { .. })) => {
                if settle {
                    self.parts
                        .pager_call(move |pager| pager.settle(image))
                        .await?;
                }
            }
            Err(error) => return Err(error.into()),
        }
        self.peers.incoming_images.expect(image, Some(pages));
        Ok(())
    }
}
