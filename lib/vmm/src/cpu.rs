//! The processor of the host, which guests are given by KVM.

use crate::VmmError;
use forkyard_types::GuestCpu;
use std::{collections::BTreeSet, fs};

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

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse avx2\n\n\
        processor\t: 1\nvendor_id\t: GenuineIntel\nflags\t\t: fpu\n";

    #[test]
    fn the_first_processor_counts() {
        let cpu = told(TEXT);
        assert_eq!(cpu.model, "host, of GenuineIntel");
        let features: Vec<_> = cpu.features.iter().map(String::as_str).collect();
        assert_eq!(features, ["avx2", "fpu", "sse"]);
    }
}
