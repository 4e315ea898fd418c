//! Word to the host that the guest's programs wait for memory.
//!
//! A guest whose memory is full of what cannot be given up runs, and its agent answers, but programs
//! get nowhere: each page that they need is read again from the disk. The kernel tells how much of
//! the time that takes (`/proc/pressure/memory`).

use forkyard_agent_link::ToHost;

/// Percent of the time from which on it is worth a word.
const WORTH: u8 = 20;

/// Share of the time that programs waited, as the host was told.
#[derive(Debug, Default)]
pub struct Pressure {
    told: u8,
}

impl Pressure {
    /// The word to say, from what the kernel tells: nothing while all is well.
    pub fn word(&mut self, kernel: &str) -> Option<ToHost> {
        let percent = full(kernel)
            .filter(|percent| *percent >= WORTH)
            .unwrap_or(0);
        // Said again as long as it holds: the host may have a new daemon.
        let said = percent > 0 || self.told > 0;
        self.told = percent;
        said.then_some(ToHost::MemoryWait { percent })
    }
}

/// Percent of the last ten seconds in which every program that had something to do waited.
fn full(kernel: &str) -> Option<u8> {
    let line = kernel.lines().find_map(|line| line.strip_prefix("full "))?;
    let share = line
        .split(' ')
        .find_map(|word| word.strip_prefix("avg10="))?;
    let (whole, _) = share.split_once('.').unwrap_or((share, ""));
    whole.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(full: &str) -> String {
        format!(
            "some avg10=99.00 avg60=1.00 avg300=0.10 total=7\nfull avg10={full} avg60=0.00 avg300=0.00 total=5\n"
        )
    }

    #[test]
    fn the_host_is_told_as_long_as_it_holds_and_once_when_it_is_over() {
        let mut pressure = Pressure::default();
        let mut word = |full: &str| pressure.word(&kernel(full));
        let told = |percent| Some(ToHost::MemoryWait { percent });
        assert_eq!(word("0.00"), None);
        assert_eq!(word("19.99"), None);
        assert_eq!(word("63.12"), told(63));
        assert_eq!(word("63.90"), told(63));
        assert_eq!(word("3.00"), told(0));
        assert_eq!(word("3.00"), None);
    }

    #[test]
    fn a_kernel_that_does_not_tell_is_taken_for_one_without_pressure() {
        for text in ["", "some avg10=50.00", "full total=7", "full avg10=x"] {
            assert_eq!(Pressure::default().word(text), None, "{text}");
        }
    }
}
