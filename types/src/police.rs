//! Police of a host: guests that do not yield, named and capped.

use crate::VmId;
use serde::{Deserialize, Serialize};

/// Measure that VMs' shares are in proportion to.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoliceBy {
    /// All have equal shares.
    #[default]
    Vm,
    /// Their virtual CPUs.
    Vcpu,
}

/// `PUT /v1/friendly/police`: which VMs of the host are to be named, and capped.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoliceSettings {
    /// Seconds between samples.
    #[cfg_attr(feature = "schema", schema(minimum = 0.1, maximum = 60))]
    pub interval_s: f64,
    /// Part of what other VMs want that they have to wait for, or more, for one to be asked to
    /// want less.
    #[cfg_attr(feature = "schema", schema(exclusive_minimum = 0, maximum = 1))]
    pub waiting: f64,
    /// Measure that VMs' shares are in proportion to.
    pub by: PoliceBy,
    /// Cap the VMs that are named to their share of CPU time, until the police ends.
    pub enforce: bool,
    /// Seconds after which it ends by itself, unless it is put again before; none: it goes on.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 4_294_967_295_u32))]
    pub for_s: Option<u32>,
}

impl Default for PoliceSettings {
    fn default() -> Self {
        Self {
            interval_s: 2.0,
            waiting: 0.5,
            by: PoliceBy::Vm,
            enforce: false,
            for_s: None,
        }
    }
}

/// A VM that does not yield, and what shows it, in CPUs.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoliceFinding {
    /// Number of the finding, from 1 on.
    pub number: u64,
    /// Name of the VM.
    pub guest: String,
    /// Id of the VM.
    pub vm: VmId,
    /// Demand when the last trial began that it did not answer.
    pub before: f64,
    /// Least demand before the trial was over.
    pub fell_to: f64,
    /// Use meanwhile, on average.
    pub used: f64,
    /// Fair share meanwhile, on average.
    pub share: f64,
    /// Answers missed on end.
    pub missed: u32,
    /// Per cent of a CPU that it was capped to by this finding; none if it was not.
    pub capped_percent: Option<u32>,
    /// Reason for which it could not be capped.
    pub problem: Option<String>,
}

/// A VM that the police has capped.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoliceCap {
    /// Id of the VM.
    pub vm: VmId,
    /// Name of the VM.
    pub guest: String,
    /// Process of its QEMU, with which the cap ends.
    pub pid: u32,
    /// Per cent of a CPU that it is capped to.
    pub percent: u32,
}

/// State of the police of a host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoliceState {
    /// The settings.
    pub settings: PoliceSettings,
    /// VMs in the last sample.
    pub watched: u32,
    /// VMs that were named, the last hundred at most, in the order of their numbers.
    pub named: Vec<PoliceFinding>,
    /// VMs that are capped.
    pub capped: Vec<PoliceCap>,
}
