//! Lists of what is stopped, removed and emptied, as an operator may edit them.

use crate::Plan;
use forkyard_types::SubstrateKind;
use serde::Deserialize;

/// Entries of one list.
const MOST: usize = 1000;

/// The lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lists {
    /// Services to stop.
    pub stop: Vec<String>,
    /// Patterns of paths to remove.
    pub remove: Vec<String>,
    /// Patterns of paths to empty.
    pub empty: Vec<String>,
    /// Host name of a guest that has none of its own.
    pub host_name: Option<String>,
}

/// Reason why the lists cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListsError {
    /// The text is not TOML, or not of these lists.
    #[error("the lists cannot be read")]
    Form(#[from] toml::de::Error),
    /// An entry is no pattern of a path.
    #[error("{entry:?} is no absolute path below / without . and ..")]
    Path {
        /// The entry.
        entry: String,
    },
    /// A list is too long.
    #[error("a list has {have} entries: {MOST} at most")]
    TooMany {
        /// Number of its entries.
        have: usize,
    },
}

impl Lists {
    /// Reads lists from TOML.
    pub fn parse(text: &str) -> Result<Self, ListsError> {
        let lists: Self = toml::from_str(text)?;
        for list in [&lists.stop, &lists.remove, &lists.empty] {
            if list.len() > MOST {
                return Err(ListsError::TooMany { have: list.len() });
            }
        }
        let mut paths = lists.remove.iter().chain(&lists.empty);
        match paths.find(|path| !is_path(path)) {
            Some(entry) => Err(ListsError::Path {
                entry: entry.clone(),
            }),
            None => Ok(lists),
        }
    }

    /// Makes the plan for a guest of this kind. `keep` names services that run on, `secrets` what
    /// the guest was told to keep from clones, `margin` the free memory that is left to it.
    pub fn plan(
        &self,
        kind: SubstrateKind,
        keep: &[String],
        secrets: &[String],
        margin: u64,
    ) -> Plan {
        let stop = self.stop.iter().filter(|name| !kept(keep, name)).cloned();
        let mut plan = Plan {
            stop: stop.collect(),
            margin,
            ..Plan::default()
        };
        match kind {
            SubstrateKind::Private => {}
            SubstrateKind::Public | SubstrateKind::Restricted => {
                plan.remove = self.remove.iter().chain(secrets).cloned().collect();
                plan.empty.clone_from(&self.empty);
                plan.host_name.clone_from(&self.host_name);
            }
        }
        plan
    }
}

/// A service may be named without its kind: `cron` for `cron.service`.
fn kept(keep: &[String], service: &str) -> bool {
    let short = service.strip_suffix(".service").unwrap_or(service);
    keep.iter().any(|name| name == service || name == short)
}

fn is_path(text: &str) -> bool {
    let mut names = text.split('/');
    names.next() == Some("")
        && !text.contains('\0')
        && text.len() > 1
        && names.all(|name| !matches!(name, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed() -> Lists {
        Lists::parse(include_str!("../generalise.toml")).expect("the lists that are installed")
    }

    #[test]
    fn what_tells_two_guests_apart_is_in_the_installed_lists() {
        let lists = installed();
        for path in ["/etc/ssh/ssh_host_*_key", "/root/.bash_history"] {
            assert!(lists.remove.iter().any(|it| it == path), "{path}");
        }
        assert!(lists.empty.iter().any(|it| it == "/etc/machine-id"));
        assert_eq!(lists.host_name.as_deref(), Some("localhost"));
    }

    #[test]
    fn a_private_substrate_keeps_what_is_its_owners() {
        let secrets = ["/etc/key".to_owned()];
        let plan = |kind| installed().plan(kind, &[], &secrets, 7);
        let private = plan(SubstrateKind::Private);
        assert!(private.remove.is_empty() && private.empty.is_empty());
        assert_eq!(private.host_name, None);
        assert!(!private.stop.is_empty());
        for kind in [SubstrateKind::Public, SubstrateKind::Restricted] {
            let plan = plan(kind);
            assert!(plan.remove.contains(&secrets[0]) && !plan.empty.is_empty());
            assert_eq!(plan.margin, 7);
        }
    }

    #[test]
    fn services_that_are_kept_run_on() {
        let keep = ["cron", "fstrim.timer"].map(str::to_owned);
        let plan = installed().plan(SubstrateKind::Public, &keep, &[], 0);
        let stops = |name: &str| plan.stop.iter().any(|it| it == name);
        assert!(!stops("cron.service") && !stops("fstrim.timer") && stops("rsyslog.service"));
    }

    #[test]
    fn entries_that_are_no_paths_are_refused() {
        for bad in ["etc/x", "/", "/etc/../x", "/etc//x", "/./x", ""] {
            let text = format!("remove = [{bad:?}]");
            assert!(
                matches!(Lists::parse(&text), Err(ListsError::Path { .. })),
                "{bad}"
            );
        }
        assert!(matches!(Lists::parse("x = 1"), Err(ListsError::Form(_))));
        let many = format!("stop = [{}]", "\"a\",".repeat(MOST + 1));
        assert!(matches!(
            Lists::parse(&many),
            Err(ListsError::TooMany { .. })
        ));
    }
}
