//! Clones that one host made of one fork of this one's, or a VM that moved
//! there.

use forkyard_types::{
    FamilyId, ForkId, ImageId, Member, PageSecret, PeerActivateRequest, PeerForkRequest, VmId,
    VmView,
};
use serde::{Deserialize, Serialize};

/// Stages in which another host still needs pages, or does no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    /// The host has not answered yet.
    Sent,
    /// The host's clones may need pages.
    Made,
    /// They need none.
    Released,
}

/// Clones that one host made of one fork.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RemoteShare {
    pub family: FamilyId,
    pub images: Vec<ImageId>,
    pub key: PageSecret,
    pub stage: Stage,
    pub clones: Vec<VmView>,
    /// True if a guest's ticket promised them, or they are VMs of a substrate: unless the host answers,
    /// they are to be ended.
    #[serde(default)]
    pub promised: bool,
    /// True if they are to be ended when they are seen: the asker was told that there
    /// are none.
    #[serde(default, alias = "doomed")]
    pub pending_removal: bool,
    /// The VM that moved there, if they are no clones.
    #[serde(default)]
    pub moved: Option<VmId>,
    /// The VMs of a substrate that it was asked for, if they are no clones.
    #[serde(default)]
    pub founders: Vec<VmId>,
    /// Reason why that host cannot be asked, if it cannot.
    #[serde(skip)]
    pub silence: Option<String>,
}

impl RemoteShare {
    /// Records a request that is about to be sent.
    pub fn sent(request: &PeerForkRequest) -> Self {
        let handout = &request.handout;
        let images = [handout.memory].into_iter().chain(handout.disk);
        let images = images.map(|pages| pages.image).collect();
        Self {
            promised: request.ticket.is_some(),
            ..Self::of(handout.family.id, images, handout.key.clone())
        }
    }

    /// A VM that is about to move, and nothing of it sent yet.
    pub fn moving((vm, family): (VmId, FamilyId), key: PageSecret) -> Self {
        Self {
            moved: Some(vm),
            ..Self::of(family, Vec::new(), key)
        }
    }

    /// VMs of a substrate that are about to be asked for. Unless the answer names any, those there are
    /// ended.
    pub fn founding(request: &PeerActivateRequest) -> Self {
        let images = vec![request.memory.image, request.disk.image];
        Self {
            promised: true,
            founders: request.vms.iter().map(|vm| vm.id).collect(),
            // Each founds a family of its own, of which this host has nothing.
            ..Self::of(FamilyId::random(), images, request.key.clone())
        }
    }

    fn of(family: FamilyId, images: Vec<ImageId>, key: PageSecret) -> Self {
        Self {
            family,
            images,
            key,
            stage: Stage::Sent,
            clones: Vec::new(),
            promised: false,
            pending_removal: false,
            moved: None,
            founders: Vec::new(),
            silence: None,
        }
    }

    /// Notes what else that host is offered.
    pub fn offer(&mut self, images: &[ImageId]) {
        let new = images.iter().filter(|image| !self.images.contains(image));
        let new: Vec<_> = new.copied().collect();
        self.images.extend(new);
    }

    /// All that host is offered.
    pub fn images(&self) -> &[ImageId] {
        &self.images
    }

    /// Place in the family of the VM that moved there.
    pub fn moved(&self) -> Option<(FamilyId, Member)> {
        self.moved?;
        let vm = self.clones.first()?;
        Some((self.family, vm.member))
    }

    /// Takes in what its host has, by a list asked for after it had answered; whether its
    /// pages are needed no more.
    pub fn learn(&mut self, fork: ForkId, peer: &str, vms: &[VmView]) -> bool {
        self.silence = None;
        let ours = vms.iter().filter(|vm| match self.moved {
            Some(moved) => vm.id == moved,
            None if !self.founders.is_empty() => self.founders.contains(&vm.id),
            None => vm.fork == Some(fork),
        });
        let told = ours.map(|vm| VmView {
            host: Some(peer.to_owned()),
            ..vm.clone()
        });
        self.clones = told.collect();
        // Clones of clones there lie over the same images.
        let mut awaited = vms.iter().flat_map(|vm| &vm.awaits);
        let needed = awaited.any(|awaited| self.images.contains(&awaited.image));
        let released = self.stage == Stage::Made && !needed;
        if released {
            self.stage = Stage::Released;
        }
        released
    }

    pub fn is_over(&self) -> bool {
        self.stage == Stage::Released && self.clones.is_empty()
    }

    pub fn views(&self) -> impl Iterator<Item = VmView> + '_ {
        self.clones.iter().map(|vm| VmView {
            silence: self.silence.clone().or_else(|| vm.silence.clone()),
            ..vm.clone()
        })
    }
}
