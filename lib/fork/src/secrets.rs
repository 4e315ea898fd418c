//! Secrets that clones do not inherit: paths in the guest, which the agent
//! scrubs in each clone before its user code goes on.

use crate::{Host, HostError};
use forkyard_types::ForkRequest;
use forkyard_vm::Vm;

/// Paths of one VM.
pub(crate) const MOST: usize = 64;
/// Bytes of one path.
const LONGEST: usize = 1024;

/// Refuses paths that name nothing in particular.
pub(crate) fn check(paths: &[String]) -> Result<(), HostError> {
    if paths.len() > MOST {
        return Err(HostError::Invalid(format!(
            "{} paths of secrets: {MOST} at most",
            paths.len()
        )));
    }
    let named = |path: &&String| {
        path.starts_with('/')
            && path.len() <= LONGEST
            && !path.contains('\0')
            && path.split('/').any(|part| !part.is_empty())
            && path.split('/').all(|part| !matches!(part, "." | ".."))
    };
    match paths.iter().find(|path| !named(path)) {
        Some(path) => Err(HostError::Invalid(format!(
            "{path:?} is no path of a secret: wanted an absolute one below /, without . and .."
        ))),
        None => Ok(()),
    }
}

impl Host {
    /// Lists the secrets that the clones of a transitive fork do not inherit.
    pub(crate) fn to_scrub(
        &self,
        parent: &Vm,
        request: &ForkRequest,
    ) -> Result<Vec<String>, HostError> {
        check(&request.scrub)?;
        let recorded = match request.inherit_secrets {
            true => Vec::new(),
            false => parent.record().secrets,
        };
        Ok([recorded, request.scrub.clone()].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_that_name_something_are_scrubbed() {
        let check = |path: &str| check(&[path.to_owned()]);
        for good in ["/etc/key", "/run/secrets/", "/.ssh"] {
            check(good).expect(good);
        }
        for bad in ["", "/", "//", "etc/key", "/etc/../", "/./", "/a\0b"] {
            check(bad).expect_err(bad);
        }
        check(&format!("/{}", "x".repeat(LONGEST))).expect_err("too long");
        super::check(&vec!["/k".to_owned(); MOST + 1]).expect_err("too many");
    }
}
