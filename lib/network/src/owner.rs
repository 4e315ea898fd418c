//! One owner of the families' networks in a network namespace.
//!
//! The owner holds an interface, a tap that is never up: there is one of a name in a namespace, to
//! make it takes `CAP_NET_ADMIN`, so no user of the host can keep a daemon from
//! starting, and it goes when its owner ends, however that ends.

use crate::NetworkError;
use forkyard_sys_host::tap;
use nix::errno::Errno;
use std::os::fd::OwnedFd;

/// Name of it.
const NAME: &str = "forkyard-owner";

/// Ownership of a namespace's networks, until it is dropped.
#[derive(Debug)]
pub(crate) struct Owner {
    _end: OwnedFd,
}

impl Owner {
    /// Takes the networks of the calling thread's namespace.
    pub(crate) fn take() -> Result<Self, NetworkError> {
        match tap::create(NAME) {
            Ok(end) => Ok(Self { _end: end }),
            Err(source) if source.raw_os_error() == Some(Errno::EBUSY as i32) => {
                Err(NetworkError::Taken { source })
            }
            Err(source) => Err(NetworkError::Tap {
                link: NAME.to_owned(),
                source,
            }),
        }
    }
}
