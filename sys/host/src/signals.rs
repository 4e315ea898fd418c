//! Dispositions of signals that this process was started with.

use std::fs;

/// Tells whether this process ignores a signal, as one that nohup(1) has started ignores SIGHUP. To be asked
/// before the signal is handled.
pub fn is_ignored(number: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = u32::try_from(number - 1).ok();
    let bit = bit.and_then(|bit| 1_u64.checked_shl(bit));
    mask.zip(bit).is_some_and(|(mask, bit)| mask & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_ignored_are_told_from_the_others() {
        // Rust's runtime ignores this one, and none of the others.
        assert!(is_ignored(libc::SIGPIPE));
        for number in [libc::SIGHUP, libc::SIGTERM, 0, -1, 65] {
            assert!(!is_ignored(number) || number == libc::SIGHUP, "{number}");
        }
    }
}
