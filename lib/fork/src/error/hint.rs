//! Advice to the client about an error.

use super::HostError;
use forkyard_vm::{engine_hint, records_hint};
use std::io;

impl HostError {
    /// Tells whether the host's kernel refused something in this way.
    pub(crate) fn is_io(&self, kind: io::ErrorKind) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == kind)
    }

    pub(super) fn hint(&self) -> Option<&'static str> {
        let hints = [
            (matches!(self, Self::Broken(_)), forkyard_host::BROKEN),
            (
                matches!(self, Self::NotPublished { .. }),
                "`forkyard ps` lists the ports and addresses that lead to each VM",
            ),
            (
                matches!(self, Self::NoSuchShare { .. }),
                "`forkyard share ls VM` lists them",
            ),
            (
                matches!(self, Self::NoWayOut { .. }),
                "a VM that booted under an older version has an older agent: boot it anew; or use `forkyard port-forward`, which needs no way out",
            ),
            (
                matches!(self, Self::Elsewhere { .. }),
                "ask the daemon there; `forkyard rm` does it for you",
            ),
            (
                matches!(self, Self::NoPeers),
                "`forkyardd --peers FILE` names them",
            ),
            (
                matches!(self, Self::NoPages),
                "start the daemon with `forkyardd --pages ADDRESS:PORT`",
            ),
            (
                matches!(self, Self::NetworkTaken { .. }),
                "end that family, or boot the VM anew: it then has another network",
            ),
            (
                matches!(self, Self::Lost { .. }),
                "fork again from a VM that is alive; `forkyard rm` removes it",
            ),
            (
                matches!(self, Self::NoBoot { .. }),
                "fork its parent or a checkpoint again; `forkyard image export --vm` gives its disk",
            ),
            (
                matches!(self, Self::Running { .. }),
                "export a checkpoint of it: `forkyard checkpoint` makes one; or stop it first",
            ),
            (
                matches!(self, Self::ImageInUse { .. }),
                "remove the VM first",
            ),
            (
                matches!(self, Self::Quota(_)),
                "remove clones, or boot the family's first VM with a higher --max-clones",
            ),
            (
                matches!(self, Self::Bound(_)),
                "the host's operator sets this: `forkyardd --help`; forks from outside are not bound by it",
            ),
            (
                self.is_io(io::ErrorKind::PermissionDenied),
                "the daemon needs root",
            ),
            (
                matches!(self, Self::Pager(_)),
                "`forkyard doctor` says what is wrong; the pager's log is pager.log in the run folder",
            ),
        ];
        if forkyard_host::is_full(self) {
            return Some(forkyard_host::FULL);
        }
        if let Self::Network(error) = self {
            return error.remedy();
        }
        if let Self::Path(error) = self {
            return Some(error.hint());
        }
        if let Self::Parts(error) = self {
            return error.hint();
        }
        if let Self::Substrate(error) = self {
            return error.hint();
        }
        if let Self::Snapshot(error) = self {
            return error.hint();
        }
        if let Self::Volume(error) = self {
            return error.hint();
        }
        if let Self::Vm(error) = self {
            return error.hint();
        }
        if let Self::Vmm(error) = self {
            return engine_hint(error);
        }
        if let Self::Store(error) = self {
            return records_hint(error);
        }
        hints
            .into_iter()
            .find_map(|(applies, hint)| applies.then_some(hint))
    }
}
