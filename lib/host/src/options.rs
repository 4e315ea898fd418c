//! Choices of an operator.

use forkyard_pager::Push;
use forkyard_types::ByteCount;
use forkyard_vmm::AccelChoice;
use std::{num::NonZeroUsize, str::FromStr, time::Duration};

/// Bytes of memory that the slowest guest clears in a second.
const CLEARED_A_SECOND: u64 = 32 << 20;

/// Choices of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Hardware virtualization, or not.
    pub accel: AccelChoice,
    /// Limits of what guests may obtain themselves.
    pub guests: GuestBounds,
    /// True if guests report which of their pages are free: those are in no
    /// image.
    pub page_reporting: bool,
    /// True if the kernels of guests guard themselves against programs in them that
    /// exploit leaks of the CPU.
    pub guest_mitigations: bool,
    /// True if clones are given pages in advance that others of their image
    /// have wanted.
    pub prefetch: bool,
    /// True if pages that several other hosts want are sent to all of them at
    /// once, where IP multicast passes.
    pub multicast: bool,
    /// Data of an instant that other hosts are sent before they ask.
    pub push: Push,
    /// Choice whether all of it arrives before clones on other hosts are let
    /// go.
    pub settle_first: SettleFirst,
    /// True if an image's first boot is kept, for others to be woken from.
    pub keep_boots: bool,
    /// Bytes that substrates may take.
    pub substrate_pool: ByteCount,
    /// Time for which images of a VM that has moved are kept, for it may come back; not at all if 0.
    pub keep_moved: Duration,
    /// Most bytes of those.
    pub keep_moved_bytes: ByteCount,
    /// Time a QEMU, the pager or a guest's agent may leave something
    /// unanswered before that is a failure. Not nothing.
    pub patience: Duration,
    /// Events that are kept for readers that are slow or resume.
    pub events: NonZeroUsize,
}

impl Options {
    /// Returns the time a clone's agent may take to apply its identity and run
    /// its hooks: many clones may share few cores.
    pub fn to_identify(self) -> Duration {
        self.patience * 2
    }

    /// Time a guest may take until its agent answers; slow hosts are slow.
    pub fn to_boot(self) -> Duration {
        self.patience * 4
    }

    /// Time a guest may take to make itself small: it clears all its memory.
    pub fn to_prepare(self, memory: ByteCount) -> Duration {
        self.to_boot() + Duration::from_secs(memory.0 / CLEARED_A_SECOND)
    }

    /// Time a kernel may take to reach user space for KVM to be proven: many times what it
    /// takes where KVM works.
    pub fn to_prove(self) -> Duration {
        self.patience / 3
    }

    /// Returns the time a guest may take to quiesce: its programs wait
    /// meanwhile.
    pub fn to_hold_still(self) -> Duration {
        self.patience.min(Duration::from_secs(10))
    }
}

/// Bounds on what the guests of one family get by their own calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestBounds {
    /// Clones alive or reserved at once, all of the family's counted.
    pub clones: u16,
    /// Forks between a VM that may fork and the one its family began with.
    pub generations: u16,
    /// Forks in any minute; so many tickets may be asked for, and checkpoints
    /// taken, as well.
    pub forks_a_minute: u16,
    /// Checkpoints that guests have taken and not dropped; each takes disk as
    /// the VM's memory does.
    pub checkpoints: u16,
}

impl Default for GuestBounds {
    fn default() -> Self {
        Self {
            clones: 256,
            generations: 32,
            forks_a_minute: 120,
            checkpoints: 8,
        }
    }
}

/// Choice of an operator: whether all pages come before clones on other hosts are let go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SettleFirst {
    /// As the measured round trip asks for.
    #[default]
    Auto,
    /// Over every link.
    Always,
    /// Over none.
    Never,
}

/// Text that is no [`SettleFirst`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is none of auto, always and never")]
pub struct UnknownOrder {
    /// Text that was given.
    pub text: String,
}

impl FromStr for SettleFirst {
    type Err = UnknownOrder;
    fn from_str(text: &str) -> Result<Self, UnknownOrder> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(UnknownOrder { text: text.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_by_its_name() {
        assert_eq!("never".parse(), Ok(SettleFirst::Never));
        "sometimes".parse::<SettleFirst>().expect_err("no choice");
    }
}
