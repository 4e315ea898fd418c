//! The equations over time, by Dormand and Prince's method with steps that
//! adapt.

use crate::Model;
use differential_equations::{error::Error, ivp::IVP, methods::ExplicitRungeKutta, ode::ODE};
use serde::Serialize;

/// Reason why a model cannot be followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FluidError {
    /// Steps became too small, or too many.
    #[error("the model cannot be integrated beyond {at}: its constants differ too much in scale")]
    Stuck {
        /// Unit of time until which it could.
        at: f64,
    },
}

/// A model over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trajectory {
    /// Times.
    pub times: Vec<f64>,
    /// Threads of each guest at those times.
    pub threads: Vec<Vec<f64>>,
    /// Price p at those times.
    pub price: Vec<f64>,
    /// Signal that is fed back: congestion c, or the admission ratio a.
    pub control: Vec<f64>,
}

/// Points of a trajectory.
const POINTS: f64 = 400.0;
/// Error of each step, relative and, of what is next to nothing, absolute.
const TOLERANCE: f64 = 1e-9;

/// Guests adapt: equations 3 to 7, the average price g being 0 at first. State:
/// threads of each guest, then g.
struct Adaptation<'a>(&'a Model);

impl Adaptation<'_> {
    /// Equation 6; σ is meant to keep it below 1, and if it does not, nothing can
    /// be more congested than always.
    fn congestion(&self, average: f64) -> f64 {
        (self.0.sigma * average).clamp(0.0, 1.0)
    }
}

impl ODE<f64, Vec<f64>> for Adaptation<'_> {
    fn diff(&self, _: f64, state: &Vec<f64>, change: &mut Vec<f64>) {
        let Some((average, threads)) = state.split_last() else {
            return;
        };
        let congestion = self.congestion(*average);
        let price = self.0.price(threads.iter().sum());
        let (to_average, to_threads) = match change.split_last_mut() {
            Some(parts) => parts,
            None => return,
        };
        *to_average = -self.0.gamma * (average - price);
        for (change, n) in to_threads.iter_mut().zip(threads) {
            *change = self.0.change(*n, congestion);
        }
    }
}

/// An admission controller admits a part a of all new threads: equation 8. A
/// guest offers as many as would keep its first threads up, and threads end:
/// ṅ = churn · (a · n(0) − n); the paper says nothing of this. State: threads of
/// each guest, then a.
struct Admission<'a>(&'a Model);

impl ODE<f64, Vec<f64>> for Admission<'_> {
    fn diff(&self, _: f64, state: &Vec<f64>, change: &mut Vec<f64>) {
        let Some((ratio, threads)) = state.split_last() else {
            return;
        };
        let price = self.0.price(threads.iter().sum());
        let (to_ratio, to_threads) = match change.split_last_mut() {
            Some(parts) => parts,
            None => return,
        };
        let wish = self.0.k2 * (self.0.target - price);
        // It stays between 0 and 1.
        let stuck = *ratio >= 1.0 && wish > 0.0 || *ratio <= 0.0 && wish < 0.0;
        *to_ratio = if stuck { 0.0 } else { wish };
        let ratio = ratio.clamp(0.0, 1.0);
        for ((change, n), offered) in to_threads.iter_mut().zip(threads).zip(&self.0.starts) {
            *change = self.0.churn * (ratio * offered - n);
        }
    }
}

/// Integrates the shares of guests that adapt: figure 3(a).
pub fn adapt(model: &Model) -> Result<Trajectory, FluidError> {
    let system = Adaptation(model);
    let mut trajectory = follow(model, &system, 0.0)?;
    for average in &mut trajectory.control {
        *average = system.congestion(*average);
    }
    Ok(trajectory)
}

/// Integrates the shares by an admission controller: figure 3(b).
pub fn admit(model: &Model) -> Result<Trajectory, FluidError> {
    let mut trajectory = follow(model, &Admission(model), 1.0)?;
    for ratio in &mut trajectory.control {
        *ratio = ratio.clamp(0.0, 1.0);
    }
    Ok(trajectory)
}

/// Follows a system whose state is the threads of each guest and one more.
fn follow(
    model: &Model,
    system: &impl ODE<f64, Vec<f64>>,
    last: f64,
) -> Result<Trajectory, FluidError> {
    let mut state = model.starts.clone();
    state.push(last);
    // Of magnitudes as different as threads and prices, the relative error counts.
    let method = ExplicitRungeKutta::dopri5()
        .rtol(TOLERANCE)
        .atol(TOLERANCE)
        .max_steps(2_000_000);
    let solution = IVP::ode(system, 0.0, model.until, state)
        .even(model.until / POINTS)
        .method(method)
        .solve()
        .map_err(|error| FluidError::Stuck {
            at: reached(&error),
        })?;
    let mut trajectory = Trajectory {
        times: solution.t,
        threads: vec![Vec::new(); model.starts.len()],
        price: Vec::new(),
        control: Vec::new(),
    };
    for state in solution.y {
        let Some((control, threads)) = state.split_last() else {
            continue;
        };
        trajectory.control.push(*control);
        trajectory.price.push(model.price(threads.iter().sum()));
        for (line, n) in trajectory.threads.iter_mut().zip(threads) {
            line.push(*n);
        }
    }
    Ok(trajectory)
}

fn reached(error: &Error<f64, Vec<f64>>) -> f64 {
    match error {
        Error::MaxSteps { t, .. }
        | Error::StepSize { t, .. }
        | Error::Stiffness { t, .. }
        | Error::LinearAlgebra { t, .. } => *t,
        Error::OutOfBounds { t_prev, .. } | Error::InsufficientHistory { t_prev, .. } => *t_prev,
        Error::BadInput { .. } | Error::NoLags => 0.0,
    }
}

impl Trajectory {
    /// Threads of each guest in the end.
    pub fn last(&self) -> Vec<f64> {
        self.threads
            .iter()
            .filter_map(|line| line.last().copied())
            .collect()
    }

    /// The first time from which on the most and the least that guests have
    /// differ by no more than this part of the most.
    pub fn fair_from(&self, part: f64) -> Option<f64> {
        let apart = |at: usize| {
            let now = self.threads.iter().map(|line| line[at]);
            let most = now.clone().fold(f64::MIN, f64::max);
            most - now.fold(f64::MAX, f64::min) > part * most
        };
        let unfair = (0..self.times.len()).rfind(|&at| apart(at));
        self.times.get(unfair.map_or(0, |at| at + 1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steady;
    use proptest::prelude::*;

    #[test]
    fn the_papers_guests_converge_to_one_value() {
        let trajectory = adapt(&Model::default()).expect("followed");
        let fixed = steady(&Model::default()).threads;
        for n in trajectory.last() {
            assert!((n - fixed).abs() < 0.05, "{n}, not {fixed}");
        }
        // All grow at first: the average lags behind.
        let first = |line: &Vec<f64>| line[1] > line[0];
        assert!(trajectory.threads.iter().all(first));
        assert_eq!(trajectory.times.first(), Some(&0.0));
        assert_eq!(trajectory.times.last(), Some(&100.0));
        assert!((400..=402).contains(&trajectory.times.len()));
    }

    #[test]
    fn the_admission_controller_reaches_its_price_and_is_not_fair() {
        let model = Model::default();
        let trajectory = admit(&model).expect("followed");
        let price = *trajectory.price.last().expect("points");
        assert!((price / model.target - 1.0).abs() < 1e-3, "{price}");
        let last = trajectory.last();
        let ratio = last[4] / last[0];
        assert!(
            (ratio - 4.0).abs() < 1e-6,
            "they began at 16 and 4: {ratio}"
        );
        assert_eq!(trajectory.fair_from(0.05), None);
    }

    #[test]
    fn known_solutions_are_met() {
        // Price far below what matters: n grows by 1 in every unit of time.
        let free = Model {
            sigma: 1e-15,
            starts: vec![3.0, 8.0],
            until: 10.0,
            ..Model::default()
        };
        let last = adapt(&free).expect("followed").last();
        assert!(
            (last[0] - 13.0).abs() < 1e-4 && (last[1] - 18.0).abs() < 1e-4,
            "{last:?}"
        );
        // Never admitted less than all: n stays.
        let idle = Model {
            target: 1e9,
            until: 10.0,
            ..Model::default()
        };
        let last = admit(&idle).expect("followed").last();
        assert!(
            last.iter()
                .zip(&idle.starts)
                .all(|(a, b)| (a - b).abs() < 1e-9)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn shares_become_equal_from_any_start(
            starts in prop::collection::vec(0.0..60.0f64, 1..8),
            gamma in 0.05..0.9f64,
            sigma in 1e-6..1e-5f64,
        ) {
            let model = Model { starts, gamma, sigma, until: 400.0, ..Model::default() };
            let trajectory = adapt(&model).expect("followed");
            let fixed = steady(&model).threads;
            for n in trajectory.last() {
                prop_assert!((n - fixed).abs() < 0.02 * fixed + 0.02, "{n}, not {fixed}");
            }
            prop_assert!(trajectory.threads.iter().flatten().all(|n| *n >= -1e-6));
        }

        #[test]
        fn differences_never_grow(starts in prop::collection::vec(0.0..60.0f64, 2..6)) {
            let model = Model { starts, ..Model::default() };
            let trajectory = adapt(&model).expect("followed");
            let gap = |at: usize| {
                let now = trajectory.threads.iter().map(|line| line[at]);
                now.clone().fold(f64::MIN, f64::max) - now.fold(f64::MAX, f64::min)
            };
            for at in 1..trajectory.times.len() {
                prop_assert!(gap(at) <= gap(at - 1) + 1e-6);
            }
        }
    }
}
