//! Random histories over links that lose, double, delay and part, against a single copy.
//!
//! Every epoch has a branch of the one copy: what the last close left, and what its writer wrote.
//! A read in an epoch must find its branch, whatever other writers there are; a close that the
//! authority took must be what the next opening sees; a crash may cost what was not flushed.

use fastrand::Rng;
use forkyard_replicate::{
    AuthorityAnswer, AuthorityRequest, BlockContent, Closing, Read, Site, SiteId, SiteRole, Stamp,
    VolumeAuthority,
};
use forkyard_volume::{BlockNo, WriterEpoch};
use std::{collections::BTreeMap, sync::Arc};

const SITES: usize = 3;
const COUNT: usize = 6;
const BLOCKS: u64 = COUNT as u64;

/// Number that a block's content is; 0 is zero.
type Value = u32;
type Blocks = [Value; COUNT];

#[derive(Clone, Debug)]
enum Message {
    Ask(usize, AuthorityRequest),
    Told(usize, AuthorityAnswer),
    Fetch {
        at: usize,
        by: usize,
        block: BlockNo,
        stamp: Stamp,
    },
    Content {
        to: usize,
        block: BlockNo,
        stamp: Stamp,
        data: BlockContent,
    },
    Push {
        to: usize,
        by: usize,
        block: BlockNo,
        stamp: Stamp,
        data: BlockContent,
    },
    Stored {
        to: usize,
        by: usize,
        block: BlockNo,
        stamp: Stamp,
    },
}

/// The copy that an epoch's writer should see, before each of its unflushed writes and now.
#[derive(Clone, Debug)]
struct Branch {
    past: Vec<Blocks>,
    now: Blocks,
}

#[derive(Debug, Default, Clone, Copy)]
struct Count {
    reads: u32,
    fetches: u32,
    openings: u32,
    fenced: u32,
    crashes: u32,
    kept_out: u32,
}

struct World {
    rng: Rng,
    authority: VolumeAuthority,
    sites: Vec<Site>,
    flying: Vec<Message>,
    /// Sites that no message reaches.
    parted: [bool; SITES],
    branches: BTreeMap<WriterEpoch, Branch>,
    /// Blocks that the last close that the authority took has left.
    committed: Blocks,
    value: Value,
    count: Count,
}

fn data(value: Value) -> BlockContent {
    (value != 0).then(|| Arc::from(value.to_le_bytes()))
}

fn id(site: usize) -> SiteId {
    SiteId::new(u8::try_from(site).expect("few")).expect("few")
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            authority: VolumeAuthority::default(),
            sites: (0..SITES).map(|it| Site::new(id(it))).collect(),
            flying: Vec::new(),
            parted: [false; SITES],
            branches: BTreeMap::new(),
            committed: [0; COUNT],
            value: 0,
            count: Count::default(),
        }
    }

    fn fly(&mut self, message: Message) {
        if self.rng.u8(0..10) > 0 {
            self.flying.push(message.clone());
        }
        if self.rng.u8(0..10) == 0 {
            self.flying.push(message);
        }
    }

    fn reaches(&self, message: &Message) -> bool {
        match message {
            Message::Ask(site, _) | Message::Told(site, _) => !self.parted[*site],
            Message::Content { to, .. } => !self.parted[*to],
            Message::Fetch { at, by, .. } => !self.parted[*at] && !self.parted[*by],
            Message::Push { to, by, .. } | Message::Stored { to, by, .. } => {
                !self.parted[*to] && !self.parted[*by]
            }
        }
    }

    /// Some message arrives, in any order.
    fn deliver(&mut self) {
        if self.flying.is_empty() {
            return;
        }
        let message = self
            .flying
            .swap_remove(self.rng.usize(0..self.flying.len()));
        if !self.reaches(&message) {
            return;
        }
        match message {
            Message::Ask(site, ask) => self.decide(site, ask),
            Message::Told(site, told) => {
                if let Closing::Dropped(_) = self.sites[site].told(told) {
                    self.count.fenced += 1;
                }
            }
            Message::Fetch {
                at,
                by,
                block,
                stamp,
            } => {
                if let Some(data) = self.sites[at].serve(block, stamp) {
                    self.fly(Message::Content {
                        to: by,
                        block,
                        stamp,
                        data,
                    });
                }
            }
            Message::Content {
                to,
                block,
                stamp,
                data,
            } => {
                self.sites[to].store(block, stamp, data);
            }
            Message::Push {
                to,
                by,
                block,
                stamp,
                data,
            } => {
                if self.sites[to].store(block, stamp, data) {
                    self.fly(Message::Stored {
                        to: by,
                        by: to,
                        block,
                        stamp,
                    });
                }
            }
            Message::Stored {
                to,
                by,
                block,
                stamp,
            } => {
                self.sites[to].acknowledged(block, stamp, id(by));
            }
        }
    }

    fn decide(&mut self, site: usize, ask: AuthorityRequest) {
        let (before, holder) = (self.authority.epoch(), self.authority.holder());
        let closes = match &ask {
            AuthorityRequest::Close { epoch, .. } => Some(*epoch),
            AuthorityRequest::Open { .. }
            | AuthorityRequest::TakeOver { .. }
            | AuthorityRequest::Resume { .. } => None,
        };
        let plain = matches!(ask, AuthorityRequest::Open { .. });
        let told = self.authority.ask(ask);
        let now = self.authority.epoch();
        if now != before {
            assert!(now > before);
            assert!(!(plain && holder.is_some()), "opened beside another");
            self.count.openings += 1;
            let branch = Branch {
                past: Vec::new(),
                now: self.committed,
            };
            self.branches.insert(now, branch);
        }
        if let (Some(epoch), Some(_), None) = (closes, holder, self.authority.holder()) {
            assert_eq!(epoch, now, "a fenced writer closed");
            self.committed = self.branches[&epoch].now;
        }
        if let AuthorityAnswer::Refused { .. } = told {
            self.count.kept_out += 1;
        }
        self.fly(Message::Told(site, told));
    }

    /// Reads a block of a writer. True if it was there, and right.
    fn read(&mut self, site: usize, block: u64) -> bool {
        let Some(epoch) = self.sites[site].writes() else {
            return false;
        };
        let number = BlockNo(block);
        match self.sites[site].read(number).expect("it writes") {
            Read::Here(found) => {
                let expected = self.branches[&epoch].now[usize::try_from(block).expect("few")];
                assert_eq!(found, data(expected), "site {site}, {epoch}, block {block}");
                self.count.reads += 1;
                true
            }
            Read::Fetch { stamp, from } => {
                self.count.fetches += 1;
                for holder in from.iter().collect::<Vec<_>>() {
                    let at = (0..SITES).find(|it| id(*it) == holder).expect("a site");
                    self.fly(Message::Fetch {
                        at,
                        by: site,
                        block: number,
                        stamp,
                    });
                }
                false
            }
        }
    }

    fn step(&mut self) {
        let site = self.rng.usize(0..SITES);
        let block = self.rng.u64(0..BLOCKS);
        match self.rng.u8(0..100) {
            0..40 => self.deliver(),
            40..50 => {
                // Whatever was not answered is sent again.
                if let Some(ask) = self.sites[site].asks() {
                    self.fly(Message::Ask(site, ask));
                }
            }
            50..60 => {
                self.read(site, block);
            }
            60..74 => {
                if let Some(epoch) = self.sites[site].writes() {
                    self.value += 1;
                    let value = if self.rng.u8(0..6) == 0 {
                        0
                    } else {
                        self.value
                    };
                    let written = self.sites[site].write(BlockNo(block), data(value));
                    written.expect("it writes");
                    let branch = self.branches.get_mut(&epoch).expect("granted");
                    branch.past.push(branch.now);
                    branch.now[usize::try_from(block).expect("few")] = value;
                }
            }
            74..78 => {
                if let Some(epoch) = self.sites[site].writes() {
                    self.sites[site].flushed();
                    self.branches.get_mut(&epoch).expect("granted").past.clear();
                }
            }
            78..84 => {
                let to = self.rng.usize(0..SITES);
                if let Some((stamp, data)) = self.sites[site].pushable(BlockNo(block)) {
                    let block = BlockNo(block);
                    self.fly(Message::Push {
                        to,
                        by: site,
                        block,
                        stamp,
                        data,
                    });
                }
            }
            84..88 => self.sites[site].open(None),
            88..89 => {
                let from = self.authority.epoch();
                self.sites[site].open(Some(from));
            }
            89..93 => {
                if let Some(epoch) = self.sites[site].writes() {
                    self.branches.get_mut(&epoch).expect("granted").past.clear();
                    self.sites[site].close();
                }
            }
            93..94 => self.crash(site),
            94..97 => {
                // A writer hears that it was replaced before it closes.
                let epoch = self.sites[site].writes();
                if let Some(epoch) = epoch {
                    self.fly(Message::Ask(site, AuthorityRequest::Resume { epoch }));
                }
            }
            _ => {
                self.parted = [false; SITES];
                if self.rng.bool() {
                    self.parted[site] = true;
                }
            }
        }
    }

    fn crash(&mut self, site: usize) {
        self.count.crashes += 1;
        let unflushed = self.sites[site].unflushed();
        let lost = self.rng.usize(0..=unflushed);
        if let Some(epoch) = self.sites[site].writes() {
            let branch = self.branches.get_mut(&epoch).expect("granted");
            assert_eq!(branch.past.len(), unflushed);
            if lost > 0 {
                branch.now = branch.past[unflushed - lost];
            }
            branch.past.clear();
        }
        self.sites[site].restart(lost);
    }

    /// Heals all links, and has one site open and read everything.
    fn settle(&mut self) {
        self.parted = [false; SITES];
        let site = self.rng.usize(0..SITES);
        for round in 0..4000 {
            if let Some(ask) = self.sites[site].asks() {
                self.decide(site, ask);
            }
            while !self.flying.is_empty() {
                self.deliver();
            }
            match self.sites[site].role() {
                SiteRole::Idle => {
                    let held = self.authority.holder().is_some();
                    let from = held.then(|| self.authority.epoch());
                    self.sites[site].open(from);
                }
                SiteRole::Writing(_) => {
                    let all: Vec<_> = (0..BLOCKS).map(|it| self.read(site, it)).collect();
                    if all.iter().all(|it| *it) {
                        return;
                    }
                    // Not the writer it takes itself for: it has to hear of it.
                    let epoch = self.sites[site].writes().expect("writing");
                    self.decide(site, AuthorityRequest::Resume { epoch });
                }
                SiteRole::Opening { .. } | SiteRole::Closing(_) | SiteRole::Resuming(_) => {}
            }
            assert!(
                round < 3999,
                "{:?} never reads everything",
                self.sites[site]
            );
        }
    }
}

#[test]
fn ten_thousand_histories_agree_with_a_single_copy() {
    let mut total = Count::default();
    for seed in 0..10_000 {
        let mut world = World::new(seed);
        for _ in 0..world.rng.u32(100..1500) {
            world.step();
        }
        world.settle();
        let count = world.count;
        total.reads += count.reads;
        total.fetches += count.fetches;
        total.openings += count.openings;
        total.fenced += count.fenced;
        total.crashes += count.crashes;
        total.kept_out += count.kept_out;
    }
    println!("{total:?}");
    for (what, least) in [
        (total.reads, 100_000),
        (total.fetches, 10_000),
        (total.openings, 20_000),
        (total.fenced, 1_000),
        (total.crashes, 10_000),
        (total.kept_out, 1_000),
    ] {
        assert!(what > least, "too little happened: {total:?}");
    }
}
