//! Arrivals, generated: the same for the same seed on every machine.

use crate::Millis;

const DAY_S: u64 = 86_400;

/// Kinds of generated traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceKind {
    /// One every two minutes on the average, at any time.
    Steady,
    /// Twenty within two seconds, every ten minutes on the average.
    Bursts,
    /// By day one every 30 s on the average and five at once every ten minutes; by night none.
    Daily,
    /// Sixteen at each full hour, and no other.
    Hourly,
}

impl TraceKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Steady, Self::Bursts, Self::Daily, Self::Hourly];

    /// Name of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Bursts => "bursts",
            Self::Daily => "daily rhythm",
            Self::Hourly => "hourly",
        }
    }

    /// Generates so many days of arrivals, in their order.
    pub fn generate(self, days: u64, seed: u64) -> Vec<Millis> {
        let mut dice = Dice(seed);
        let end = days * DAY_S * 1000;
        let mut all = match self {
            Self::Steady => poisson(&mut dice, 120_000.0, end),
            Self::Bursts => bursts(&mut dice, 600_000.0, end, 20),
            Self::Daily => {
                let mut all = poisson(&mut dice, 30_000.0, end);
                all.extend(bursts(&mut dice, 600_000.0, end, 5));
                all.retain(|at| (8 * 3600..20 * 3600).contains(&(at.0 / 1000 % DAY_S)));
                all
            }
            Self::Hourly => {
                let hours = 1..days * 24;
                let at = |hour: u64| Millis::secs(hour * 3600);
                hours
                    .flat_map(|hour| std::iter::repeat_n(at(hour), 16))
                    .collect()
            }
        };
        all.sort_unstable();
        all
    }
}

/// Numbers that look random.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    /// The next number (splitmix64).
    fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A time of this mean, as between events that know nothing of each other.
    fn gap(&mut self, mean_ms: f64) -> u64 {
        let part = u32::try_from(self.throw() >> 32).unwrap_or(0);
        let uniform = (f64::from(part) + 1.0) / (f64::from(u32::MAX) + 1.0);
        let gap = (-uniform.ln() * mean_ms).min(1e12);
        // Between nothing and the bound.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let whole = gap as u64;
        whole
    }
}

fn poisson(dice: &mut Dice, mean_ms: f64, end: u64) -> Vec<Millis> {
    let mut at = 0;
    let times = std::iter::from_fn(|| {
        at += dice.gap(mean_ms);
        (at < end).then_some(Millis(at))
    });
    times.collect()
}

fn bursts(dice: &mut Dice, mean_ms: f64, end: u64, size: u64) -> Vec<Millis> {
    let begun = poisson(dice, mean_ms, end);
    let mut all = Vec::new();
    for at in begun {
        all.extend((0..size).map(|_| Millis(at.0 + dice.throw() % 2000)));
    }
    all
}
