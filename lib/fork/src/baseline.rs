//! CPUs that guests are given on several hosts: what all of them have.
//!
//! A guest goes on using what it found on its CPU when it booted. One that is to move gets no feature
//! that a host lacks which it may move to, and neither do its clones, wherever they are.

use crate::{Host, HostError, accel_of};
use forkyard_types::{GuestCpu, PeerCpu, PeerMigrated, PeerMigration};
use forkyard_vmm::Accel;
use futures::future::try_join_all;
use std::collections::BTreeSet;

/// Means all hosts that this one knows.
const PEERS: &str = "peers";

impl Host {
    /// Returns the names of other hosts that VMs can be made on and moved to; none where none are known.
    /// May read a file.
    pub fn other_hosts(&self) -> Result<Vec<String>, HostError> {
        let Some(neighbours) = self.neighbours() else {
            return Ok(Vec::new());
        };
        neighbours.names().map_err(|source| HostError::Peer {
            peer: PEERS.to_owned(),
            source,
        })
    }

    /// Returns the CPU that all of these hosts and this one can give; none if there are none. A host
    /// that does not answer is an error, for what it lacks is not known. Cancel-safe.
    pub(crate) async fn baseline(
        &self,
        accel: Accel,
        hosts: &[String],
    ) -> Result<Option<GuestCpu>, HostError> {
        if hosts.is_empty() {
            return Ok(None);
        }
        let mut names: BTreeSet<_> = hosts.iter().cloned().collect();
        if names.remove(PEERS) {
            self.neighbours().ok_or(HostError::NoPeers)?;
            names.extend(self.other_hosts()?);
        }
        let cpus = names.iter().map(|name| self.cpu_at(name, accel));
        let mut common = self.parts.engine.cpu(accel)?;
        for (name, cpu) in names.iter().zip(try_join_all(cpus).await?) {
            let narrowed = common.common(&cpu);
            common = narrowed.map_err(|unlike| {
                HostError::Invalid(format!("no CPU suits this host and {name}: {unlike}"))
            })?;
        }
        Ok(Some(common))
    }

    async fn cpu_at(&self, name: &str, accel: Accel) -> Result<GuestCpu, HostError> {
        let peer = self.peer(name)?;
        let asked = PeerMigration::Cpu(PeerCpu {
            accel: accel.to_string(),
        });
        let answer = self.patiently(&*peer, peer.migration(asked)).await;
        match answer {
            Ok(PeerMigrated::Cpu(cpu)) => Ok(cpu),
            Ok(_) => Err(crate::remote::untold(name, "which CPU its guests have")),
            Err(source) => Err(HostError::Peer {
                peer: name.to_owned(),
                source,
            }),
        }
    }

    /// Answers which CPU guests are given here.
    pub(crate) fn tell_cpu(&self, asked: &PeerCpu) -> Result<PeerMigrated, HostError> {
        Ok(PeerMigrated::Cpu(
            self.parts.engine.cpu(accel_of(&asked.accel))?,
        ))
    }

    /// Returns the CPU that a guest has.
    pub(crate) fn cpu_of(
        &self,
        accel: &str,
        most: Option<&GuestCpu>,
    ) -> Result<GuestCpu, HostError> {
        match most {
            Some(cpu) => Ok(cpu.clone()),
            None => Ok(self.parts.engine.cpu(accel_of(accel))?),
        }
    }
}
