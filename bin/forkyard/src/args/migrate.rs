//! Words of a move to another host.

use clap::{Args as ClapArgs, ValueEnum};
use forkyard_types::VmName;

/// `migrate`
#[derive(Debug, ClapArgs)]
pub struct Migrate {
    /// The VM, or those that move together: names or ids.
    #[arg(required = true)]
    pub vms: Vec<String>,
    /// Move them as one: all of them go on there, or all here.
    #[arg(long, conflicts_with = "keep_copy")]
    pub together: bool,
    /// Node of the cluster, or peer, that it moves to.
    #[arg(long, value_name = "HOST")]
    pub to: String,
    /// Milliseconds that it may stand still; one and a half round trips and 100 if absent.
    #[arg(long, value_name = "MS")]
    pub max_gap: Option<u32>,
    /// Seconds after which no more is sent ahead.
    #[arg(long, value_name = "SECONDS")]
    pub deadline: Option<u32>,
    /// Action if the VM writes memory as fast as that is sent, or the deadline passes: leave it
    /// here, stop it for as long as the rest takes, or slow it.
    #[arg(
        long,
        visible_alias = "converge",
        value_enum,
        default_value = "give-up"
    )]
    pub if_stuck: IfStuck,
    /// Part of the volumes that are its disks that is sent before it moves: all that the other host
    /// lacks, or what was used of late; the rest is fetched from here when it is read, and by and by.
    #[arg(long, value_enum, default_value = "auto")]
    pub disk: Disk,
    /// Keep a checkpoint here of the instant at which it leaves, under this name: forks of it are
    /// other VMs.
    #[arg(long, value_name = "NAME")]
    pub keep_copy: Option<VmName>,
}

/// Part of a volume that is sent ahead.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Disk {
    /// All, if 64 MiB at most are lacking there; otherwise on demand.
    Auto,
    /// All.
    Ahead,
    /// Blocks that were used of late.
    OnDemand,
}

/// Action on a VM that cannot be moved within the gap that is wanted.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum IfStuck {
    /// Leave it where it is.
    GiveUp,
    /// Stop it all the same.
    Stop,
    /// Have its vCPUs run for a part of the time, an eighth at least; if that does not help, leave it.
    Slow,
}
