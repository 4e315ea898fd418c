//! Guests that adapt their own demand, so that all share a host fairly and
//! none thrashes: "Friendly Virtual Machines" (Zhang and others, 2004).
//!
//! ```text
//! ticks, pressure, steal --> Monitor --Sense--> Controller --PeriodOrder--> caller
//!                             |                   = DemandLaw, twice          enforces
//!                             +-- Leads: which signal comes first
//! Pace: how many ticks to sleep through at once
//! Spacing: when to look at the members
//! members of a group, PeriodOrder --> Chooser --> threads to stop
//! processes, PeriodOrder -----------> Admission --> those that wait to begin
//!                                      Makers ------> and which of those that make them waits, too
//! ```
//!
//! Opens no file, reads no clock, stops no thread: the caller passes what it saw
//! and carries out what is decided.

mod admission;
mod chooser;
mod config;
mod controller;
mod fairness;
mod law;
mod leads;
mod makers;
mod monitor;
mod pace;
mod police;
mod pulse;
mod sharers;
mod signal;
mod spacing;
mod trial;
mod wants;

pub use admission::{Admission, AdmissionDecision};
pub use chooser::Chooser;
pub use config::{
    Average, Below, Config, ConfigError, Count, LawConfig, Least, MonitorConfig, New, RateConfig,
    RateMeans, ThreadsConfig, Unit,
};
pub use controller::{Controller, DemandState, PeriodOrder};
pub use fairness::{fairness_index, jain_index};
pub use law::{Congestion, DemandLaw, Sense, Senses};
pub use leads::{Leads, SignalRecord};
pub use makers::Makers;
pub use monitor::{Measured, Monitor, PeriodReport};
pub use pace::Pace;
pub use police::{CpuUse, Finding, Police, PoliceConfig, UseSample};
pub use pulse::{Pulse, PulseStep};
pub use sharers::{HostModel, PeriodRecord, Sharers};
pub use signal::{Counters, CpuTimes, Readings, Signal};
pub use spacing::{Spacing, turns};
pub use wants::{Seen, ThreadState, Wants};
