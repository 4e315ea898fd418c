//! The working set of an image, as daemons tell each other.
//!
//! Pages that a clone elsewhere waited for are known here, for they were asked for. Those that
//! came before it touched them are told of.

use super::run;
use crate::PagerRefusal;
use crate::service::Service;
use forkyard_transfer::Run;
use forkyard_types::ImageId;

/// Most pages that are believed of one host: 64 MiB.
const MOST: usize = 1 << 14;

impl Service {
    /// Returns what clones of an image are expected to want.
    pub fn expected(&self, image: ImageId) -> Result<Vec<Run>, PagerRefusal> {
        let (_, _, working_set) = self.catalog().offered(image)?;
        Ok(working_set.into_iter().map(run).collect())
    }

    /// Returns what clones here have touched of an image, in that order.
    pub fn touched(&self, image: ImageId) -> Result<Vec<Run>, PagerRefusal> {
        let catalog = self.catalog();
        let touched = catalog
            .touched_order(image)
            .ok_or(PagerRefusal::UnknownImage { image })?;
        Ok(touched.iter().copied().map(run).collect())
    }

    /// Notes what clones elsewhere have touched.
    pub fn touched_elsewhere(&self, image: ImageId, runs: &[Run]) -> Result<(), PagerRefusal> {
        let mut catalog = self.catalog();
        let found = catalog.find(image);
        let (node, size) = found.ok_or(PagerRefusal::UnknownImage { image })?;
        let inside = runs.iter().filter_map(|run| run.within(size));
        for page in inside.flat_map(Run::iter).take(MOST) {
            catalog.wanted_elsewhere(node, page);
        }
        Ok(())
    }
}
