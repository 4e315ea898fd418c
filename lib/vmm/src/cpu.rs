//! The processor of the host, which guests are given by KVM.

use crate::VmmError;
use forkyard_types::GuestCpu;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

const CPUINFO: &str = "/proc/cpuinfo";

/// Reads what Linux says of it.
pub(crate) fn of_host() -> Result<GuestCpu, VmmError> {
    let text = fs::read_to_string(CPUINFO).map_err(VmmError::io("read", CPUINFO))?;
    Ok(told(&text))
}

/// Understands `/proc/cpuinfo`, of which the first processor counts.
fn told(text: &str) -> GuestCpu {
    let value = |wanted: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(name, _)| name.trim() == wanted);
        found.map(|(_, value)| value.trim()).unwrap_or_default()
    };
    let features: BTreeSet<_> = value("flags")
        .split_ascii_whitespace()
        .map(str::to_owned)
        .collect();
    GuestCpu {
        model: format!("host, of {}", value("vendor_id")),
        features,
    }
}

/// Names these features of Linux's as a QEMU does that says so for `-cpu help`. What it has no
/// name for it gives to no guest.
pub(crate) fn names<'a>(said: &str, features: impl Iterator<Item = &'a String>) -> Vec<String> {
    let plain = |name: &str| name.replace(['_', '-', '.'], "");
    let (_, known) = said.split_once("CPUID flags:").unwrap_or_default();
    let known: BTreeMap<_, _> = known
        .split_ascii_whitespace()
        .map(|name| (plain(name), name))
        .collect();
    let named = features.filter_map(|feature| known.get(&plain(feature)));
    named.map(|name| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse avx2\n\n\
        processor\t: 1\nvendor_id\t: GenuineIntel\nflags\t\t: fpu\n";

    #[test]
    fn features_have_names_of_qemus_or_are_no_guests() {
        let said = "Available CPUs:\n  avx2 a model\n\nRecognized CPUID flags:\n  avx2 sse4.1\n  fxsr-opt\n";
        let wanted = ["avx2", "fxsr_opt", "rep_good", "sse4_1"].map(str::to_owned);
        assert_eq!(names(said, wanted.iter()), ["avx2", "fxsr-opt", "sse4.1"]);
    }

    #[test]
    fn the_first_processor_counts() {
        let cpu = told(TEXT);
        assert_eq!(cpu.model, "host, of GenuineIntel");
        let features: Vec<_> = cpu.features.iter().map(String::as_str).collect();
        assert_eq!(features, ["avx2", "fpu", "sse"]);
    }
}
