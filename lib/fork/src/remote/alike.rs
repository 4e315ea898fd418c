//! Refusals of what another host has sent that this one cannot run as it was meant.

use crate::HostError;

/// Refuses a descriptor of another version than this host knows.
pub(crate) fn check_version(sent: u16, known: u16) -> Result<(), HostError> {
    match sent == known {
        true => Ok(()),
        false => Err(HostError::Conflict(format!(
            "its descriptor is of version {sent}, this host knows {known}: both must run one version"
        ))),
    }
}

/// Refuses a guest that reports its free pages to a host whose guests do not, or the reverse.
pub(crate) fn check_reporting(sent: bool, ours: bool) -> Result<(), HostError> {
    match sent == ours {
        true => Ok(()),
        false => Err(HostError::Conflict(format!(
            "its guest says which pages are free: {sent}; this host's guests: {ours}; \
             `--page-reporting` must be the same on both"
        ))),
    }
}
