//! Slices, and the VMs that need them.
//!
//! A slice is needed while a VM has it as its active one, while another slice
//! lies over it, or from its making until the first of these. Touches no file:
//! what is not needed any more is named, and the caller deletes it.

use forkyard_types::VmId;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Fault of a request about slices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// There is no such slice.
    #[error("{} is no known slice", path.display())]
    Unknown {
        /// File of the slice.
        path: PathBuf,
    },
    /// The slice is known, and lies over another.
    #[error("{} lies over something else", path.display())]
    Conflict {
        /// File of the slice.
        path: PathBuf,
    },
}

/// The slices of a host, and the VMs on them.
#[derive(Clone, Debug, Default)]
pub struct Chains {
    slices: BTreeMap<PathBuf, Slice>,
    tops: BTreeMap<VmId, PathBuf>,
}

#[derive(Clone, Debug)]
struct Slice {
    under: Option<PathBuf>,
    /// Slices over it, and VMs that have it as their active one.
    needs: usize,
}

impl Chains {
    /// Tells of a slice, and of the one it lies over, if that is one. No error
    /// if the same was told before.
    pub fn add_slice(&mut self, path: &Path, under: Option<&Path>) -> Result<(), ChainError> {
        if let Some(known) = self.slices.get(path) {
            return match known.under.as_deref() == under {
                true => Ok(()),
                false => Err(ChainError::Conflict { path: path.into() }),
            };
        }
        if let Some(under) = under {
            self.known(under)?.needs += 1;
        }
        let slice = Slice {
            under: under.map(Path::to_owned),
            needs: 0,
        };
        self.slices.insert(path.to_owned(), slice);
        Ok(())
    }

    /// Tells which slice a VM writes to from now on. Gives those that no VM
    /// needs any more, top first, and forgets them: none, as long as a VM
    /// moves on to a slice over its former one.
    pub fn attach(&mut self, vm: VmId, top: &Path) -> Result<Vec<PathBuf>, ChainError> {
        // In this order: moving to the same slice must not let go of it.
        self.known(top)?.needs += 1;
        Ok(match self.tops.insert(vm, top.to_owned()) {
            Some(former) => self.let_go(former),
            None => Vec::new(),
        })
    }

    /// Tells that a VM is gone. Gives the slices that no VM needs any more,
    /// top first, and forgets them.
    pub fn detach(&mut self, vm: VmId) -> Vec<PathBuf> {
        match self.tops.remove(&vm) {
            Some(top) => self.let_go(top),
            None => Vec::new(),
        }
    }

    /// Tells that a slice will not be used after all. Gives what no VM needs
    /// any more, top first, and forgets it: nothing, if the slice is in use
    /// or not known.
    pub fn abandon(&mut self, path: &Path) -> Vec<PathBuf> {
        self.collect(Some(path.to_owned()))
    }

    /// Tells that a VM's active slice lies right over this lower one from now
    /// on: what was between them was copied into either. Gives the slices that
    /// no VM needs any more, top first, and forgets them. Nothing happens if
    /// it is no lower one of that VM's.
    pub fn shorten(&mut self, vm: VmId, onto: &Path) -> Vec<PathBuf> {
        let lower = self.chain_of(vm).into_iter().skip(1);
        if !lower.into_iter().any(|slice| slice == onto) {
            return Vec::new();
        }
        // In this order: the two may be the same.
        if let Some(onto) = self.slices.get_mut(onto) {
            onto.needs += 1;
        }
        let top = self.tops.get(&vm).and_then(|top| self.slices.get_mut(top));
        match top.and_then(|top| top.under.replace(onto.to_owned())) {
            Some(former) => self.let_go(former),
            None => Vec::new(),
        }
    }

    /// Tells that a VM's active slice lies over none from now on: all that was below was copied into
    /// it. Gives the slices that are not needed any more, top first, and forgets them.
    pub fn part(&mut self, vm: VmId) -> Vec<PathBuf> {
        let top = self.tops.get(&vm).and_then(|top| self.slices.get_mut(top));
        match top.and_then(|top| top.under.take()) {
            Some(former) => self.let_go(former),
            None => Vec::new(),
        }
    }

    /// A VM's slices, its active one first.
    pub fn chain_of(&self, vm: VmId) -> Vec<&Path> {
        let top = self.tops.get(&vm).map(PathBuf::as_path);
        std::iter::successors(top, |path| self.slices.get(*path)?.under.as_deref()).collect()
    }

    /// Number of VMs that have a slice in their chains.
    pub fn users(&self, path: &Path) -> usize {
        let uses = |vm: &&VmId| self.chain_of(**vm).contains(&path);
        self.tops.keys().filter(uses).count()
    }

    fn known(&mut self, path: &Path) -> Result<&mut Slice, ChainError> {
        self.slices
            .get_mut(path)
            .ok_or_else(|| ChainError::Unknown { path: path.into() })
    }

    /// One need less for a slice.
    fn let_go(&mut self, path: PathBuf) -> Vec<PathBuf> {
        if let Some(slice) = self.slices.get_mut(&path) {
            slice.needs -= 1;
        }
        self.collect(Some(path))
    }

    /// Forgets a slice if nothing needs it, and then what it alone needed.
    fn collect(&mut self, mut path: Option<PathBuf>) -> Vec<PathBuf> {
        let mut collected = Vec::new();
        while let Some(candidate) = path {
            match self.slices.get(&candidate) {
                Some(slice) if slice.needs == 0 => {}
                Some(_) | None => break,
            }
            path = self.slices.remove(&candidate).and_then(|gone| gone.under);
            if let Some(under) = path.as_ref().and_then(|under| self.slices.get_mut(under)) {
                under.needs -= 1;
            }
            collected.push(candidate);
        }
        collected
    }
}

#[cfg(test)]
mod tests;
