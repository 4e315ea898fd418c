//! Members that move between sites, and news that are late, lost, doubled and out of order.

use super::*;

const SITES: usize = 4;
const MEMBERS: u16 = 8;

#[derive(Clone, Debug)]
struct Site {
    seen: Whereabouts,
    parts: BTreeMap<Member, Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Rests,
    Expected,
    Stopped,
}

#[derive(Debug)]
struct World {
    sites: Vec<Site>,
    /// Site of each member, or the one before it stood still; and the one it goes to.
    members: Vec<(usize, usize, Stage)>,
    /// News under way, and the site they are for.
    post: Vec<(usize, PlaceNews)>,
    ports: Vec<VmId>,
}

#[derive(Clone, Debug)]
enum Step {
    Begin(u16, usize),
    Go(u16),
    Fail(u16),
    Deliver(prop::sample::Index),
    Double(prop::sample::Index),
    Lose(prop::sample::Index),
    /// A site says all it knows to all.
    Repeat(usize),
    /// A destination takes nothing any more that is passed on.
    Settle(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = || any::<prop::sample::Index>();
    let step = prop_oneof![
        (0..MEMBERS, 0..SITES).prop_map(|(member, to)| Step::Begin(member, to)),
        (0..MEMBERS).prop_map(Step::Go),
        (0..MEMBERS).prop_map(Step::Go),
        (0..MEMBERS).prop_map(Step::Fail),
        index().prop_map(Step::Deliver),
        index().prop_map(Step::Deliver),
        index().prop_map(Step::Double),
        index().prop_map(Step::Lose),
        (0..SITES).prop_map(Step::Repeat),
        (0..MEMBERS).prop_map(Step::Settle),
    ];
    prop::collection::vec(step, 0..120)
}

fn number(at: Ipv4Addr) -> usize {
    usize::from(at.octets()[3])
}

/// Fate of a frame.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// Delivered to a port there.
    At(usize),
    Dropped,
}

impl World {
    fn new() -> Self {
        let site = Site {
            seen: Whereabouts::default(),
            parts: BTreeMap::new(),
        };
        Self {
            sites: vec![site; SITES],
            members: (0..MEMBERS)
                .map(home)
                .map(|at| (at, at, Stage::Rests))
                .collect(),
            post: Vec::new(),
            ports: (0..MEMBERS).map(|_| VmId::random()).collect(),
        }
    }

    fn table(&self, at: usize) -> Table {
        let hosts = (0..SITES).map(|number| {
            let first = u16::try_from(number).expect("few") * 2;
            host(number, first..first + 2)
        });
        let mut span = span(at, hosts.collect());
        span.seen = self.sites[at].seen.clone();
        span.parts = self.sites[at].parts.clone();
        Table::of(&span)
    }

    fn tell(&mut self, by: usize, member: Member, at: Whereabout) {
        let said = self.sites[by].seen.tell(member, at);
        self.post
            .extend((0..SITES).filter(|to| *to != by).map(|to| (to, said)));
    }

    fn event(&mut self, at: usize, member: Member, event: Event) {
        let parts = &mut self.sites[at].parts;
        let part = Part::step(parts.remove(&member), event);
        parts.extend(part.map(|part| (member, part)));
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Begin(it, to) => {
                let (at, _, stage) = self.members[usize::from(*it)];
                if stage == Stage::Rests && at != *to {
                    let (member, port) = (Member(*it), self.ports[usize::from(*it)]);
                    self.members[usize::from(*it)] = (at, *to, Stage::Expected);
                    let (from, there) = (site(at), site(*to));
                    self.tell(at, member, Whereabout::Moving { from, to: there });
                    self.event(*to, member, Event::Expected { from, port });
                }
            }
            Step::Go(it) => {
                let (member, port) = (Member(*it), self.ports[usize::from(*it)]);
                match self.members[usize::from(*it)] {
                    (_, _, Stage::Rests) => {}
                    (at, to, Stage::Expected) => {
                        self.members[usize::from(*it)] = (at, to, Stage::Stopped);
                        self.event(at, member, Event::Stopped { to: site(to), port });
                    }
                    (at, to, Stage::Stopped) => {
                        self.members[usize::from(*it)] = (to, to, Stage::Rests);
                        self.event(to, member, Event::Announced);
                        // As it is told with the answer.
                        let news = self.sites[at].seen.all().find(|said| said.member == member);
                        news.map(|said| self.sites[to].seen.learn(said));
                        self.tell(to, member, Whereabout::At(site(to)));
                        let news = self.sites[to].seen.all().find(|said| said.member == member);
                        news.map(|said| self.sites[at].seen.learn(said));
                        self.event(at, member, Event::Left);
                    }
                }
            }
            Step::Fail(it) => {
                let member = Member(*it);
                if let (at, to, Stage::Expected | Stage::Stopped) = self.members[usize::from(*it)] {
                    self.members[usize::from(*it)] = (at, at, Stage::Rests);
                    self.event(at, member, Event::Stayed);
                    self.event(to, member, Event::GivenUp);
                    self.tell(at, member, Whereabout::At(site(at)));
                }
            }
            Step::Deliver(which) if !self.post.is_empty() => {
                let (to, said) = self.post.swap_remove(which.index(self.post.len()));
                self.sites[to].seen.learn(said);
            }
            Step::Double(which) if !self.post.is_empty() => {
                let (to, said) = self.post[which.index(self.post.len())];
                self.sites[to].seen.learn(said);
            }
            Step::Lose(which) if !self.post.is_empty() => {
                self.post.swap_remove(which.index(self.post.len()));
            }
            Step::Deliver(_) | Step::Double(_) | Step::Lose(_) => {}
            Step::Repeat(by) => self.repeat(*by),
            Step::Settle(it) => {
                let (at, ..) = self.members[usize::from(*it)];
                self.event(at, Member(*it), Event::Settled);
            }
        }
    }

    fn repeat(&mut self, by: usize) {
        let all: Vec<_> = self.sites[by].seen.all().collect();
        for to in (0..SITES).filter(|to| *to != by) {
            self.post.extend(all.iter().map(|said| (to, *said)));
        }
    }

    fn tables(&self) -> Vec<Table> {
        (0..SITES).map(|at| self.table(at)).collect()
    }

    /// Follows a frame for a member from one that is at a site.
    fn follow(&self, tables: &[Table], (at, from, to): (usize, Member, Member)) -> Fate {
        let (mut here, mut been) = (at, vec![at]);
        loop {
            let Some(next) = tables[here].site(to) else {
                let expects = self.sites[here]
                    .parts
                    .get(&to)
                    .is_some_and(|it| it.port().is_some());
                let is_there = self.members[usize::from(to.0)].0 == here;
                return if expects || is_there {
                    Fate::At(here)
                } else {
                    Fate::Dropped
                };
            };
            let next = number(next);
            if !tables[next].takes(site(here), from, to) {
                return Fate::Dropped;
            }
            assert!(
                !been.contains(&next),
                "a frame for {to:?} goes round: {been:?}, {next}"
            );
            been.push(next);
            here = next;
        }
    }

    fn all_frames(&self) -> impl Iterator<Item = (usize, Member, Member)> + '_ {
        let members = || (0..MEMBERS).map(Member);
        members().flat_map(move |from| {
            let (at, _, stage) = self.members[usize::from(from.0)];
            let speaks = stage != Stage::Stopped;
            let others = members().filter(move |to| speaks && *to != from);
            others.map(move |to| (at, from, to))
        })
    }
}

fn home(member: u16) -> usize {
    usize::from(member / 2)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_frame_goes_round_and_all_sites_agree_in_the_end(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            let tables = world.tables();
            for frame in world.all_frames() {
                world.follow(&tables, frame);
            }
        }
        // All moves end, one way or the other, and the news are said once more.
        for member in 0..MEMBERS {
            world.step(&Step::Fail(member));
        }
        for _ in 0..2 {
            (0..SITES).for_each(|by| world.repeat(by));
            for (to, said) in std::mem::take(&mut world.post) {
                world.sites[to].seen.learn(said);
            }
        }
        for other in 1..SITES {
            prop_assert_eq!(&world.sites[other].seen, &world.sites[0].seen);
        }
        let tables = world.tables();
        for frame in world.all_frames() {
            let there = world.members[usize::from(frame.2.0)].0;
            prop_assert_eq!(world.follow(&tables, frame), Fate::At(there), "{:?}", frame);
        }
    }

    #[test]
    fn while_one_moves_no_frame_is_lost_whichever_news_are_late(
        member in 0..MEMBERS, to in 0..SITES, late in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        fails in any::<bool>(),
    ) {
        let mut world = World::new();
        let check = |world: &World| {
            let (at, to, stage) = world.members[usize::from(member)];
            let tables = world.tables();
            for frame in world.all_frames() {
                let (from_site, from, target) = frame;
                let fate = world.follow(&tables, frame);
                let there = world.members[usize::from(target.0)].0;
                if target != Member(member) {
                    // Where nothing was heard of the move, its first words are not believed.
                    let knows = world.sites[there].seen.get(from).is_some();
                    let known = from != Member(member) || from_site == home(member) || knows;
                    assert_eq!(fate, if known { Fate::At(there) } else { Fate::Dropped });
                } else if stage == Stage::Stopped {
                    assert_eq!(fate, Fate::At(to), "it waits where the member will be");
                } else {
                    // A sibling at the destination may be early, none is lost.
                    let early = stage == Stage::Expected && from_site == to;
                    assert!(fate == Fate::At(at) || early && fate == Fate::At(to), "{fate:?}");
                }
            }
        };
        let mut late = late.into_iter();
        let last = if fails { Step::Fail(member) } else { Step::Go(member) };
        for step in [Step::Begin(member, to), Step::Go(member), last] {
            world.step(&step);
            check(&world);
            if let Some(which) = late.next() {
                world.step(&Step::Deliver(which));
                check(&world);
            }
        }
        while !world.post.is_empty() {
            let which = late.next().map_or(0, |which| which.index(world.post.len()));
            let (to, said) = world.post.swap_remove(which);
            world.sites[to].seen.learn(said);
            check(&world);
        }
    }

    #[test]
    fn each_mac_moves_once_at_each_site(
        order in Just(vec![0usize, 1, 0, 1]).prop_shuffle(), skip in any::<bool>(),
    ) {
        let member = Member(0);
        let mut source = Whereabouts::default();
        let news = [
            source.tell(member, Whereabout::Moving { from: site(0), to: site(1) }),
            source.tell(member, Whereabout::At(site(1))),
        ];
        let hosts = vec![host(0, 0..64), host(1, 64..128), host(2, 128..256)];
        let mut third = span(2, hosts);
        let mut known = Table::of(&third);
        let mut moved = Vec::new();
        for which in order.into_iter().filter(|which| !(skip && *which == 0)) {
            third.seen.learn(news[which]);
            let wanted = Table::of(&third);
            moved.extend(known.plan(&wanted).changes);
            known = wanted;
        }
        let once = TableChange::Send { member, to: site(1), had: true };
        prop_assert_eq!(moved, [once]);
    }
}

#[test]
fn the_first_word_from_the_destination_is_heard_by_those_that_knew_of_the_move() {
    let mut third = span(2, vec![host(0, 0..64), host(1, 64..128), host(2, 128..256)]);
    let member = Member(5);
    assert!(!Table::of(&third).takes(site(1), member, Member(128)));
    third.seen.tell(
        member,
        Whereabout::Moving {
            from: site(0),
            to: site(1),
        },
    );
    let expected = Table::of(&third);
    assert!(expected.takes(site(1), member, Member(128)));
    assert!(
        expected.takes(site(0), member, Member(128)),
        "it runs there still"
    );
    third.seen.tell(member, Whereabout::At(site(1)));
    let plan = expected.plan(&Table::of(&third));
    assert_eq!(
        (plan.unrelayed.len(), plan.heard.len()),
        (0, 0),
        "nothing comes before the switch"
    );
    assert_eq!(plan.changes.len(), 1);
    assert!(
        !Table::of(&third).takes(site(0), member, Member(128)),
        "its former site speaks for it no more"
    );
}
