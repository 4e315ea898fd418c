//! Progress of forks, while they are made.

use crate::{ForkId, RequestId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// `GET /v1/vms/{vm}/forks`: a fork under way, or one that was lately.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkProgress {
    /// The fork.
    pub fork: ForkId,
    /// Id that its client gave it, if it did.
    pub watch: Option<RequestId>,
    /// True once it is over: nothing of what follows changes any more.
    pub over: bool,
    /// Each host that makes clones of it, the one that was asked first.
    pub hosts: Vec<HostProgress>,
}

/// Progress of one host with its part of a fork.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostProgress {
    /// Name of the host; none: this one.
    pub host: Option<String>,
    /// Clones it is to make.
    pub granted: u16,
    /// Phase of the host.
    pub phase: ForkPhase,
    /// Clones of these whose user code runs, each with an identity of its own.
    pub ready: u16,
    /// Clones that were not made.
    pub failed: u16,
    /// Reasons for the failures, each once.
    pub why: Vec<String>,
}

/// Phase of a host that makes clones.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForkPhase {
    /// The host is to make them, and has not got the machine yet.
    Granted,
    /// The host has the machine that they are clones of: its devices, and where
    /// its pages are.
    Received,
    /// They are loaded, and are given their identities.
    Starting,
    /// Each is ready or has failed.
    Ready,
    /// None was made.
    Failed,
}

impl HostProgress {
    /// So many clones that it is to make.
    pub fn granted(host: Option<String>, granted: u16) -> Self {
        Self {
            host,
            granted,
            phase: ForkPhase::Granted,
            ready: 0,
            failed: 0,
            why: Vec::new(),
        }
    }

    /// Tells whether all of them are ready or have failed.
    pub fn is_over(&self) -> bool {
        match self.phase {
            ForkPhase::Granted | ForkPhase::Received | ForkPhase::Starting => false,
            ForkPhase::Ready | ForkPhase::Failed => true,
        }
    }

    /// One clone is ready.
    pub fn one_ready(&mut self) {
        self.ready = self.ready.saturating_add(1);
        self.count();
    }

    /// So many were not made, for this reason.
    pub fn some_failed(&mut self, clones: u16, why: String) {
        self.failed = self.failed.saturating_add(clones);
        if !self.why.contains(&why) {
            self.why.push(why);
        }
        self.count();
    }

    /// Clones that are neither ready nor have failed.
    pub fn left(&self) -> u16 {
        self.granted
            .saturating_sub(self.ready)
            .saturating_sub(self.failed)
    }

    fn count(&mut self) {
        if self.left() == 0 {
            self.phase = match self.ready {
                0 => ForkPhase::Failed,
                _ => ForkPhase::Ready,
            };
        }
    }
}

impl fmt::Display for HostProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.as_deref().unwrap_or("here");
        write!(f, "{host}: {} granted, ", self.granted)?;
        match self.phase {
            ForkPhase::Granted => f.write_str("no machine there yet")?,
            ForkPhase::Received => f.write_str("machine received")?,
            ForkPhase::Starting | ForkPhase::Ready if self.ready > 0 => {
                write!(f, "{} of {} ready", self.ready, self.granted)?;
            }
            ForkPhase::Starting | ForkPhase::Ready => f.write_str("starting")?,
            ForkPhase::Failed => f.write_str("none made")?,
        }
        match self.failed {
            0 => Ok(()),
            failed => write!(f, ", {failed} failed: {}", self.why.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_over_when_each_clone_is_ready_or_has_failed() {
        let mut host = HostProgress::granted(Some("b".into()), 3);
        assert_eq!(host.to_string(), "b: 3 granted, no machine there yet");
        host.phase = ForkPhase::Starting;
        assert_eq!(host.to_string(), "b: 3 granted, starting");
        host.one_ready();
        assert!(!host.is_over());
        assert_eq!(host.to_string(), "b: 3 granted, 1 of 3 ready");
        host.some_failed(1, "no room".into());
        host.some_failed(1, "no room".into());
        assert_eq!(host.phase, ForkPhase::Ready);
        assert_eq!(
            host.to_string(),
            "b: 3 granted, 1 of 3 ready, 2 failed: no room"
        );
    }

    #[test]
    fn a_host_that_made_none_has_failed() {
        let mut host = HostProgress::granted(None, 2);
        host.some_failed(2, "no answer".into());
        assert_eq!((host.phase, host.left()), (ForkPhase::Failed, 0));
        assert_eq!(
            host.to_string(),
            "here: 2 granted, none made, 2 failed: no answer"
        );
    }
}
