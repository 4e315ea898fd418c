//! Words about measurements.

use clap::{Args as ClapArgs, ValueEnum};
use std::path::PathBuf;

/// What `bench` measures.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Experiment {
    /// Forks against QEMU's own means, by the number of clones.
    Race,
    /// The parent's pause, by what it has in memory.
    Pauses,
    /// Forks in a row, and of clones of clones.
    Rows,
    /// Pages copied and read, with and without what spares them.
    Pages,
    /// As many clones as the machine holds.
    Crowd,
}

/// `bench`
#[derive(Debug, ClapArgs)]
pub struct Bench {
    /// Experiments to do.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "race,pauses,rows,pages,crowd"
    )]
    pub only: Vec<Experiment>,
    /// Numbers of clones to measure; beyond 16, forks alone.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    pub clones: Vec<u16>,
    /// Rounds; the contenders take turns in each.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Memory of the guest in MiB.
    #[arg(long, default_value_t = 512)]
    pub memory: u64,
    /// vCPUs of the guest.
    #[arg(long, default_value_t = 2)]
    pub vcpus: u8,
    /// Random bytes to put into its memory, in MiB: what it has to copy.
    #[arg(long, default_value_t = 40)]
    pub fill: u64,
    /// The same for parents whose pauses are measured.
    #[arg(long, value_delimiter = ',', default_value = "64,128,256,512,1024")]
    pub sizes: Vec<u64>,
    /// Clones of the crowd: of 1 vCPU and 128 MiB.
    #[arg(long, value_delimiter = ',', default_value = "64,200")]
    pub crowd: Vec<u16>,
    /// Folder for the results.
    #[arg(long, default_value = "bench/out")]
    pub out: PathBuf,
}
