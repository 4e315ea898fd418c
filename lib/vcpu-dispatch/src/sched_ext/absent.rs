//! Stand-in for sched_ext in a build without it: nothing, which cannot be made.

use crate::{DispatchError, mechanism::Turn};
use std::path::Path;

/// A scheduler that this build has not.
#[derive(Debug)]
pub struct SchedExt(Never);

#[derive(Debug)]
enum Never {}

impl SchedExt {
    /// Refuses.
    pub(crate) fn new(_object: &Path) -> Result<Self, DispatchError> {
        Err(DispatchError::NotBuilt)
    }

    pub(crate) fn take(&mut self, _tid: u32) -> Result<(), DispatchError> {
        match self.0 {}
    }

    pub(crate) fn forget(&mut self, _tid: u32) -> Result<(), DispatchError> {
        match self.0 {}
    }

    pub(crate) fn decide(&mut self, _turns: &[(u32, Turn)]) -> Result<(), DispatchError> {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_it_says_so() {
        let refused = SchedExt::new(Path::new("/nowhere"));
        assert!(matches!(refused, Err(DispatchError::NotBuilt)));
    }
}
