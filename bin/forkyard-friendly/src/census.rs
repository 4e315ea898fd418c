//! Threads of a group that want to run, and those to leave alone.

use crate::{
    exempt::Exempt,
    tasks::{self, Task, TaskId},
};
use forkyard_friendly::{Count, ThreadState, Unit, Wants};
use std::collections::{BTreeMap, BTreeSet};

/// Result of a look at the members of the group.
#[derive(Debug)]
pub struct Census {
    /// Threads that want to run and may be stopped; for processes, one for each.
    pub wanting: Vec<TaskId>,
    /// Number of threads that run, would run or are stopped at this moment, of
    /// those that may be stopped.
    pub load: u32,
    /// One that is never to be stopped, if there is any.
    pub spares: Option<u32>,
}

/// Way in which members are counted.
#[derive(Clone, Copy, Debug)]
pub struct How<'a> {
    pub unit: Unit,
    pub count: Count,
    pub exempt: &'a Exempt,
    /// Threads that were stopped at the last look.
    pub still: &'a BTreeSet<TaskId>,
}

impl Census {
    /// Counts the members that were seen.
    pub fn of(members: &[Task], how: How<'_>, wants: &mut Wants<TaskId>) -> Self {
        let mut known: BTreeMap<u32, bool> = BTreeMap::new();
        let mut spares = None;
        let first = |task: &&Task| task.id.number == task.kin.process;
        let names: BTreeMap<u32, &str> = members
            .iter()
            .filter(first)
            .map(|task| (task.kin.process, task.name.as_str()))
            .collect();
        let mut spared = |task: &Task| {
            let process = task.kin.process;
            let spared = *known
                .entry(process)
                .or_insert_with(|| match names.get(&process) {
                    Some(name) => how.exempt.spares(task, name),
                    None => how.exempt.spares(task, &tasks::name(process)),
                });
            if spared {
                spares = Some(process);
            }
            spared
        };
        let seen = members.iter().filter_map(|task| {
            let id = match how.unit {
                Unit::Thread => task.id,
                Unit::Process => TaskId {
                    number: task.kin.process,
                    started: tasks::started(task.kin.process)?,
                },
            };
            let doing = match (how.still.contains(&id), task.runnable) {
                (true, _) => ThreadState::StandsStill,
                (false, true) => ThreadState::Runs,
                (false, false) => ThreadState::Sleeps,
            };
            (!spared(task)).then_some((id, doing))
        });
        let (wanting, load) = match how.count {
            Count::All => {
                let all: BTreeSet<TaskId> = seen.map(|(id, _)| id).collect();
                let load = all.len();
                (all, load)
            }
            Count::Runnable => {
                let seen = wants.look(seen);
                (seen.wants, seen.load)
            }
        };
        Self {
            wanting: wanting.into_iter().collect(),
            load: u32::try_from(load).unwrap_or(u32::MAX),
            spares,
        }
    }
}
