//! Reasons for which a block went to another site, or was not sent: in the words of the law.

use crate::{Knobs, Purpose};
use std::fmt;

/// Law applied to one block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// Parameters.
    pub knobs: Knobs,
    /// Reads of the block, as they are counted.
    pub reads: u32,
    /// Writes of the block, as they are counted.
    pub writes: u32,
}

impl Judgement {
    /// Priority that the block has; `None` if it was not touched since counting began.
    pub fn priority(self) -> Option<f64> {
        self.knobs.fill(self.reads, self.writes)
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            knobs: Knobs { k, s },
            reads,
            writes,
        } = *self;
        let Some(priority) = self.priority() else {
            return f.write_str("neither read nor written since counting began: no priority");
        };
        // What was written before counting began counts as written once.
        let (counted, before) = match writes {
            0 => (1, " (once, before counting began)"),
            writes => (writes, ""),
        };
        let ratio = f64::from(reads) / f64::from(counted);
        write!(
            f,
            "fr = {reads}, fw = {counted}{before}: fr/fw = {ratio:.2}"
        )?;
        match ratio >= s {
            true => write!(
                f,
                " >= S = {s}, p = K*fr/fw + fr = {k}*{ratio:.2} + {reads} = {priority:.0}"
            ),
            false => write!(
                f,
                " < S = {s}, it is written too often for its reads: p = 0"
            ),
        }
    }
}

/// Part of a transfer that a block had.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TransferVerdict {
    /// Sent with all else that the other site lacked.
    All,
    /// Sent ahead: among those that are worth most.
    Hot {
        /// Blocks that might go.
        most: u64,
    },
    /// Left to be fetched: others are worth more.
    Cold {
        /// Blocks that might go.
        most: u64,
        /// Priority of the last one that went; none if none did.
        last: Option<f64>,
    },
    /// Sent because it was asked for.
    Asked(Purpose),
    /// Fetched from there.
    Fetched(Purpose),
}

impl TransferVerdict {
    /// True if the block went.
    pub fn is_sent(self) -> bool {
        match self {
            Self::All | Self::Hot { .. } | Self::Asked(_) | Self::Fetched(_) => true,
            Self::Cold { .. } => false,
        }
    }

    /// Tells the reason. `judgement` is what the law said then, if that is known.
    pub fn tell(self, judgement: Option<Judgement>) -> String {
        let worth = judgement.and_then(Judgement::priority);
        match self {
            Self::All => "all that the other host lacked was sent, whatever it is worth".into(),
            Self::Hot { most } => format!("it is one of the {most} blocks that are worth most"),
            Self::Cold { most, last } => match (worth, last) {
                (None, _) => {
                    "it was not used since counting began, and is fetched by and by".into()
                }
                (Some(worth), _) if worth <= 0.0 => {
                    "it is written too often for its reads, and is fetched by and by".into()
                }
                (Some(_), Some(last)) => format!(
                    "{most} blocks are worth more, the last of them {last:.0}: it is fetched by and by"
                ),
                (Some(_), None) => format!("{most} blocks are worth more: it is fetched by and by"),
            },
            Self::Asked(Purpose::Demand) => {
                "a read at the other host waited for it, or for a block beside it".into()
            }
            Self::Asked(Purpose::Fill) => {
                "the other host fetches all that it lacks, the most used first".into()
            }
            Self::Fetched(Purpose::Demand) => {
                "a read here waited for it, or for a block beside it".into()
            }
            Self::Fetched(Purpose::Fill) => {
                "all that is lacking here is fetched, the most used first".into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_law_is_told_with_its_numbers() {
        let judge = |reads, writes| Judgement {
            knobs: Knobs { k: 1000.0, s: 1.0 },
            reads,
            writes,
        };
        for (reads, writes, words) in [
            (0, 0, "neither read nor written"),
            (
                6,
                2,
                "fr/fw = 3.00 >= S = 1, p = K*fr/fw + fr = 1000*3.00 + 6 = 3006",
            ),
            (1, 2, "fr/fw = 0.50 < S = 1"),
            (
                2,
                0,
                "fw = 1 (once, before counting began): fr/fw = 2.00 >= S = 1, p = K*fr/fw + fr = 1000*2.00 + 2 = 2002",
            ),
        ] {
            let told = judge(reads, writes).to_string();
            assert!(told.contains(words), "{told}");
        }
        let cold = TransferVerdict::Cold {
            most: 4096,
            last: Some(1005.0),
        };
        for (judgement, words) in [
            (None, "not used"),
            (Some(judge(0, 0)), "not used"),
            (Some(judge(1, 2)), "too often"),
            (
                Some(judge(2, 2)),
                "4096 blocks are worth more, the last of them 1005",
            ),
        ] {
            let told = cold.tell(judgement);
            assert!(told.contains(words) && !cold.is_sent(), "{told}");
        }
    }
}
