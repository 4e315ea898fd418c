//! As many vCPUs as were granted, of those the VM has.

use crate::init::{Outcome, doing};
use std::{fs, io, path::Path};

/// Folder in which the kernel has them.
pub const CPUS: &str = "/sys/devices/system/cpu";

/// Brings vCPUs below `granted` online and takes the others offline. The first
/// stays, as does one that the kernel keeps (it has no switch).
pub fn set_online(cpus: &Path, granted: u8) -> Outcome {
    for number in 1u16.. {
        let cpu = cpus.join(format!("cpu{number}"));
        if !cpu.exists() {
            return Ok(());
        }
        let switch = cpu.join("online");
        let want = if number < u16::from(granted) {
            "1"
        } else {
            "0"
        };
        let what = || format!("switch vCPU {number} to {want}");
        let is = match fs::read_to_string(&switch) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            is => is.map_err(doing(what()))?,
        };
        // Switching takes long, as kernels go.
        if is.trim() != want {
            fs::write(&switch, want).map_err(doing(what()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpus_below_the_grant_are_online_and_the_others_are_not() {
        let folder = tempfile::tempdir().expect("folder");
        let switch = |n: u8| folder.path().join(format!("cpu{n}/online"));
        for n in 0..4 {
            fs::create_dir(folder.path().join(format!("cpu{n}"))).expect("made");
            if n > 0 {
                fs::write(switch(n), "1\n").expect("written");
            }
        }
        for (granted, want) in [(2, ["1", "0", "0"]), (3, ["1", "1", "0"]), (9, ["1"; 3])] {
            set_online(folder.path(), granted).expect("switched");
            let is = [1, 2, 3].map(|n| fs::read_to_string(switch(n)).expect("read"));
            assert_eq!(is.each_ref().map(|is| is.trim()), want, "{granted} granted");
            assert!(!switch(0).exists(), "the first has no switch");
        }
    }
}
