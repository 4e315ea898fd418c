//! Fairness of a division.

/// The paper's index, its equation 16: 1 − ‖x − o‖ / ‖o‖, `got` being what each
/// got and `optimal` what it would get of a fair and efficient host. 1 is
/// optimal; less if it is unfair, or fair and inefficient. `None` if there is no
/// optimum, or not one for each.
pub fn fairness_index(got: &[f64], optimal: &[f64]) -> Option<f64> {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let best = norm(&mut optimal.iter().copied());
    let off = norm(&mut got.iter().zip(optimal).map(|(x, o)| x - o));
    (got.len() == optimal.len() && best > 0.0).then(|| 1.0 - off / best)
}

/// Jain's index: from 1/n, one having everything, to 1, all having the same.
/// `None` if none has anything.
pub fn jain_index(got: &[f64]) -> Option<f64> {
    let sum: f64 = got.iter().sum();
    let squares: f64 = got.iter().map(|x| x * x).sum();
    (squares > 0.0).then(|| sum * sum / (got.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_one_for_the_optimum_alone() {
        assert_eq!(fairness_index(&[2.0, 2.0], &[2.0, 2.0]), Some(1.0));
        // Fair, and half as much as there is.
        assert_eq!(fairness_index(&[1.0, 1.0], &[2.0, 2.0]), Some(0.5));
        // One has all.
        let one = fairness_index(&[4.0, 0.0], &[2.0, 2.0]).expect("an optimum");
        assert!(one.abs() < 1e-12, "{one}");
        assert_eq!(fairness_index(&[1.0], &[]), None);
        assert_eq!(fairness_index(&[1.0], &[0.0]), None);
    }

    #[test]
    fn jain_tells_one_of_four_from_all_of_four() {
        assert_eq!(jain_index(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain_index(&[3.0; 4]), Some(1.0));
        assert_eq!(jain_index(&[0.0]), None);
    }
}
