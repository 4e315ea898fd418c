//! View of an engine that a policy sees: the vCPUs, the state of each, and the
//! time it has had. Policies read it; engines alone write it.

use crate::{
    params::Params,
    units::{CpuId, CpuSet, DomainId, Nanos, VcpuId},
};
use std::ops::{Index, IndexMut};

/// State of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Runs on this CPU.
    Running(CpuId),
    /// Would run, and waits for a CPU.
    Waiting,
    /// Does not want to run.
    Asleep,
}

/// A physical CPU.
#[derive(Clone, Debug)]
pub struct CpuView {
    /// vCPU that it runs.
    pub running: Option<VcpuId>,
    /// Speed, 1 being that of a usual one.
    pub speed: f64,
}

/// A vCPU.
#[derive(Clone, Debug)]
pub struct VcpuView {
    /// Domain of the vCPU.
    pub domain: DomainId,
    /// Since when it does what it does.
    pub since: Nanos,
    /// The CPUs it may run on.
    pub affinity: CpuSet,
    /// The CPU it ran on last.
    pub last: Option<CpuId>,
    /// Times it ran on another CPU than before.
    pub moves: u64,
    state: State,
    ran: Nanos,
    waited: Nanos,
}

/// A domain.
#[derive(Clone, Debug, Default)]
pub struct DomainView {
    /// vCPUs of the domain, in the guest's order.
    pub vcpus: Vec<VcpuId>,
    /// Parameters of the domain.
    pub params: Params,
}

/// All of it. Indexed by ids; naming one that is not set up panics.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The time.
    pub now: Nanos,
    cpus: Vec<CpuView>,
    vcpus: Vec<Option<VcpuView>>,
    domains: Vec<Option<DomainView>>,
}

impl VcpuView {
    /// Returns its state.
    pub fn state(&self) -> State {
        self.state
    }
}

impl World {
    /// CPUs of these speeds and none on them. Those beyond
    /// [`CpuSet::MOST`] are left out.
    pub fn new(speeds: impl IntoIterator<Item = f64>) -> Self {
        let cpu = |speed| CpuView {
            running: None,
            speed,
        };
        Self {
            cpus: speeds.into_iter().take(CpuSet::MOST).map(cpu).collect(),
            ..Self::default()
        }
    }

    /// The CPUs.
    pub fn cpus(&self) -> impl Iterator<Item = CpuId> + use<> {
        (0..self.cpus.len()).map(CpuId::from_place)
    }

    /// Returns the number of CPUs.
    pub fn width(&self) -> usize {
        self.cpus.len()
    }

    /// The vCPUs that are set up.
    pub fn vcpus(&self) -> impl Iterator<Item = (VcpuId, &VcpuView)> {
        let all = self.vcpus.iter().enumerate();
        all.filter_map(|(place, vcpu)| Some((VcpuId::from_place(place), vcpu.as_ref()?)))
    }

    /// The domains that are set up.
    pub fn domains(&self) -> impl Iterator<Item = (DomainId, &DomainView)> {
        let all = self.domains.iter().enumerate();
        all.filter_map(|(place, domain)| Some((DomainId::from_place(place), domain.as_ref()?)))
    }

    /// Returns the parameters of its domain.
    pub fn params(&self, vcpu: VcpuId) -> &Params {
        &self[self[vcpu].domain].params
    }

    /// The other vCPUs of its domain.
    pub fn siblings(&self, vcpu: VcpuId) -> impl Iterator<Item = VcpuId> + '_ {
        let all = self[self[vcpu].domain].vcpus.iter().copied();
        all.filter(move |&other| other != vcpu)
    }

    /// Returns the time it has run, until now.
    pub fn ran(&self, vcpu: VcpuId) -> Nanos {
        let vcpu = &self[vcpu];
        match vcpu.state {
            State::Running(_) => vcpu.ran + self.now.minus(vcpu.since),
            State::Waiting | State::Asleep => vcpu.ran,
        }
    }

    /// Returns the time it has waited for a CPU, until now.
    pub fn waited(&self, vcpu: VcpuId) -> Nanos {
        let vcpu = &self[vcpu];
        match vcpu.state {
            State::Waiting => vcpu.waited + self.now.minus(vcpu.since),
            State::Running(_) | State::Asleep => vcpu.waited,
        }
    }

    /// Returns the time it has run since it was last picked; zero if it does
    /// not run.
    pub fn runs_for(&self, vcpu: VcpuId) -> Nanos {
        let vcpu = &self[vcpu];
        match vcpu.state {
            State::Running(_) => self.now.minus(vcpu.since),
            State::Waiting | State::Asleep => Nanos::ZERO,
        }
    }

    /// For engines: sets a domain up.
    pub fn add_domain(&mut self, params: Params) -> DomainId {
        let id = DomainId::from_place(self.domains.len());
        self.domains.push(Some(DomainView {
            vcpus: Vec::new(),
            params,
        }));
        id
    }

    /// For engines: sets a vCPU up, asleep.
    pub fn add_vcpu(&mut self, domain: DomainId, affinity: CpuSet) -> VcpuId {
        let id = VcpuId::from_place(self.vcpus.len());
        self[domain].vcpus.push(id);
        self.vcpus.push(Some(VcpuView {
            domain,
            since: self.now,
            affinity,
            last: None,
            moves: 0,
            state: State::Asleep,
            ran: Nanos::ZERO,
            waited: Nanos::ZERO,
        }));
        id
    }

    /// For engines: a vCPU is gone.
    pub fn remove_vcpu(&mut self, vcpu: VcpuId) {
        let domain = self[vcpu].domain;
        self.set_state(vcpu, State::Asleep);
        self[domain].vcpus.retain(|&other| other != vcpu);
        self.vcpus[vcpu.at()] = None;
    }

    /// For engines: a domain without vCPUs is gone.
    pub fn remove_domain(&mut self, domain: DomainId) {
        self.domains[domain.at()] = None;
    }

    /// For engines: what a vCPU does from now on. Closes the account of what
    /// it did, and keeps what the CPUs run.
    pub fn set_state(&mut self, vcpu: VcpuId, state: State) {
        let now = self.now;
        let (ran, waited) = (self.ran(vcpu), self.waited(vcpu));
        if let State::Running(cpu) = self[vcpu].state {
            self[cpu].running = None;
        }
        if let State::Running(cpu) = state {
            self[cpu].running = Some(vcpu);
        }
        let view = &mut self[vcpu];
        if let State::Running(cpu) = state {
            let before = view.last.replace(cpu);
            view.moves += u64::from(before.is_some_and(|before| before != cpu));
        }
        view.ran = ran;
        view.waited = waited;
        view.since = now;
        view.state = state;
    }
}

impl Index<CpuId> for World {
    type Output = CpuView;
    fn index(&self, cpu: CpuId) -> &CpuView {
        &self.cpus[cpu.at()]
    }
}

impl IndexMut<CpuId> for World {
    fn index_mut(&mut self, cpu: CpuId) -> &mut CpuView {
        &mut self.cpus[cpu.at()]
    }
}

impl Index<VcpuId> for World {
    type Output = VcpuView;
    fn index(&self, vcpu: VcpuId) -> &VcpuView {
        self.vcpus[vcpu.at()].as_ref().expect("a vCPU is set up")
    }
}

impl IndexMut<VcpuId> for World {
    fn index_mut(&mut self, vcpu: VcpuId) -> &mut VcpuView {
        self.vcpus[vcpu.at()].as_mut().expect("a vCPU is set up")
    }
}

impl Index<DomainId> for World {
    type Output = DomainView;
    fn index(&self, domain: DomainId) -> &DomainView {
        self.domains[domain.at()]
            .as_ref()
            .expect("a domain is set up")
    }
}

impl IndexMut<DomainId> for World {
    fn index_mut(&mut self, domain: DomainId) -> &mut DomainView {
        self.domains[domain.at()]
            .as_mut()
            .expect("a domain is set up")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_booked_on_what_was_done_with_it() {
        let mut world = World::new([1.0, 1.0]);
        let domain = world.add_domain(Params::default());
        let vcpu = world.add_vcpu(domain, CpuSet::ALL);
        for (at, state) in [
            (0, State::Waiting),
            (3, State::Running(CpuId(0))),
            (10, State::Waiting),
            (11, State::Running(CpuId(1))),
            (20, State::Asleep),
        ] {
            world.now = Nanos(at);
            world.set_state(vcpu, state);
        }
        world.now = Nanos(100);
        assert_eq!(world.ran(vcpu), Nanos(16));
        assert_eq!(world.waited(vcpu), Nanos(4));
        assert_eq!(world[vcpu].moves, 1);
        assert!(world.cpus().all(|cpu| world[cpu].running.is_none()));
    }
}
