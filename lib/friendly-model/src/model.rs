//! The constants, with the paper's where nothing is said.

use serde::{Deserialize, Serialize};

/// Parameters of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Model {
    /// Threads that each guest has at first: one number a guest.
    pub starts: Vec<f64>,
    /// K₁: what each thread takes of the resource.
    pub k1: f64,
    /// γ: weight of the newest price in its average.
    pub gamma: f64,
    /// σ: congestion for each unit of the average price.
    pub sigma: f64,
    /// Threads that guests add in a unit of time without congestion.
    pub add: f64,
    /// Factor that they divide their threads by in a unit of time with nothing
    /// but congestion.
    pub divide: f64,
    /// K₂: how fast the admission controller reacts.
    pub k2: f64,
    /// P_T: the price that the admission controller aims at.
    pub target: f64,
    /// Part of a guest's threads that ends in each unit of time, under the
    /// admission controller.
    pub churn: f64,
    /// Duration, in units of time.
    pub until: f64,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            starts: vec![4.0, 7.0, 10.0, 13.0, 16.0],
            k1: 10.0,
            gamma: 0.1,
            sigma: 2.5e-6,
            add: 1.0,
            divide: 2.0,
            k2: 1e-6,
            target: 1e5,
            churn: 1.0,
            until: 100.0,
        }
    }
}

/// Reason why there is no such model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The text is no model.
    #[error("cannot read the model")]
    Syntax(#[from] toml::de::Error),
    /// There are too few guests, or too many.
    #[error("{0} guests: give the starts of 1 to 1000")]
    Guests(usize),
    /// A number is out of range.
    #[error("{field} is {value}: it must be {wanted}")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: f64,
        /// Values that it may have.
        wanted: &'static str,
    },
}

impl Model {
    /// Reads and checks one.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let model: Self = toml::from_str(text)?;
        model.check()?;
        Ok(model)
    }

    /// Checks that the parameters make sense.
    pub fn check(&self) -> Result<(), ModelError> {
        if !(1..=1_000).contains(&self.starts.len()) {
            return Err(ModelError::Guests(self.starts.len()));
        }
        for &start in &self.starts {
            within("starts", start, 0.0, 1e6, "0 to a million")?;
        }
        within("gamma", self.gamma, 1e-6, 1.0, "over 0, at most 1")?;
        within("divide", self.divide, 1.01, 100.0, "1.01 to 100")?;
        within("add", self.add, 1e-6, 1e6, "over 0, at most a million")?;
        within("until", self.until, 1e-3, 1e5, "0.001 to 100000")?;
        for (field, value) in [
            ("k1", self.k1),
            ("sigma", self.sigma),
            ("k2", self.k2),
            ("target", self.target),
            ("churn", self.churn),
        ] {
            within(field, value, 1e-15, 1e15, "over 0, and a sensible number")?;
        }
        Ok(())
    }

    /// V: how many guests.
    pub fn guests(&self) -> f64 {
        self.starts.len() as f64
    }

    /// Part of a guest's threads that congestion takes in a unit of time.
    pub(crate) fn cut(&self) -> f64 {
        1.0 - 1.0 / self.divide
    }

    /// Computes the change of a guest's threads: equation 7.
    pub(crate) fn change(&self, threads: f64, congestion: f64) -> f64 {
        self.add * (1.0 - congestion) - self.cut() * threads * congestion
    }

    /// Price of the resource if so many threads use it: equations 3 and 4.
    pub(crate) fn price(&self, threads: f64) -> f64 {
        let usage = self.k1 * threads;
        usage * usage
    }
}

fn within(
    field: &'static str,
    value: f64,
    least: f64,
    most: f64,
    wanted: &'static str,
) -> Result<(), ModelError> {
    // Says no to what is no number, too.
    if value >= least && value <= most {
        return Ok(());
    }
    Err(ModelError::Range {
        field,
        value,
        wanted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_is_the_papers() {
        assert_eq!(Model::parse("").expect("fine"), Model::default());
    }

    #[test]
    fn nonsense_is_refused() {
        for (text, named) in [
            ("gamma = 2.0", "gamma"),
            ("sigma = 0.0", "sigma"),
            ("starts = [1.0, -1.0]", "starts"),
            ("until = inf", "until"),
            ("divide = 1.0", "divide"),
            ("add = 0.0", "add"),
            ("k1 = nan", "k1"),
        ] {
            match Model::parse(text) {
                Err(ModelError::Range { field, .. }) => assert_eq!(field, named),
                other => panic!("{text}: {other:?}"),
            }
        }
        let none = Model::parse("starts = []");
        assert!(matches!(none, Err(ModelError::Guests(0))));
        let unknown = Model::parse("gama = 0.1");
        assert!(matches!(unknown, Err(ModelError::Syntax(_))));
    }
}
