//! Laws of increase and decrease: section 2.3 of the paper.

use crate::config::LawConfig;

/// Congestion, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// There is: ask for less.
    Yes,
    /// There is none: ask for more.
    No,
}

/// Conclusion of the monitor from one period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sense {
    /// Congestion, if there is any.
    pub congestion: Congestion,
    /// The strongest signal, in multiples of its threshold: congestion is from
    /// 1 on.
    pub slowdown: f64,
    /// Distance left from an idle host to the threshold, of the signal that is
    /// nearest: 1 on an idle host, 0 at the threshold, less beyond.
    pub room: f64,
    /// True if the guest's CPUs had something to run all the time, or nearly so: then
    /// more threads get no more done.
    pub busy: bool,
}

/// Conclusions of a guest, by how much it may run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Senses {
    /// If it is more than one thread.
    pub sense: Sense,
    /// If it is no more: then a host that shares its CPUs fairly gives it no more than any
    /// other guest, and that others use them is no reason to ask for less.
    pub at_one: Sense,
}

impl From<Sense> for Senses {
    fn from(sense: Sense) -> Self {
        let at_one = sense;
        Self { sense, at_one }
    }
}

/// Law by which demand follows from the monitor's conclusions. Unbounded: the
/// caller keeps what comes of it in range.
pub trait DemandLaw: std::fmt::Debug + Send {
    /// Returns the name, as configurations have it.
    fn name(&self) -> &'static str;

    /// Returns the demand for the next period, after `demand` in this.
    fn next(&mut self, demand: f64, sense: Sense) -> f64;
}

impl LawConfig {
    /// The law that was described.
    pub fn build(&self) -> Box<dyn DemandLaw> {
        match *self {
            Self::Aimd { add, divide } => Box::new(Aimd { add, divide }),
            Self::Binomial { add, cut, k, l } => Box::new(Binomial { add, cut, k, l }),
            Self::Pi {
                proportional,
                integral,
            } => Box::new(Pi {
                proportional,
                integral,
                last: None,
            }),
            Self::Careful { add, divide, calm } => Box::new(Careful { add, divide, calm }),
            Self::Steady {
                add,
                divide,
                calm,
                wait,
            } => Box::new(Steady {
                careful: Careful { add, divide, calm },
                wait,
                waits: 0,
                calm: UNMET,
            }),
            Self::Quick {
                add,
                divide,
                growth,
                most,
            } => Box::new(Quick {
                add,
                divide,
                growth,
                most,
                step: add,
            }),
        }
    }
}

/// Additive increase, multiplicative decrease: the paper's.
#[derive(Clone, Debug)]
struct Aimd {
    add: f64,
    divide: f64,
}

impl DemandLaw for Aimd {
    fn name(&self) -> &'static str {
        "aimd"
    }

    fn next(&mut self, demand: f64, sense: Sense) -> f64 {
        match sense.congestion {
            Congestion::Yes => demand / self.divide,
            Congestion::No => demand + self.add,
        }
    }
}

/// AIMD of congestion as a part, which grows as the threshold comes near: equation 7
/// of the paper. A thread that begins has to have read back what was paged out: were all
/// guests to begin at full pace up to the threshold, that alone would be the
/// congestion. And guests that sense the same part ask for less in proportion to what
/// they have, each at all times: shares are made equal also where chance decides which
/// guest comes over the threshold first.
#[derive(Clone, Debug)]
struct Careful {
    add: f64,
    divide: f64,
    calm: f64,
}

impl Careful {
    /// Congestion as a part: none up to `calm` of the way to the threshold, whole
    /// from there on.
    fn part(&self, sense: Sense) -> f64 {
        match sense.congestion {
            Congestion::Yes => 1.0,
            Congestion::No => ((1.0 - sense.room - self.calm) / (1.0 - self.calm)).clamp(0.0, 1.0),
        }
    }

    /// With this much of the increase.
    fn paced(&self, demand: f64, sense: Sense, pace: f64) -> f64 {
        let part = self.part(sense);
        let more = demand + pace * self.add;
        more * (1.0 - part) + demand / self.divide * part
    }
}

impl DemandLaw for Careful {
    fn name(&self) -> &'static str {
        "careful"
    }

    fn next(&mut self, demand: f64, sense: Sense) -> f64 {
        self.paced(demand, sense, 1.0)
    }
}

/// The part of an increase that `steady` begins with after a step down.
const SLOW: f64 = 0.25;
/// The part of that where CPUs are busy: in five minutes, two threads more. With four times
/// as much guests that had not stepped down came to three times the threads of others, and
/// paid for them. Shares become equal all the same, if later: a guest that has more yields more
/// wherever congestion is near.
const BUSY: f64 = 0.125;
/// Periods of calm after which an increase is twice as much.
const DOUBLES: i32 = 8;
/// As many with which an increase is whole, and an eighth of that where CPUs are busy:
/// before the first step down nothing is known of a ceiling.
const UNMET: i32 = 2 * DOUBLES;

/// `careful` that waits to see what a step down has done, and goes on slowly from
/// there. Where memory is short it takes several periods until what was paged out is
/// back and congestion ends: by then each more step down is one too many, and to come
/// back from there takes the disk again. Periods without congestion make it faster
/// again.
///
/// Most slowly where all CPUs have enough to run, and no faster for any calm there: one
/// more thread is then only one more that has to be read back, and is not worth
/// congestion. It comes to the ceiling all the same, but rarely, so that a host of such
/// guests is where most gets done most of the time.
#[derive(Clone, Debug)]
struct Steady {
    careful: Careful,
    /// Periods that a step down is given.
    wait: u8,
    /// Of these, the ones to come.
    waits: u8,
    /// Periods of calm since the last step down, but for those with busy CPUs.
    calm: i32,
}

impl Steady {
    /// The part of an increase that is made now.
    fn pace(&self, busy: bool) -> f64 {
        let (slow, calm) = match busy {
            // That it was idle for an hour tells nothing of what more threads would do.
            true => (SLOW * BUSY, self.calm.min(UNMET)),
            false => (SLOW, self.calm),
        };
        (slow * 2f64.powi(calm / DOUBLES)).min(1.0)
    }
}

impl DemandLaw for Steady {
    fn name(&self) -> &'static str {
        "steady"
    }

    fn next(&mut self, demand: f64, sense: Sense) -> f64 {
        let next = self.careful.paced(demand, sense, self.pace(sense.busy));
        let waits = self.waits > 0;
        self.waits = self.waits.saturating_sub(1);
        match sense.congestion {
            Congestion::Yes if waits => demand,
            Congestion::Yes => {
                (self.waits, self.calm) = (self.wait, 0);
                next
            }
            Congestion::No => {
                self.calm = self.calm.saturating_add(i32::from(!sense.busy));
                match waits {
                    true => next.max(demand),
                    false => next,
                }
            }
        }
    }
}

/// Bansal and Balakrishnan's family: up by `add / xᵏ`, down by `cut · xˡ`. It
/// converges to fairness if k + l > 0, and shares fairly with AIMD if k + l = 1.
#[derive(Clone, Debug)]
struct Binomial {
    add: f64,
    cut: f64,
    k: f64,
    l: f64,
}

impl DemandLaw for Binomial {
    fn name(&self) -> &'static str {
        "binomial"
    }

    fn next(&mut self, demand: f64, sense: Sense) -> f64 {
        // Below one, powers would turn small steps into large ones.
        let base = demand.max(1.0);
        match sense.congestion {
            Congestion::Yes => demand - self.cut * base.powf(self.l),
            Congestion::No => demand + self.add / base.powf(self.k),
        }
    }
}

/// Proportional and integral control of the slowdown, towards its threshold.
/// Steady, and not fair: a guest that had more keeps more. It wants a signal whose
/// threshold is fixed, such as pressure: a guest that never asks for much less never sees
/// the least virtual clock time again, and the window forgets it.
#[derive(Clone, Debug)]
struct Pi {
    proportional: f64,
    integral: f64,
    last: Option<f64>,
}

impl DemandLaw for Pi {
    fn name(&self) -> &'static str {
        "pi"
    }

    fn next(&mut self, demand: f64, sense: Sense) -> f64 {
        // A host that stands still must not throw all demand away at once.
        let error = (1.0 - sense.slowdown).clamp(-1.0, 1.0);
        let change = error - self.last.unwrap_or(error);
        self.last = Some(error);
        demand + self.proportional * change + self.integral * error
    }
}

/// AIMD whose step grows with every period without congestion. Guests that share
/// a host senses the same congestion and so takes the same steps, and equal
/// steps keep AIMD's fairness; but the ceiling is reached, and the halving of
/// differences with it, in the logarithm of the time.
#[derive(Clone, Debug)]
struct Quick {
    add: f64,
    divide: f64,
    growth: f64,
    most: f64,
    step: f64,
}

impl DemandLaw for Quick {
    fn name(&self) -> &'static str {
        "quick"
    }

    fn next(&mut self, demand: f64, sense: Sense) -> f64 {
        match sense.congestion {
            Congestion::Yes => {
                self.step = self.add;
                demand / self.divide
            }
            Congestion::No => {
                let next = demand + self.step;
                self.step = (self.step * self.growth).min(self.most);
                next
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Sense = Sense {
        congestion: Congestion::No,
        slowdown: 0.4,
        room: 1.0,
        busy: false,
    };
    const BUSY: Sense = Sense {
        congestion: Congestion::Yes,
        slowdown: 1.5,
        room: -0.5,
        busy: false,
    };

    #[test]
    fn aimd_is_the_papers() {
        let mut law = LawConfig::default().build();
        assert_eq!(law.next(10.0, CALM), 11.0);
        assert_eq!(law.next(12.0, BUSY), 8.0);
    }

    #[test]
    fn binomial_with_k_0_and_l_1_is_aimd() {
        let config = LawConfig::Binomial {
            add: 1.0,
            cut: 1.0 / 3.0,
            k: 0.0,
            l: 1.0,
        };
        let mut law = config.build();
        assert_eq!(law.next(10.0, CALM), 11.0);
        assert!((law.next(12.0, BUSY) - 8.0).abs() < 1e-9);
    }

    #[test]
    fn quick_steps_grow_until_there_is_congestion() {
        let config = LawConfig::Quick {
            add: 1.0,
            divide: 1.5,
            growth: 2.0,
            most: 4.0,
        };
        let mut law = config.build();
        let mut demand = 10.0;
        let mut went = Vec::new();
        for sense in [CALM, CALM, CALM, CALM, BUSY, CALM] {
            demand = law.next(demand, sense);
            went.push(demand);
        }
        assert_eq!(went, [11.0, 13.0, 17.0, 21.0, 14.0, 15.0]);
    }

    #[test]
    fn steady_waits_for_what_it_did_and_goes_on_slowly_from_there() {
        let mut law = LawConfig::STEADY.build();
        let went = |law: &mut Box<dyn DemandLaw>, from: f64, senses: &[Sense]| {
            let mut demand = from;
            let next = senses.iter().map(|sense| {
                demand = law.next(demand, *sense);
                demand
            });
            next.collect::<Vec<_>>()
        };
        let first = 10.0 / 1.5;
        let down = went(&mut law, 9.0, &[CALM, BUSY, BUSY, BUSY, BUSY]);
        assert_eq!(down[..4], [10.0, first, first, first]);
        assert!((down[4] - first / 1.5).abs() < 1e-9, "{down:?}");
        // A calm period between does not cut the wait short, nor make it longer.
        let after = went(&mut law, 4.0, &[CALM, BUSY, BUSY]);
        assert_eq!(after[..2], [4.25, 4.25]);
        assert!((after[2] - 4.25 / 1.5).abs() < 1e-9, "{after:?}");
        let up = went(&mut law, 4.0, &[CALM; 20]);
        let paces: Vec<_> = up.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(paces[..2], [0.25, 0.25]);
        assert_eq!(paces[8..10], [0.5, 0.5]);
        assert_eq!(paces[17..], [1.0, 1.0]);
    }

    #[test]
    fn steady_hardly_asks_for_more_where_cpus_are_busy_once_it_has_met_the_ceiling() {
        let full = Sense { busy: true, ..CALM };
        let mut law = LawConfig::STEADY.build();
        assert_eq!(law.next(10.0, full), 10.125, "no ceiling is known of");
        law.next(11.0, BUSY);
        let mut demand = 4.0;
        for _ in 0..100 {
            let next = law.next(demand, full);
            assert_eq!(next - demand, 1.0 / 32.0);
            demand = next;
        }
        // However long it was idle, nor much more than before the first step down.
        for _ in 0..1_000 {
            law.next(4.0, CALM);
        }
        assert_eq!(law.next(4.0, full), 4.125);
        // A thread that waits for something else than a CPU is let on sooner.
        law.next(demand, BUSY);
        let slow = law.next(4.0, CALM) - 4.0;
        assert_eq!(slow, 0.25);
    }

    /// Equation 7, with congestion as a part.
    #[test]
    fn careful_asks_for_less_from_near_the_threshold_on() {
        let mut law = LawConfig::CAREFUL.build();
        let at = |room| Sense {
            congestion: Congestion::No,
            slowdown: 0.9,
            room,
            busy: false,
        };
        // An idle host, and a quarter of the way: one thread more.
        assert_eq!(law.next(12.0, at(1.0)), 13.0);
        assert_eq!(law.next(12.0, at(0.75)), 13.0);
        let half = law.next(12.0, at(0.375));
        assert!((half - (12.0 + 0.5 - 2.0)).abs() < 1e-9, "{half}");
        let whole = law.next(12.0, at(0.0));
        assert!((whole - 8.0).abs() < 1e-9, "{whole}");
    }

    #[test]
    fn pi_is_steady_and_keeps_who_has_more_ahead() {
        let config = LawConfig::Pi {
            proportional: 2.0,
            integral: 1.0,
        };
        let mut guests = [10.0, 40.0].map(|demand| (config.build(), demand));
        let mut load = 0.0;
        for _ in 0..500 {
            load = guests.iter().map(|(_, demand)| demand).sum::<f64>() / 100.0;
            let sense = Sense {
                congestion: Congestion::No,
                slowdown: load * load,
                room: 1.0 - load * load,
                busy: false,
            };
            for (law, demand) in &mut guests {
                *demand = law.next(*demand, sense);
            }
        }
        assert!((load - 1.0).abs() < 0.01, "{load}");
        let apart = guests[1].1 - guests[0].1;
        assert!((apart - 30.0).abs() < 1e-6, "{apart}");
    }

    #[test]
    fn pi_rests_at_the_threshold_and_moves_towards_it() {
        let config = LawConfig::Pi {
            proportional: 2.0,
            integral: 1.0,
        };
        let mut law = config.build();
        let at = |slowdown| Sense {
            congestion: Congestion::No,
            slowdown,
            room: 1.0 - slowdown,
            busy: false,
        };
        assert_eq!(law.next(10.0, at(1.0)), 10.0);
        assert!(law.next(10.0, at(0.5)) > 10.0);
        assert!(law.next(10.0, at(3.0)) < 10.0);
    }
}
