//! Parameters of a domain, whatever the policy. A policy heeds what it has a
//! rule for, and the rest is nothing to it.

use crate::units::Nanos;
use forkyard_types::Parallel;
use serde::{Deserialize, Serialize};

/// Weight of a domain of which nothing was said.
pub const USUAL_WEIGHT: u32 = 256;

/// So much time in every period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuReservation {
    /// Time each vCPU gets in each period.
    pub slice: Nanos,
    /// The period.
    pub period: Nanos,
    /// Choice whether it also has a part in unreserved time.
    #[serde(default)]
    pub extra: Extra,
}

/// Choice whether a vCPU gets unreserved time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extra {
    /// The vCPU has its part in it.
    #[default]
    Yes,
    /// The reserved time and no more.
    No,
}

/// Terms on which a domain may jump the queue: borrowed virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Warp {
    /// Time by which its virtual time is set back while warped.
    pub back: Nanos,
    /// The longest it may run warped at a time.
    pub limit: Nanos,
    /// Time it stays unwarped after that.
    pub rest: Nanos,
}

/// Parameters of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Share relative to others'. Credit gives it to the domain; the policies
    /// of virtual time give it to each of its vCPUs.
    pub weight: u32,
    /// The most CPU it gets, in per cent of one CPU; no limit if absent.
    pub cap: Option<u32>,
    /// Relation of its vCPUs.
    pub parallel: Parallel,
    /// Reservation of each of its vCPUs.
    pub reservation: Option<CpuReservation>,
    /// Terms on which it may jump the queue.
    pub warp: Option<Warp>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            weight: USUAL_WEIGHT,
            cap: None,
            parallel: Parallel::No,
            reservation: None,
            warp: None,
        }
    }
}

/// Reason why parameters are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidParams {
    /// The weight is out of range.
    #[error("weight {0} is not between 1 and 65535: give one that is")]
    Weight(u32),
    /// The cap allows nothing.
    #[error("a cap of 0 % would never let the domain run: leave it out for no cap")]
    Cap,
    /// The reservation makes no sense.
    #[error("a slice of {slice} does not fit into a period of {period}: make it shorter, above 0")]
    Reservation {
        /// Slice asked for.
        slice: Nanos,
        /// Period asked for.
        period: Nanos,
    },
    /// More is reserved than there is.
    #[error(
        "{cpu} would have {per_mille} ‰ of its time reserved: shorten the slice or lengthen the period"
    )]
    Overcommitted {
        /// The CPU that is full.
        cpu: crate::units::CpuId,
        /// Part that would be reserved of it.
        per_mille: u64,
    },
}

impl Params {
    /// Refuses what no policy could keep.
    pub fn check(&self) -> Result<(), InvalidParams> {
        if !(1..=65_535).contains(&self.weight) {
            return Err(InvalidParams::Weight(self.weight));
        }
        if self.cap == Some(0) {
            return Err(InvalidParams::Cap);
        }
        if let Some(CpuReservation { slice, period, .. }) = self.reservation
            && (slice == Nanos::ZERO || slice > period)
        {
            return Err(InvalidParams::Reservation { slice, period });
        }
        Ok(())
    }
}

impl CpuReservation {
    /// The part of a CPU it takes, in millionths.
    pub fn millionths(&self) -> u64 {
        Nanos(1_000_000).scale(self.slice.0, self.period.0).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_policy_could_keep_is_refused() {
        assert_eq!(Params::default().check(), Ok(()));
        let weight = |weight| {
            Params {
                weight,
                ..Params::default()
            }
            .check()
        };
        assert_eq!(weight(0), Err(InvalidParams::Weight(0)));
        assert_eq!(weight(65_536), Err(InvalidParams::Weight(65_536)));
        let cap = Params {
            cap: Some(0),
            ..Params::default()
        };
        assert_eq!(cap.check(), Err(InvalidParams::Cap));
        for slice in [0, 11] {
            let reservation = CpuReservation {
                slice: Nanos(slice),
                period: Nanos(10),
                extra: Extra::No,
            };
            let params = Params {
                reservation: Some(reservation),
                ..Params::default()
            };
            assert!(matches!(
                params.check(),
                Err(InvalidParams::Reservation { .. })
            ));
        }
    }
}
