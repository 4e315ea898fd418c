//! Words of commands that take few.

use crate::commands::{copy::End, exec};
use clap::{
    Args as ClapArgs,
    builder::{OsStringValueParser, TypedValueParser as _},
};
use forkyard_types::{ByteCount, VmName};

/// `checkpoint`
#[derive(Debug, ClapArgs)]
pub struct Checkpoint {
    /// Name or id of the VM.
    pub vm: String,
    /// Name; made up from the VM's if absent.
    #[arg(long)]
    pub name: Option<VmName>,
    /// Spare the VM: it runs on while its memory is copied.
    #[arg(long)]
    pub live: bool,
}

/// `ps`
#[derive(Debug, ClapArgs)]
pub struct Ps {
    /// Those alone that have this label; may be repeated.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = exec::variable)]
    pub labels: Vec<(String, String)>,
    /// Those alone in this state; may be repeated.
    #[arg(long = "state", value_name = "STATE",
        value_parser = ["starting", "running", "paused", "stopped", "checkpoint"])]
    pub states: Vec<String>,
}

/// One VM.
#[derive(Debug, ClapArgs)]
pub struct One {
    /// Name or id of the VM.
    pub vm: String,
}

/// Some VMs, or all.
#[derive(Debug, ClapArgs)]
pub struct Some {
    /// Names or ids of the VMs.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub vms: Vec<String>,
    /// Every VM there is.
    #[arg(long)]
    pub all: bool,
}

/// `doctor`
#[derive(Debug, ClapArgs)]
pub struct Doctor {
    /// Remove what is found.
    #[arg(long)]
    pub repair: bool,
}

/// `cp`
#[derive(Debug, ClapArgs)]
pub struct Copy {
    /// A path here, or VM:PATH. A folder is copied with all that is in it; of DIR/. only that. `-`: a tar
    /// stream on standard input, which is unpacked in a folder of the VM.
    #[arg(value_name = "FROM", value_parser = OsStringValueParser::new().try_map(End::of_word))]
    pub from: End,
    /// Likewise. If it is a folder that exists the copy goes into it. `-`: standard output gets a tar stream.
    #[arg(value_name = "TO", value_parser = OsStringValueParser::new().try_map(End::of_word))]
    pub to: End,
}

/// `logs`
#[derive(Debug, ClapArgs)]
pub struct Logs {
    /// VM: name or id.
    pub vm: String,
    /// Go on with what it says from now on, until the VM ends.
    #[arg(long, short)]
    pub follow: bool,
}

/// Reads a size of memory: MiB, or with a unit.
pub fn memory(word: &str) -> Result<ByteCount, String> {
    let (digits, shift) = match word.strip_suffix(['G', 'g']) {
        Some(digits) => (digits, 30),
        None => (word.strip_suffix(['M', 'm']).unwrap_or(word), 20),
    };
    let count = digits.parse::<u64>().ok();
    let bytes = count.and_then(|count| count.checked_mul(1 << shift));
    bytes
        .map(ByteCount)
        .ok_or_else(|| format!("{word:?} is no size: wanted MiB, or 512M, or 1G"))
}
