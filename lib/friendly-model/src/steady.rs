//! The fixed point, and what happens near it: section 3.3 of the paper.

use crate::Model;
use serde::Serialize;

/// A root of a characteristic equation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CharacteristicRoot {
    /// Real part, per unit of time: below 0, what is off dies away.
    pub re: f64,
    /// Imaginary part.
    pub im: f64,
}

/// Both roots of a quadratic one.
pub type Roots = [CharacteristicRoot; 2];

/// Way in which a system comes to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Regime {
    /// Straight: both roots are real and negative.
    Exponential,
    /// Swinging: they are complex, with negative real parts.
    Oscillatory,
    /// Not at all.
    Unstable,
}

/// State in which guests that adapt come to rest, and the way there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Steady {
    /// n*: threads of each.
    pub threads: f64,
    /// c*: congestion.
    pub congestion: f64,
    /// p* = g*: price.
    pub price: f64,
    /// α and β of equation 13.
    pub alpha: f64,
    /// See `alpha`. It is also how fast differences between guests die away,
    /// per unit of time.
    pub beta: f64,
    /// Roots of 1 + L(s), L(s) being equation 13.
    pub roots: Roots,
    /// Regime that they imply.
    pub regime: Regime,
    /// G of equation 14, which like equation 15 is for guests that add 1 and halve.
    pub g: f64,
    /// Roots by the paper's approximation, equation 15.
    pub paper_roots: Roots,
    /// Regime that those imply.
    pub paper_regime: Regime,
}

/// The fixed point of equations 3 to 7. There is exactly one: with c = σ(K₁Vn)², and
/// a/c = a + bn where a is what is added and b the part that is cut (equation 9, where
/// they are 1 and 1/2), n is where (a + bn)·σ(K₁Vn)² comes to a, which grows with n
/// from 0 on.
pub fn steady(model: &Model) -> Steady {
    let scale = model.sigma * (model.k1 * model.guests()).powi(2);
    let (add, cut) = (model.add, model.cut());
    let threads = crossing(|n| (add + cut * n) * scale * n * n - add);
    let congestion = add / (add + cut * threads);
    let usage = model.k1 * model.guests() * threads;
    let alpha = add + cut * threads;
    let beta = cut * congestion;
    let gain = alpha * model.guests() * model.k1 * 2.0 * usage * model.gamma * model.sigma;
    let gamma = model.gamma;
    let roots = quadratic(gamma + beta, gamma * beta + gain);
    let g = (4.0 * scale).cbrt();
    let approximate = paper_roots(g);
    Steady {
        threads,
        congestion,
        price: usage * usage,
        alpha,
        beta,
        roots,
        regime: regime(&roots),
        g,
        paper_roots: approximate,
        paper_regime: regime(&approximate),
    }
}

/// Equation 15: the roots of s² + s/G + 0.5.
pub fn paper_roots(g: f64) -> Roots {
    quadratic(1.0 / g, 0.5)
}

/// Returns the regime that roots imply.
fn regime(roots: &Roots) -> Regime {
    match roots {
        [a, b] if a.re >= 0.0 || b.re >= 0.0 => Regime::Unstable,
        [a, _] if a.im == 0.0 => Regime::Exponential,
        [_, _] => Regime::Oscillatory,
    }
}

/// Roots of s² + bs + c.
fn quadratic(b: f64, c: f64) -> Roots {
    let square = b * b - 4.0 * c;
    if square < 0.0 {
        let (re, im) = (-b / 2.0, (-square).sqrt() / 2.0);
        return [
            CharacteristicRoot { re, im },
            CharacteristicRoot { re, im: -im },
        ];
    }
    // The root that does not lose digits first; their product is c.
    let far = -(b + b.signum() * square.sqrt()) / 2.0;
    let near = if far == 0.0 { 0.0 } else { c / far };
    [near, far].map(|re| CharacteristicRoot { re, im: 0.0 })
}

/// Finds where a function that grows, from below 0 at 0, crosses it.
fn crossing(f: impl Fn(f64) -> f64) -> f64 {
    let mut high = 1.0;
    while f(high) < 0.0 {
        high *= 2.0;
    }
    let mut low = 0.0;
    loop {
        let middle = low + (high - low) / 2.0;
        // Until there is no number between them.
        if middle <= low || middle >= high {
            return middle;
        }
        match f(middle) < 0.0 {
            true => low = middle,
            false => high = middle,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapt;
    use proptest::prelude::*;

    #[test]
    fn the_papers_case() {
        let steady = steady(&Model::default());
        assert!((steady.threads - 6.23).abs() < 0.01, "{steady:?}");
        assert!((steady.price - 1e5).abs() < 5e3, "{steady:?}");
        assert!((steady.g - 0.2924).abs() < 1e-4);
        assert_eq!(steady.paper_regime, Regime::Exponential);
        assert_eq!(steady.regime, Regime::Oscillatory);
    }

    #[test]
    fn both_regimes_meet_at_the_root_of_one_half() {
        let border = 0.5f64.sqrt();
        assert_eq!(regime(&paper_roots(border * 0.999)), Regime::Exponential);
        assert_eq!(regime(&paper_roots(border * 1.001)), Regime::Oscillatory);
        assert_eq!(regime(&quadratic(-0.1, 1.0)), Regime::Unstable);
        assert_eq!(regime(&quadratic(0.1, -1.0)), Regime::Unstable);
    }

    /// The linearisation against the equations themselves: a guest pair pushed
    /// apart at the fixed point comes together at the rate β.
    #[test]
    fn differences_die_away_at_beta() {
        let mut model = Model {
            starts: vec![6.0; 5],
            until: 200.0,
            ..Model::default()
        };
        let rest = steady(&model);
        // By now everything else is at rest, so that only the difference moves.
        model.starts = vec![rest.threads; 5];
        model.starts[0] += 3.0;
        model.starts[1] -= 3.0;
        let trajectory = adapt(&model).expect("followed");
        let gap = |at: usize| trajectory.threads[0][at] - trajectory.threads[1][at];
        let (early, late) = (200, 300);
        let passed = trajectory.times[late] - trajectory.times[early];
        let rate = (gap(early) / gap(late)).ln() / passed;
        assert!(
            (rate / rest.beta - 1.0).abs() < 0.02,
            "{rate}, {}",
            rest.beta
        );
    }

    proptest! {
        #[test]
        fn the_fixed_point_is_equation_9(
            k1 in 0.01..1e3f64,
            sigma in 1e-9..1e-2f64,
            guests in 1usize..50,
            add in 0.1..10.0f64,
            divide in 1.1..10.0f64,
        ) {
            let papers = Model { k1, sigma, starts: vec![1.0; guests], ..Model::default() };
            let rest = steady(&papers);
            prop_assert!(rest.threads > 0.0);
            let by_9 = 2.0 / (sigma * rest.price) - 2.0;
            prop_assert!((rest.threads - by_9).abs() < 1e-6 * (2.0 + by_9), "{by_9}");
            let model = Model { add, divide, ..papers };
            let rest = steady(&model);
            let change = model.change(rest.threads, rest.congestion);
            prop_assert!(change.abs() < 1e-9 * (1.0 + add));
        }

        #[test]
        fn no_positive_g_is_unstable(exponent in -6.0..6.0f64) {
            let roots = paper_roots(10f64.powf(exponent));
            prop_assert!(roots.iter().all(|root| root.re < 0.0), "{roots:?}");
        }

        #[test]
        fn no_positive_constants_are_unstable(
            k1 in 0.01..1e3f64,
            sigma in 1e-9..1e-2f64,
            gamma in 1e-4..1.0f64,
            guests in 1usize..50,
            add in 0.1..10.0f64,
            divide in 1.1..10.0f64,
        ) {
            let model = Model { k1, sigma, gamma, add, divide, starts: vec![1.0; guests], ..Model::default() };
            let steady = steady(&model);
            prop_assert_ne!(steady.regime, Regime::Unstable);
            prop_assert_ne!(steady.paper_regime, Regime::Unstable);
        }

        #[test]
        fn roots_solve_their_equation(b in -10.0..10.0f64, c in -10.0..10.0f64) {
            for CharacteristicRoot { re, im } in quadratic(b, c) {
                let real = re * re - im * im + b * re + c;
                let imaginary = 2.0 * re * im + b * im;
                prop_assert!(real.abs() < 1e-9 && imaginary.abs() < 1e-9);
            }
        }
    }
}
