//! Place of guest memory in the address space of its QEMU.

use forkyard_types::ByteCount;

/// A run of addresses in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Address of its first byte there.
    pub hva: u64,
    /// Length of the region.
    pub len: ByteCount,
}

/// Reads the address from the monitor's answer to `gpa2hva 0`.
pub(crate) fn parse_hva(answer: &str) -> Option<u64> {
    let (_, address) = answer.trim_end().rsplit_once(" is 0x")?;
    u64::from_str_radix(address, 16).ok()
}

impl Region {
    /// Tells whether `maps`, the text of /proc/PID/maps, has private and
    /// writable memory at every address of the region. It may lie in several
    /// mappings: the kernel splits one wherever advice on parts of it differs.
    pub(crate) fn is_mapped(self, maps: &str) -> bool {
        let Some(end) = self.hva.checked_add(self.len.0) else {
            return false;
        };
        let mut covered = self.hva;
        for (from, to, mode) in maps.lines().filter_map(parse_mapping) {
            if from <= covered && covered < to && mode.starts_with("rw") && mode.ends_with('p') {
                covered = to;
            }
        }
        covered >= end && self.len.0 > 0
    }
}

/// Start, end and mode of one line of /proc/PID/maps.
fn parse_mapping(line: &str) -> Option<(u64, u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let mode = words.next()?;
    Some((
        u64::from_str_radix(from, 16).ok()?,
        u64::from_str_radix(to, 16).ok()?,
        mode,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0a00000-55d0c0f00000 r--p 00000000 fe:00 123 /usr/bin/qemu-system-x86_64
7fe823e00000-7fe833000000 rw-p 00000000 00:00 0
7fe833000000-7fe833e00000 rw-p 00000000 00:31 7 /run/pager/0123
7fe833e00000-7fe833e01000 ---p 00000000 00:00 0
7fe840000000-7fe840001000 rw-s 00000000 00:01 9 /memfd:x (deleted)
";

    fn region(hva: u64, len: u64) -> Region {
        Region {
            hva,
            len: ByteCount(len),
        }
    }

    #[test]
    fn the_address_is_the_last_word_of_the_answer() {
        let answer = "Host virtual address for 0x0 (ram0) is 0x7fe823e00000\r\n";
        assert_eq!(parse_hva(answer), Some(0x7fe8_23e0_0000));
        assert_eq!(parse_hva("No memory is mapped at address 0x0\r\n"), None);
    }

    #[test]
    fn memory_split_into_neighbours_is_mapped() {
        assert!(region(0x7fe8_23e0_0000, 256 << 20).is_mapped(MAPS));
        assert!(region(0x7fe8_23e0_1000, 4096).is_mapped(MAPS));
    }

    #[test]
    fn a_gap_a_guard_or_a_shared_page_is_not_guest_memory() {
        assert!(!region(0x7fe8_23e0_0000, (256 << 20) + 4096).is_mapped(MAPS));
        assert!(!region(0x7fe8_4000_0000, 4096).is_mapped(MAPS));
        assert!(!region(0x55d0_c0a0_0000, 4096).is_mapped(MAPS));
        assert!(!region(0x1000, 4096).is_mapped(MAPS));
    }

    #[test]
    fn nothing_and_more_than_the_address_space_are_no_memory() {
        assert!(!region(0x7fe8_23e0_0000, 0).is_mapped(MAPS));
        assert!(!region(u64::MAX, 2).is_mapped(MAPS));
    }
}
