//! Levels of the architecture (x86-64-v1 to v4, as the psABI has them) that guests run.

use std::fs;

/// Flags of /proc/cpuinfo that make a level, above those of the level below.
const LEVELS: [(u8, &[&str]); 2] = [
    (
        2,
        &[
            "cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3",
        ],
    ),
    (
        3,
        &[
            "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave",
        ],
    ),
];

/// Returns the highest level that a guest has here, whatever executes it: by KVM it
/// has the host's processor, and QEMU's translator (7.2) is one of v3.
pub(super) fn level() -> u8 {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    level_of(&text)
}

fn level_of(cpuinfo: &str) -> u8 {
    let flags = cpuinfo.lines().find_map(|line| {
        let (name, flags) = line.split_once(':')?;
        (name.trim() == "flags").then_some(flags)
    });
    let flags: Vec<_> = flags.unwrap_or_default().split_whitespace().collect();
    let has = |wanted: &[&str]| wanted.iter().all(|flag| flags.contains(flag));
    let reached = LEVELS.iter().take_while(|(_, wanted)| has(wanted)).last();
    reached.map_or(1, |(level, _)| *level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_takes_all_that_it_has_and_the_level_below() {
        let [(_, second), (_, third)] = LEVELS;
        let told =
            |flags: &[&str]| format!("model name\t: x\nflags\t\t: fpu {}\n", flags.join(" "));
        assert_eq!(level_of(""), 1);
        assert_eq!(level_of(&told(second)), 2);
        assert_eq!(level_of(&told(third)), 1);
        let mut both = [second, third].concat();
        assert_eq!(level_of(&told(&both)), 3);
        both.retain(|flag| *flag != "movbe");
        assert_eq!(level_of(&told(&both)), 2);
    }
}
