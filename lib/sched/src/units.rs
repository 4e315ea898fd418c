//! Ids and units.

use serde::{Deserialize, Serialize};
use std::{
    fmt,
    ops::{Add, AddAssign},
    str::FromStr,
};

/// Nanoseconds: a span, or an instant as the span since the engine's start.
///
/// Written as text with a unit, `20ms`, where people write it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

/// A text that is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no time: write a number and ns, us, ms or s, as 20ms")]
pub struct NoTime(String);

impl FromStr for Nanos {
    type Err = NoTime;
    fn from_str(text: &str) -> Result<Self, NoTime> {
        let no_time = || NoTime(text.to_owned());
        let digits = text.find(|c: char| c != '.' && !c.is_ascii_digit());
        let (number, unit) = text.split_at(digits.ok_or_else(no_time)?);
        let unit = match unit.trim() {
            "ns" => 1.0,
            "us" | "µs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => return Err(no_time()),
        };
        let number: f64 = number.parse().map_err(|_| no_time())?;
        Ok(Self(round(number * unit)))
    }
}

impl<'de> Deserialize<'de> for Nanos {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Nanos {
    /// No time.
    pub const ZERO: Self = Self(0);
    /// Longer than any engine runs.
    pub const FOREVER: Self = Self(u64::MAX);

    /// So many microseconds.
    pub const fn micros(n: u64) -> Self {
        Self(n * 1_000)
    }

    /// So many milliseconds.
    pub const fn millis(n: u64) -> Self {
        Self(n * 1_000_000)
    }

    /// So many seconds.
    pub const fn secs(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }

    /// Subtracts `other`; zero if `other` is longer.
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum; [`Nanos::FOREVER`] if it is longer than that.
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// `self · by / of`, rounded down, without overflow on the way. A zero
    /// `of` counts as one.
    pub fn scale(self, by: u64, of: u64) -> Self {
        let wide = u128::from(self.0) * u128::from(by) / u128::from(of.max(1));
        Self(u64::try_from(wide).unwrap_or(u64::MAX))
    }

    /// Nearest number of nanoseconds to a number of seconds; nothing for
    /// negative numbers and for those that are none.
    pub fn from_secs_f64(secs: f64) -> Self {
        Self(round(secs * 1e9))
    }

    /// In seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.as_f64() / 1e9
    }

    /// In nanoseconds, as precisely as a float can.
    #[expect(clippy::cast_precision_loss, reason = "exact for 104 days")]
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// For virtual times, which can be negative.
    pub fn signed(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

/// The nearest integer; 0 for what is negative or no number, and the most there
/// is for what is greater.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, which is what is promised"
)]
pub fn round(value: f64) -> u64 {
    value.round() as u64
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        self.plus(other)
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Self) {
        *self = self.plus(other);
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_f64() {
            ns if ns < 1e3 => write!(f, "{ns} ns"),
            ns if ns < 1e6 => write!(f, "{:.1} µs", ns / 1e3),
            ns if ns < 1e9 => write!(f, "{:.2} ms", ns / 1e6),
            ns => write!(f, "{:.3} s", ns / 1e9),
        }
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $letter:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns its place in a table.
            pub fn at(self) -> usize {
                self.0 as usize
            }

            /// The id of a place in a table. Panics beyond four thousand
            /// million.
            pub fn from_place(place: usize) -> Self {
                Self(u32::try_from(place).expect("a table this long does not fit in memory"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A physical CPU.
    CpuId,
    "p"
);
id!(
    /// A virtual CPU. Never used twice by one engine.
    VcpuId,
    "v"
);
id!(
    /// A domain: the vCPUs of one VM. Never used twice by one engine.
    DomainId,
    "d"
);

/// A set of physical CPUs, of the first 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSet(u128);

impl CpuSet {
    /// CPUs there can be.
    pub const MOST: usize = 128;
    /// No CPU.
    pub const NONE: Self = Self(0);
    /// Every CPU there can be.
    pub const ALL: Self = Self(u128::MAX);

    /// These CPUs; those beyond [`CpuSet::MOST`] are left out.
    pub fn of(cpus: impl IntoIterator<Item = CpuId>) -> Self {
        cpus.into_iter().fold(Self::NONE, Self::with)
    }

    /// With one more.
    #[must_use]
    pub fn with(self, cpu: CpuId) -> Self {
        Self(self.0 | bit(cpu))
    }

    /// Tells whether it is in the set.
    pub fn contains(self, cpu: CpuId) -> bool {
        self.0 & bit(cpu) != 0
    }
}

fn bit(cpu: CpuId) -> u128 {
    1u128.checked_shl(cpu.0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_neither_wrap_nor_go_below_zero() {
        assert_eq!(Nanos(1).minus(Nanos(2)), Nanos::ZERO);
        assert_eq!(Nanos::FOREVER + Nanos(1), Nanos::FOREVER);
        assert_eq!(
            Nanos::secs(1 << 33).scale(1 << 40, 1 << 41),
            Nanos::secs(1 << 32)
        );
        assert_eq!(Nanos::from_secs_f64(-1.0), Nanos::ZERO);
        assert_eq!(Nanos::from_secs_f64(f64::NAN), Nanos::ZERO);
    }

    #[test]
    fn times_are_read_with_their_units() {
        for (text, time) in [
            ("20ms", Nanos::millis(20)),
            ("0.5s", Nanos::millis(500)),
            ("45 us", Nanos::micros(45)),
            ("7ns", Nanos(7)),
        ] {
            assert_eq!(text.parse(), Ok(time));
        }
        for text in ["", "20", "ms", "-1ms", "1m", "1.2.3s"] {
            text.parse::<Nanos>().expect_err(text);
        }
    }

    #[test]
    fn a_cpu_beyond_the_last_is_in_no_set() {
        let set = CpuSet::of([CpuId(0), CpuId(127), CpuId(128)]);
        assert!(set.contains(CpuId(0)) && set.contains(CpuId(127)));
        assert!(!set.contains(CpuId(128)) && !set.contains(CpuId(1)));
        assert!(!CpuSet::ALL.contains(CpuId(128)));
    }
}
