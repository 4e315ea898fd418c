//! VMs that have moved: what is kept of them where they were, and where their family's other
//! hosts find them.
//!
//! A place in a family stays its VM's wherever that runs. It is told of as a host of that one
//! place, which counts for more than the loan it is in.

use super::{
    hosts::tunnel_of, keys::secret_of, remote_clones::Migrated, remote_share::RemoteShare,
};
use crate::{Host, HostError};
use forkyard_pager::PeerKey;
use forkyard_records::{Teller, VmRecord};
use forkyard_types::{FamilyHost, FamilyId, ForkId, HandoutFamily, ImageId, Member, VmId};
use forkyard_vm::{Life, lock};
use std::net::Ipv4Addr;

impl Host {
    /// Records that a VM is about to move: whatever becomes of what is sent of it is then looked
    /// after.
    pub(crate) fn note_outgoing_migration(
        &self,
        key: (ForkId, &str),
        vm: &VmRecord,
        secret: PeerKey,
    ) -> Result<(), HostError> {
        let of = (vm.id, vm.family);
        self.note_remote_clones(key, RemoteShare::moving(of, secret_of(secret)))
    }

    /// Records what else was offered of it, and is to be withdrawn.
    pub(crate) fn note_offered(&self, key: (ForkId, &str), images: &[ImageId]) {
        if let Some(((), away)) = self
            .peers
            .remote_clones
            .change(key, |away| away.offer(images))
        {
            self.record_remote_clones(key, &away);
        }
    }

    /// A VM did not move: nothing that was sent of it is needed.
    pub(crate) async fn release_moved(&self, key: (ForkId, &str)) {
        self.retire_offered(key).await;
        if let Some(((), away)) = self.peers.remote_clones.change(key, |_| ()) {
            self.release(&away).await;
        }
        self.forget_remote_clones(key);
    }

    /// A VM has left: what that host was offered of it needs no name here any more.
    pub(crate) async fn retire_offered(&self, key: (ForkId, &str)) {
        let offered = self
            .peers
            .remote_clones
            .change(key, |away| away.images().to_vec());
        for image in offered.map(|(images, _)| images).unwrap_or_default() {
            self.snapshots.retire(image).await;
        }
    }

    /// A VM has come here that had left before: its former place is of no interest now.
    pub(crate) async fn forget_where_it_was(&self, vm: VmId) {
        for was in self.peers.remote_clones.migrations() {
            if was.vm == vm {
                self.release_moved((was.migration, &was.peer)).await;
            }
        }
    }

    /// Migrations that an earlier daemon did not come to the end of, nor to the point from which
    /// on the other host may have its VM.
    pub(crate) fn broken_off(&self) -> Vec<Migrated> {
        let mut migrations = self.peers.remote_clones.migrations();
        migrations.retain(|it| {
            let vm = self.parts.registry().get(it.vm);
            let rests = vm.is_none_or(|vm| lock(&vm.moving).is_none() && vm.try_turn().is_some());
            !it.is_there && rests
        });
        migrations
    }

    /// Says in a handout what there is to know of the family.
    pub(crate) fn acquaint(&self, family: &mut HandoutFamily, peer: &str) -> Result<(), HostError> {
        if let Some(news) = self.news(family.id, peer)? {
            family.tunnel = Some(news.tunnel);
            family.hosts = news.hosts;
            family.key = news.key;
        }
        Ok(())
    }

    /// End of tunnels of a host that this one has sent VMs of a family to.
    pub(crate) fn tunnel_at(
        &self,
        family: FamilyId,
        peer: &str,
    ) -> Result<Option<Ipv4Addr>, HostError> {
        Ok(tunnel_of(&self.parts.store.family_hosts(family)?, peer))
    }

    /// Places of a family that are not where they were lent to: VMs that moved here, and from
    /// here.
    pub(super) fn astray(
        &self,
        family: FamilyId,
        tunnel: Ipv4Addr,
        told: &[(Teller, FamilyHost)],
    ) -> Vec<FamilyHost> {
        let vms = self.parts.registry().all();
        let here: Vec<Member> = vms
            .iter()
            .filter(|vm| !matches!(vm.life(), Life::Ending))
            .map(|vm| vm.record())
            .filter(|record| record.family == family)
            .map(|record| record.member)
            .collect();
        let one = |tunnel, first| FamilyHost {
            tunnel,
            first,
            places: 1,
        };
        let moved = self.peers.remote_clones.moved(family).into_iter();
        let away = moved.filter(|(_, member)| !here.contains(member));
        let away = away
            .filter_map(|(peer, member)| tunnel_of(told, &peer).map(|tunnel| one(tunnel, member)));
        let away: Vec<_> = away.collect();
        let here = here.into_iter().map(|member| one(tunnel, member));
        here.chain(away).collect()
    }
}
