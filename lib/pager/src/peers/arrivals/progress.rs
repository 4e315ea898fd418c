//! Progress of an image on its way.

use forkyard_types::{PageCount, PageNo};

/// Progress of an image on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Pages that are here.
    pub have: PageCount,
    /// Of the others, those that come first.
    pub first: PageCount,
    /// True if all others can still come.
    pub alive: bool,
    /// The first of those that cannot, page and number.
    pub lost: Vec<(PageNo, PageCount)>,
}
