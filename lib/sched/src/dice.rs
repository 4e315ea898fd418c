//! Chance that comes out the same each time: `SplitMix64`.

/// A source of chance, the same for the same seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// From a seed; each gives another sequence.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, any of 2⁶⁴.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        let wide = u128::from(self.roll()) * (n as u128);
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    /// A number from 0 to 1, 1 excluded.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are kept, and fit")]
    pub fn unit(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed with mean 1: the waits of a Poisson process.
    pub fn wait(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_always() {
        let mut dice = Dice::new(7);
        let golden = [dice.roll(), dice.roll()];
        assert_eq!(golden, [0x63cb_e1e4_5932_0dd7, 0x044c_3cd7_f43c_661c]);
    }

    #[test]
    fn means_are_what_they_should_be() {
        let mut dice = Dice::new(1);
        const N: u32 = 100_000;
        let units: f64 = (0..N).map(|_| dice.unit()).sum::<f64>() / f64::from(N);
        let waits: f64 = (0..N).map(|_| dice.wait()).sum::<f64>() / f64::from(N);
        assert!((units - 0.5).abs() < 0.01, "{units}");
        assert!((waits - 1.0).abs() < 0.02, "{waits}");
        assert!((0..N).all(|_| dice.below(3) < 3));
        assert_eq!(dice.below(0), 0);
    }
}
