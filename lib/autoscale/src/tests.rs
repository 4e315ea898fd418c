//! Traces of users, and servers that fail, against a world that keeps its own account.

mod faults;

use crate::*;
use forkyard_types::VmId;
use std::{collections::BTreeMap, time::Duration};

const TICK: Duration = Duration::from_millis(500);
/// Requests that a server is sent at a time, and answers in a second.
const CAPACITY: u32 = 8;
const RATE: u32 = 80;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Life {
    /// Gets requests.
    Admitted,
    /// Gets no new ones.
    Closed,
}

/// A VM that exists, whatever the scaler believes.
#[derive(Clone, Debug)]
struct Server {
    vm: VmId,
    slot: SlotNo,
    life: Life,
    open: u32,
    /// Time from which its checks pass.
    up_at: Duration,
    sick: bool,
}

/// Faults of one tick.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    fork_fails: bool,
    removal_fails: bool,
    /// Server whose health turns, by its place.
    turns: Option<usize>,
    /// Server that is killed, by its place.
    dies: Option<usize>,
}

/// VMs that exist, and what was done to them.
struct World {
    now: Duration,
    config: ScalerConfig,
    original: VmId,
    scaler: Scaler<Queue>,
    servers: Vec<Server>,
    /// Forks under way: when they are done, from what, for which slots.
    forks: Vec<(Duration, Vec<SlotNo>)>,
    fork_takes: Duration,
    waiting: u32,
    grown: u32,
    starved: u32,
    /// Most VMs at once.
    peak: usize,
    forks_asked: Vec<Duration>,
}

impl World {
    fn new(config: ScalerConfig) -> Self {
        let original = VmId::random();
        let source = ServerSource::Server(original);
        let server = Server {
            vm: original,
            slot: SlotNo(0),
            life: Life::Closed,
            open: 0,
            up_at: Duration::ZERO,
            sick: false,
        };
        Self {
            now: Duration::ZERO,
            scaler: Scaler::new(config.clone(), Queue, source).expect("sound"),
            config,
            original,
            servers: vec![server],
            forks: Vec::new(),
            fork_takes: seconds(1),
            waiting: 0,
            grown: 0,
            starved: 0,
            peak: 1,
            forks_asked: Vec::new(),
        }
    }

    fn healthy(&self, server: &Server) -> bool {
        !server.sick && server.up_at <= self.now
    }

    /// Spreads users' requests over servers: a closed loop, as it settles.
    fn requests(&mut self, users: u32) {
        let now = self.now;
        let healthy = |it: &&mut Server| !it.sick && it.up_at <= now;
        for server in self.servers.iter_mut().filter(healthy) {
            if server.life == Life::Closed {
                // What it has answered.
                server.open /= 2;
            }
        }
        let admitted = |it: &&mut Server| it.life == Life::Admitted;
        let mut open: Vec<_> = self
            .servers
            .iter_mut()
            .filter(healthy)
            .filter(admitted)
            .collect();
        let count = u32::try_from(open.len()).expect("few");
        // Users think for a second, so they ask for as many requests a second as they are; at less
        // than saturation each request takes as long as one alone.
        let most = count * RATE;
        let inside = match users < most {
            true => (users * CAPACITY + RATE / 2) / RATE,
            false => users - most,
        };
        let each = inside.checked_div(count).unwrap_or(0).min(CAPACITY);
        open.iter_mut().for_each(|server| server.open = each);
        self.waiting = inside - each * count;
    }

    fn view(&self) -> LoadView {
        let sample = |it: &Server| ServerSample {
            health: if self.healthy(it) {
                ServerHealth::Up
            } else {
                ServerHealth::Down
            },
            open: it.open,
            capacity: CAPACITY,
            cpu: None,
            latency: None,
        };
        let mut servers: BTreeMap<_, _> = self
            .servers
            .iter()
            .map(|it| (it.slot, sample(it)))
            .collect();
        for (slot, _, vm) in self.scaler.stages() {
            if vm.is_some_and(|vm| self.servers.iter().all(|it| it.vm != vm)) {
                let health = ServerHealth::Gone;
                servers.insert(
                    slot,
                    ServerSample {
                        health,
                        open: 0,
                        capacity: CAPACITY,
                        cpu: None,
                        latency: None,
                    },
                );
            }
        }
        LoadView {
            servers,
            waiting: self.waiting,
        }
    }

    fn tick(&mut self, users: u32, faults: Faults) {
        self.now += TICK;
        if let Some(place) = faults.turns {
            let place = place % self.servers.len().max(1);
            self.servers
                .get_mut(place)
                .into_iter()
                .for_each(|it| it.sick = !it.sick);
        }
        if let Some(place) = faults.dies
            && !self.servers.is_empty()
        {
            self.servers.remove(place % self.servers.len());
        }
        self.deliver(faults);
        self.requests(users);
        let view = self.view();
        let before = self.scaler.wanted();
        for action in self.scaler.look(self.now, &view) {
            self.carry_out(action, faults);
        }
        self.grown += u32::from(self.scaler.wanted() > before);
        self.check();
    }

    fn deliver(&mut self, faults: Faults) {
        let (due, later) = std::mem::take(&mut self.forks)
            .into_iter()
            .partition(|(at, _)| *at <= self.now);
        self.forks = later;
        let due: Vec<(Duration, Vec<SlotNo>)> = due;
        for slot in due.into_iter().flat_map(|(_, slots)| slots) {
            if faults.fork_fails {
                self.scaler
                    .done(self.now, ActionOutcome::NotForked { slot });
                continue;
            }
            let vm = VmId::random();
            let up_at = self.now + TICK;
            self.servers.push(Server {
                vm,
                slot,
                life: Life::Closed,
                open: 0,
                up_at,
                sick: false,
            });
            self.scaler
                .done(self.now, ActionOutcome::Forked { slot, vm });
        }
    }

    fn carry_out(&mut self, action: Action, faults: Faults) {
        let original = self.original;
        match action {
            Action::Fork { source, slots } => {
                let healthy = self.servers.iter().filter(|it| self.healthy(it)).count();
                assert!(slots.len() <= healthy.max(1), "more than doubled");
                assert!(self.forks.is_empty(), "one fork at a time");
                let source = self
                    .servers
                    .iter()
                    .find(|it| it.vm == source)
                    .expect("there");
                assert!(self.healthy(source), "a sick server is not forked");
                for slot in &slots {
                    assert!(
                        self.servers.iter().all(|it| it.slot != *slot),
                        "a slot for each"
                    );
                }
                self.forks_asked.push(self.now);
                self.forks.push((self.now + self.fork_takes, slots));
            }
            Action::Admit(slot) => {
                let server = self
                    .servers
                    .iter()
                    .find(|it| it.slot == slot)
                    .expect("there");
                assert!(self.healthy(server), "no requests for a sick server");
                self.at(slot).life = Life::Admitted;
            }
            Action::Starve(slot) => {
                assert!(
                    self.at(slot).vm != original,
                    "the original is a server for good"
                );
                self.at(slot).life = Life::Closed;
                self.starved += 1;
            }
            Action::Remove { slot, vm, cause } => {
                assert_eq!(self.at(slot).vm, vm);
                assert_ne!(vm, self.original, "the original is never removed");
                match cause {
                    RemovalCause::Drained => assert_eq!(self.at(slot).open, 0, "a request is lost"),
                    RemovalCause::Sick | RemovalCause::Late => assert!({
                        let server = self.servers.iter().find(|it| it.vm == vm).expect("there");
                        !self.healthy(server) || faults.turns.is_some() || server.open == 0
                    }),
                }
                if faults.removal_fails {
                    self.scaler
                        .done(self.now, ActionOutcome::NotRemoved { slot });
                } else {
                    self.servers.retain(|it| it.vm != vm);
                    self.scaler.done(self.now, ActionOutcome::Removed { slot });
                }
            }
            Action::Forget(slot) => {
                assert!(self.servers.iter().all(|it| it.slot != slot), "it is there");
            }
        }
    }

    fn at(&mut self, slot: SlotNo) -> &mut Server {
        self.servers
            .iter_mut()
            .find(|it| it.slot == slot)
            .expect("there")
    }

    fn check(&mut self) {
        let promised: usize = self.forks.iter().map(|(_, slots)| slots.len()).sum();
        let vms = self.servers.len() + promised;
        self.peak = self.peak.max(vms);
        assert!(
            vms <= usize::from(self.config.most),
            "{vms} servers: too many"
        );
        let wanted = self.scaler.wanted();
        assert!((self.config.least..=self.config.most).contains(&wanted));
    }

    fn admitted(&self) -> u16 {
        let admitted = self.servers.iter().filter(|it| it.life == Life::Admitted);
        u16::try_from(admitted.count()).expect("few")
    }

    /// So many users for so long.
    fn run(&mut self, users: u32, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.tick(users, Faults::default());
            if self.now > seconds(10) {
                assert!(self.admitted() >= self.config.least, "fewer than at least");
            }
        }
    }
}

#[test]
fn steps_of_users_are_followed_by_doubling_and_undone_without_flapping() {
    let mut world = World::new(ScalerConfig::default());
    world.run(60, seconds(60));
    assert_eq!((world.admitted(), world.grown), (1, 0));
    world.run(300, seconds(20));
    assert_eq!(
        (world.admitted(), world.grown),
        (8, 3),
        "1, 2, 4 and 8: each was saturated"
    );
    world.run(300, seconds(120));
    let (for_300, starved) = (world.admitted(), world.starved);
    assert_eq!(for_300, 8, "half loaded with 8");
    world.run(60, seconds(300));
    assert_eq!(
        world.admitted(),
        2,
        "60 users load one by 0.75, two by less than a half"
    );
    assert_eq!((world.grown, world.starved - starved), (3, 6));
    assert_eq!(world.peak, 8);
    world.run(600, seconds(20));
    assert_eq!(world.admitted(), 8);
}

#[test]
fn load_that_comes_and_goes_is_met_with_ever_fewer_changes() {
    let mut world = World::new(ScalerConfig::default());
    for _ in 0..20 {
        world.run(300, seconds(60));
        world.run(10, seconds(60));
    }
    let (first, asked) = (world.starved, world.forks_asked.len());
    for _ in 0..20 {
        world.run(300, seconds(60));
        world.run(10, seconds(60));
    }
    assert_eq!(world.starved, first, "servers are kept for the next wave");
    assert_eq!(world.forks_asked.len(), asked);
    // And no longer than that: once it is calm, they go.
    world.run(10, seconds(1200));
    assert_eq!(world.admitted(), 1);
}

#[test]
fn noise_about_a_load_changes_nothing_after_it_has_been_met() {
    let mut world = World::new(ScalerConfig::default());
    world.run(200, seconds(60));
    let (grown, starved) = (world.grown, world.starved);
    let mut noise = 12345_u32;
    for _ in 0..1200 {
        noise = noise.wrapping_mul(1_103_515_245).wrapping_add(12345);
        world.run(140 + (noise >> 16) % 120, TICK);
    }
    assert_eq!((world.grown, world.starved), (grown, starved));
}

#[test]
fn forks_that_fail_are_repeated_at_times_that_double() {
    let mut world = World::new(ScalerConfig::default());
    world.run(60, seconds(10));
    let fork_fails = true;
    for _ in 0..1200 {
        world.tick(
            800,
            Faults {
                fork_fails,
                ..Faults::default()
            },
        );
    }
    // 1, 2, 4, … 60 s and one more for each minute; 600 s in all.
    let asked = world.forks_asked.len();
    assert!((10..=18).contains(&asked), "{asked} forks");
    world.run(800, seconds(180));
    assert_eq!(world.admitted(), 8);
}

#[test]
fn a_server_that_stays_sick_is_replaced_and_one_that_recovers_is_not() {
    let mut world = World::new(ScalerConfig {
        least: 4,
        ..ScalerConfig::default()
    });
    world.run(100, seconds(30));
    assert_eq!(world.admitted(), 4);
    let sick = world.servers[2].vm;
    world.servers[2].sick = true;
    world.run(100, seconds(30));
    assert!(
        world.servers.iter().all(|it| it.vm != sick),
        "it is removed"
    );
    let healthy = world.servers.iter().filter(|it| world.healthy(it)).count();
    assert_eq!((healthy, world.servers.len()), (4, 4));
    let well: Vec<_> = world.servers.iter().map(|it| it.vm).collect();
    world.servers[1].sick = true;
    world.run(100, seconds(5));
    world.servers[1].sick = false;
    world.run(100, seconds(60));
    assert!(
        well.iter()
            .all(|vm| world.servers.iter().any(|it| it.vm == *vm))
    );
}

#[test]
fn what_fails_behind_all_servers_costs_none_of_them() {
    let mut world = World::new(ScalerConfig {
        least: 4,
        most: 4,
        ..ScalerConfig::default()
    });
    world.run(100, seconds(30));
    let vms: Vec<_> = world.servers.iter().map(|it| it.vm).collect();
    world.servers.iter_mut().for_each(|it| it.sick = true);
    world.run(0, seconds(9));
    world.servers.iter_mut().for_each(|it| it.sick = false);
    world.run(100, seconds(30));
    assert!(
        vms.iter()
            .all(|vm| world.servers.iter().any(|it| it.vm == *vm))
    );
}

#[test]
fn a_clone_takes_over_as_the_source_when_the_original_has_gone() {
    let mut world = World::new(ScalerConfig {
        least: 2,
        ..ScalerConfig::default()
    });
    world.run(60, seconds(10));
    let original = world.original;
    world.servers.retain(|it| it.vm != original);
    for _ in 0..60 {
        world.tick(60, Faults::default());
    }
    assert_eq!(world.admitted(), 2);
}

#[test]
fn limits_that_contradict_each_other_are_refused() {
    let refused = |config: ScalerConfig| {
        Scaler::new(config, Queue, ServerSource::Server(VmId::random())).is_err()
    };
    let config = ScalerConfig::default;
    assert!(refused(ScalerConfig {
        least: 0,
        ..config()
    }));
    assert!(refused(ScalerConfig {
        least: 9,
        ..config()
    }));
    assert!(refused(ScalerConfig {
        shrink_at: 0.9,
        ..config()
    }));
    assert!(refused(ScalerConfig {
        grow_at: f64::NAN,
        ..config()
    }));
    assert!(refused(ScalerConfig {
        retry: Duration::ZERO,
        ..config()
    }));
    assert!(!refused(config()));
}
