//! The CPU of a guest, and whether it can go on with another.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// CPU that a guest was given. Its kernel and programs have looked at it once, and go on using what
/// they found.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestCpu {
    /// Model, which must be the same wherever the guest goes: that of the engine and its version, or
    /// of the processor's vendor.
    pub model: String,
    /// Features, by the names that Linux has for them, if they depend on the host.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub features: BTreeSet<String>,
}

/// A CPU on which a guest that has another cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnlikeCpu {
    /// Another model.
    #[error("its CPU is of model {has:?}, and this host gives {gives:?}")]
    Model {
        /// The guest's.
        has: String,
        /// The host's.
        gives: String,
    },
    /// Fewer features.
    #[error("its CPU has {}, which this host's lacks", .lacking.join(", "))]
    Features {
        /// Features that are missing.
        lacking: Vec<String>,
    },
}

impl GuestCpu {
    /// Returns what this and another have in common: a guest that is given that can go on at both.
    pub fn common(&self, other: &Self) -> Result<Self, UnlikeCpu> {
        if self.model != other.model {
            return Err(UnlikeCpu::Model {
                has: self.model.clone(),
                gives: other.model.clone(),
            });
        }
        Ok(Self {
            model: self.model.clone(),
            features: &self.features & &other.features,
        })
    }

    /// Refuses a guest that has been given `other` where this is what guests are given.
    pub fn suits(&self, other: &Self) -> Result<(), UnlikeCpu> {
        if self.model != other.model {
            return Err(UnlikeCpu::Model {
                has: other.model.clone(),
                gives: self.model.clone(),
            });
        }
        let lacking: Vec<_> = other.features.difference(&self.features).cloned().collect();
        match lacking.is_empty() {
            true => Ok(()),
            false => Err(UnlikeCpu::Features { lacking }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_suits_guests_of_its_model_that_have_no_feature_that_it_lacks() {
        let cpu = |model: &str, features: &[&str]| GuestCpu {
            model: model.into(),
            features: features.iter().map(|it| (*it).to_owned()).collect(),
        };
        let host = cpu("m", &["avx", "sse"]);
        assert_eq!(host.suits(&cpu("m", &["sse"])), Ok(()));
        let lacking = vec!["avx2".to_owned(), "sha_ni".to_owned()];
        let more = cpu("m", &["avx", "sha_ni", "avx2"]);
        assert_eq!(host.suits(&more), Err(UnlikeCpu::Features { lacking }));
        assert_eq!(host.common(&more), Ok(cpu("m", &["avx"])));
        assert!(host.common(&cpu("n", &[])).is_err());
        let other = host.suits(&cpu("n", &[]));
        assert!(matches!(other, Err(UnlikeCpu::Model { .. })));
    }
}
