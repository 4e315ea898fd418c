//! Limits and times of a scaler.

use std::time::Duration;

/// Limits and times that a scaler keeps to.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalerConfig {
    /// Fewest servers.
    pub least: u16,
    /// Most servers, counting those that come and those that go.
    pub most: u16,
    /// Load from which servers are doubled: 1 is saturation.
    pub grow_at: f64,
    /// Load that the servers left may have at most when others are retired.
    pub shrink_at: f64,
    /// Time whose mean load decides that servers are doubled.
    pub grow_after: Duration,
    /// Time for which load has to be low before servers are retired. Doubles, up to sixteen times of it,
    /// each time that servers are wanted again soon after some were retired.
    pub shrink_after: Duration,
    /// Time within which a clone has to pass its first check.
    pub join_within: Duration,
    /// Time for which a server may fail its checks before it is replaced.
    pub sick_after: Duration,
    /// Time after a failed fork or a failed clone until the next fork; doubles with each failure.
    pub retry: Duration,
    /// Longest time until the next fork, and time without a failure after which failures count no
    /// more.
    pub retry_most: Duration,
}

impl Default for ScalerConfig {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            least: 1,
            most: 8,
            grow_at: 0.9,
            shrink_at: 0.5,
            grow_after: seconds(2),
            shrink_after: seconds(20),
            join_within: seconds(30),
            sick_after: seconds(10),
            retry: seconds(1),
            retry_most: seconds(60),
        }
    }
}

impl ScalerConfig {
    /// Checks that the limits and times can be kept together.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        if self.least == 0 || self.least > self.most {
            let (least, most) = (self.least, self.most);
            return Err(InvalidConfig::Servers { least, most });
        }
        let (shrink, grow) = (self.shrink_at, self.grow_at);
        // Not a number is in no order.
        if !(shrink > 0.0 && shrink < grow && grow.is_finite()) {
            return Err(InvalidConfig::Loads { shrink, grow });
        }
        if self.retry.is_zero() || self.retry > self.retry_most {
            return Err(InvalidConfig::Retries);
        }
        Ok(())
    }
}

/// Limits or times that contradict each other.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum InvalidConfig {
    /// No number of servers is allowed.
    #[error(
        "between {least} and {most} servers: wanted at least one, and no fewer at most than at least"
    )]
    Servers {
        /// At least.
        least: u16,
        /// At most.
        most: u16,
    },
    /// Servers would be doubled and retired at one load.
    #[error(
        "servers are doubled at a load of {grow} and retired at {shrink}: wanted more than 0 for the second, and more than that for the first"
    )]
    Loads {
        /// At which they are retired.
        shrink: f64,
        /// At which they are doubled.
        grow: f64,
    },
    /// Failures would not slow forks down.
    #[error("the time until a failed fork is repeated is 0, or longer than its longest")]
    Retries,
}
