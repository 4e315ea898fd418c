//! Health of one target: a VM's server, as it answers probes and clients' connections.
//!
//! ```text
//! unknown, well --no answer--> failing --`fall` in a row--> sick --one answer--> well
//! ```
//!
//! The caller leaves out what fails while the VM moves: that says nothing of its server.

/// Outcome of one probe, or of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The server answered.
    Answered,
    /// The server took no connection, or gave no answer in time.
    Failed,
}

/// Health of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Not probed yet.
    #[default]
    Unknown,
    /// The target answers.
    Well,
    /// The target has failed a few times in a row, and is still chosen.
    Failing {
        /// Times, at least one.
        times: u8,
    },
    /// The target is not chosen.
    Sick,
}

impl Health {
    /// Returns the health after a probe; `fall` failures in a row make a target sick.
    #[must_use]
    pub fn after(self, probe: ProbeOutcome, fall: u8) -> Self {
        let times: u8 = match (probe, self) {
            (ProbeOutcome::Answered, _) => return Self::Well,
            (ProbeOutcome::Failed, Self::Sick) => return Self::Sick,
            (ProbeOutcome::Failed, Self::Unknown | Self::Well) => 1,
            (ProbeOutcome::Failed, Self::Failing { times }) => times.saturating_add(1),
        };
        match times >= fall {
            true => Self::Sick,
            false => Self::Failing { times },
        }
    }

    /// True if clients may be sent there.
    pub fn may_be_chosen(self) -> bool {
        match self {
            Self::Unknown | Self::Well | Self::Failing { .. } => true,
            Self::Sick => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_alone_make_a_target_sick_and_one_answer_mends_it() {
        let mut health = Health::default();
        for (probe, chosen) in [
            (ProbeOutcome::Failed, true),
            (ProbeOutcome::Failed, true),
            (ProbeOutcome::Answered, true),
            (ProbeOutcome::Failed, true),
            (ProbeOutcome::Failed, true),
            (ProbeOutcome::Failed, false),
            (ProbeOutcome::Failed, false),
            (ProbeOutcome::Answered, true),
        ] {
            health = health.after(probe, 3);
            assert_eq!(health.may_be_chosen(), chosen, "{health:?}");
        }
    }

    #[test]
    fn a_limit_of_none_or_one_is_the_first_failure() {
        for fall in [0, 1] {
            assert_eq!(Health::Well.after(ProbeOutcome::Failed, fall), Health::Sick);
        }
    }
}
