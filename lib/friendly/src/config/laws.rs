//! Laws and their constants.

use super::{ConfigError, within};
use serde::{Deserialize, Serialize};

/// A law and its constants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields, rename_all = "kebab-case")]
pub enum LawConfig {
    /// Additive increase, multiplicative decrease.
    Aimd {
        /// Added in a period without congestion.
        add: f64,
        /// Divided by in one with.
        divide: f64,
    },
    /// Up by `add / xᵏ`, down by `cut · xˡ`.
    Binomial {
        /// Scale of the increase.
        add: f64,
        /// Scale of the decrease.
        cut: f64,
        /// Power of the increase.
        k: f64,
        /// Power of the decrease.
        l: f64,
    },
    /// Proportional and integral control. Not fair: see there.
    Pi {
        /// Gain on changes of the error, which is 1 − slowdown / threshold.
        proportional: f64,
        /// Gain on the error.
        integral: f64,
    },
    /// AIMD of congestion as a part, which grows as the threshold comes near.
    Careful {
        /// Added in a period without congestion, and nothing near it.
        add: f64,
        /// Divided by in one with.
        divide: f64,
        /// Part of the way from an idle host to the threshold on which congestion is
        /// not near.
        calm: f64,
    },
    /// Law that waits for the effect of a step down, and from there goes up
    /// slowly.
    Steady {
        /// Added in a period without congestion, and nothing near it, once there was
        /// no congestion for long.
        add: f64,
        /// Divided by under congestion.
        divide: f64,
        /// Part of the way from an idle host to the threshold on which congestion is
        /// not near.
        calm: f64,
        /// Periods of congestion until the next step down.
        wait: u8,
    },
    /// AIMD with a step that grows while there is no congestion.
    Quick {
        /// The first step after congestion.
        add: f64,
        /// Divided by in a period with congestion.
        divide: f64,
        /// Every further step is so many times the one before.
        growth: f64,
        /// The largest step.
        most: f64,
    },
}

/// Each law, with the constants that it usually has.
impl LawConfig {
    /// The paper's.
    pub const AIMD: Self = Self::Aimd {
        add: 1.0,
        divide: 1.5,
    };
    /// Steps of a square root.
    pub const BINOMIAL: Self = Self::Binomial {
        add: 1.0,
        cut: 1.0,
        k: 0.5,
        l: 0.5,
    };
    /// A part of a thread for what is missing to the threshold.
    pub const PI: Self = Self::Pi {
        proportional: 2.0,
        integral: 1.0,
    };
    /// Congestion as a part.
    pub const CAREFUL: Self = Self::Careful {
        add: 1.0,
        divide: 1.5,
        calm: 0.25,
    };
    /// Law of guests by default.
    pub const STEADY: Self = Self::Steady {
        add: 1.0,
        divide: 1.5,
        calm: 0.25,
        wait: 2,
    };
    /// Steps that double.
    pub const QUICK: Self = Self::Quick {
        add: 1.0,
        divide: 1.5,
        growth: 2.0,
        most: 16.0,
    };
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::AIMD,
        Self::BINOMIAL,
        Self::PI,
        Self::CAREFUL,
        Self::STEADY,
        Self::QUICK,
    ];
}

impl Default for LawConfig {
    fn default() -> Self {
        Self::AIMD
    }
}

impl LawConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        const STEP: (f64, f64, &str) = (1e-6, 1e6, "over 0, at most a million");
        let step = |field, value| within(field, value, STEP.0, STEP.1, STEP.2);
        let divisor = |value| within("law.divide", value, 1.01, 100.0, "1.01 to 100");
        match *self {
            Self::Aimd { add, divide } => {
                step("law.add", add)?;
                divisor(divide)
            }
            Self::Careful { add, divide, calm }
            | Self::Steady {
                add, divide, calm, ..
            } => {
                step("law.add", add)?;
                divisor(divide)?;
                within("law.calm", calm, 0.0, 0.99, "0 to 0.99")
            }
            Self::Binomial { add, cut, k, l } => {
                step("law.add", add)?;
                step("law.cut", cut)?;
                within("law.k", k, 0.0, 4.0, "0 to 4")?;
                within("law.l", l, 0.0, 1.0, "0 to 1")?;
                within(
                    "law.k + law.l",
                    k + l,
                    1e-3,
                    5.0,
                    "over 0, or it is not fair",
                )
            }
            Self::Pi {
                proportional,
                integral,
            } => {
                within("law.proportional", proportional, 0.0, 1e6, "0 to a million")?;
                step("law.integral", integral)
            }
            Self::Quick {
                add,
                divide,
                growth,
                most,
            } => {
                step("law.add", add)?;
                divisor(divide)?;
                within("law.growth", growth, 1.0, 10.0, "1 to 10")?;
                within("law.most", most, add, 1e6, "law.add to a million")
            }
        }
    }
}
