//! Processes that are left alone.

use crate::tasks::Task;

/// Names of the host's agent in guests: it is never stopped.
const AGENTS: [&str; 3] = ["forkyard-guest", "@forkyard-guest", "forkyard-friend"];

/// Processes that are never stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exempt {
    /// By their numbers: the agent's own.
    pub ours: Vec<u32>,
    /// By their names.
    pub names: Vec<String>,
}

impl Exempt {
    /// Tells whether the process of a thread is exempt, by this name.
    pub fn spares(&self, task: &Task, name: &str) -> bool {
        self.ours.contains(&task.kin.process)
            || task.kin.init
            || AGENTS.iter().any(|agent| name.starts_with(agent))
            || self.names.iter().any(|one| one == name)
    }
}
