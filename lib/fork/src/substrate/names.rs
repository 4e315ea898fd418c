//! Names of VMs that an activation makes.

use super::{Substrate, activate::Founders};
use crate::{Host, HostError};
use forkyard_types::VmName;
use forkyard_vm::lock;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

/// Names that VMs of an activation will have; free again when dropped.
#[derive(Default)]
pub(super) struct Promised {
    own: Vec<String>,
    all: Arc<Mutex<BTreeSet<String>>>,
}

impl Drop for Promised {
    fn drop(&mut self) {
        let mut all = lock(&self.all);
        for name in &self.own {
            all.remove(name);
        }
    }
}

impl Host {
    /// Names that no VM has: the one wanted, or as many as are wanted that begin with it, which no other
    /// activation takes while they are promised, and none of those that are taken elsewhere.
    pub(super) fn names_for(
        &self,
        substrate: &Substrate,
        founders: &Founders,
        taken_elsewhere: &BTreeSet<String>,
    ) -> Result<(Vec<VmName>, Promised), HostError> {
        let wanted = &founders.name;
        if let (Some(name), 1) = (wanted, founders.count) {
            return Ok((vec![name.clone()], Promised::default()));
        }
        let stem = wanted.as_ref().unwrap_or(&substrate.name).as_str();
        let stem = stem.get(..stem.len().min(VmName::MAX - 6)).unwrap_or(stem);
        let mut promised = lock(&self.substrates.promised);
        // After those that are promised: one that is kept meanwhile is among the VMs then.
        let all = self.list();
        let taken: BTreeSet<String> = all.iter().map(|vm| vm.name.to_string()).collect();
        let names = (1u32..).map(|number| format!("{stem}-{number}"));
        let free = names.filter(|name| {
            !taken.contains(name) && !promised.contains(name) && !taken_elsewhere.contains(name)
        });
        let chosen: Vec<_> = free.take(founders.count.into()).collect();
        let no_name = |name: &String| HostError::Invalid(format!("{name} is no name: give one"));
        let parsed = chosen
            .iter()
            .map(|name| name.parse().map_err(|_| no_name(name)));
        let names = parsed.collect::<Result<Vec<_>, _>>()?;
        promised.extend(chosen.iter().cloned());
        let all = self.substrates.promised.clone();
        Ok((names, Promised { own: chosen, all }))
    }
}
