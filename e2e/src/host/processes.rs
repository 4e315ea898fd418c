//! The processes of a host, and their ends.

use super::Host;
use crate::{Process, waiting::eventually};
use std::collections::BTreeSet;

impl Host {
    /// The program of its machines.
    pub fn machine(&self) -> &'static str {
        match self.dist.ends_with("fake") {
            true => "forkyard-fake-machine",
            false => "qemu-system-x86_64",
        }
    }

    /// The processes of this program on the host.
    pub fn processes(&self, program: &str) -> Vec<Process> {
        let all = self.all_processes().into_iter();
        all.filter(|process| process.is(program)).collect()
    }

    /// Every process on the host.
    pub fn all_processes(&self) -> Vec<Process> {
        self.place.processes()
    }

    /// The process that runs this program, and not one that it has just
    /// started and that is about to become another.
    #[track_caller]
    fn process(&self, program: &str) -> Process {
        let all = self.processes(program);
        let is_child = |process: &Process| all.iter().any(|p| p.pid == process.parent);
        let mut found = all.iter().filter(|process| !is_child(process));
        match (found.next(), found.next()) {
            (Some(process), None) => process.clone(),
            (_, _) => panic!("one {program} was expected: {all:?}"),
        }
    }

    /// Kills the process that runs this program.
    #[track_caller]
    pub fn kill_9(&self, program: &str) {
        self.process(program).kill();
    }

    /// Kills both halves of the pager, so that neither can replace the other.
    #[track_caller]
    pub fn kill_whole_pager(&self) {
        let halves = ["forkyard-pager", "forkyard-keeper"].map(|half| self.processes(half));
        let halves: Vec<_> = halves.into_iter().flatten().collect();
        Process::kill_all(&halves);
        eventually("the pager's end", || {
            let program = |half| self.processes(half).is_empty();
            program("forkyard-pager") && program("forkyard-keeper")
        });
    }

    /// Kills a process at the moment at which it has started so many more,
    /// which hardly know yet what they are. False if it never starts as many
    /// before `over`.
    pub fn kill_9_as_it_starts(
        &self,
        program: &str,
        count: usize,
        over: impl Fn() -> bool,
    ) -> bool {
        let process = self.process(program);
        let before = process.children();
        let mut started = BTreeSet::new();
        while !over() {
            let now = process.children();
            started.extend(now.into_iter().filter(|pid| !before.contains(pid)));
            if started.len() >= count {
                process.kill();
                return true;
            }
        }
        false
    }
}
