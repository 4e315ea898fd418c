//! Sleeping for part of the time, in equal steps.

/// Action in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PulseStep {
    /// Run.
    Run,
    /// Stand still.
    Sleep,
}

/// Spreads a part of time over steps as evenly as can be: after any number of
/// them it is off by less than one.
#[derive(Clone, Debug, Default)]
pub struct Pulse {
    owed: f64,
}

impl Pulse {
    /// The next step, if `duty` of the time, from 0 to 1, is for running.
    pub fn next(&mut self, duty: f64) -> PulseStep {
        self.owed += 1.0 - duty.clamp(0.0, 1.0);
        // Sums of fractions fall a little short of whole numbers.
        if self.owed < 1.0 - 1e-9 {
            return PulseStep::Run;
        }
        self.owed -= 1.0;
        PulseStep::Sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_off_by_a_step(duty in 0.0..=1.0f64, steps in 1u32..500) {
            let mut pulse = Pulse::default();
            let mut ran = 0.0;
            for n in 1..=steps {
                if pulse.next(duty) == PulseStep::Run {
                    ran += 1.0;
                }
                let wanted = duty * f64::from(n);
                prop_assert!((ran - wanted).abs() < 1.0 + 1e-6, "{ran} of {wanted}");
            }
        }
    }
}
