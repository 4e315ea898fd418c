//! Benchmark of forks over several hosts: their time, and the traffic for them.
//!
//! ```text
//! start   the same number of clones on ever more hosts, and more clones
//! pages   a job that reads what its parent has, and one that takes memory anew:
//!         by unicast, multicast and push, with and without page reporting
//!         (SnowFlock, figures 8 to 12)
//! settle  clones that are to need their parent's host no more, and loss
//! page    one page's latency, and its parts (SnowFlock, section 4.2)
//! whole   beside a VM that is saved whole, copied and restored (SnowFlock,
//!         table II)
//! agility four parents that fork all the time, to the same hosts (SnowFlock, 4.5.3)
//! mpi     an MPI job whose ranks are on two hosts, in etcd's room and in Slurm's
//! far     one parent forked again and again over a long link
//! moves   a VM that moves over one and back while it writes memory
//! ```

mod agility;
mod far;
mod moves;
mod mpi;
mod page;
mod parts;
mod whole;

use crate::report::{self, Row};
use forkyard_e2e::{Cluster, Links};
use forkyard_types::VmInspect;
use parts::{Clones, Forked, all, fill, fork, passed, remove, run_parent};
use std::{
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

/// Between two looks at clones that are on their way.
const LOOK: Duration = Duration::from_millis(20);
/// A guest tells of some of its free pages every two seconds: of 32 pieces of each size
/// or, if there are more than 512, of a sixteenth. Once it has not for so long, it has told
/// of all.
const QUIET: Duration = Duration::from_secs(8);

#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Measurements to make
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "start,pages,settle,page,whole,agility,far,moves"
    )]
    parts: Vec<Part>,
    /// Transport of pages, in `pages` and `settle`
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "unicast,multicast,push"
    )]
    ways: Vec<Way>,
    /// Jobs of `pages`
    #[arg(long, value_enum, value_delimiter = ',', default_value = "reads,takes")]
    jobs: Vec<Job>,
    /// Numbers of hosts that clones go to; the last is used where one is wanted
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u8).range(1..=64))]
    hosts: Vec<u8>,
    /// Clones of a fork, all hosts together
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=128))]
    clones: u16,
    /// Rounds; what is compared takes turns in each
    #[arg(long, default_value_t = 3)]
    rounds: u16,
    /// Memory of the parent, in MiB
    #[arg(long, default_value_t = 256)]
    memory: u32,
    /// Memory that its job uses, in MiB
    #[arg(long, default_value_t = 96)]
    fill: u32,
    /// Reporting of free pages by guests, in `pages`
    #[arg(long, value_delimiter = ',', default_value = "true,false", action = clap::ArgAction::Set)]
    reporting: Vec<bool>,
    /// In `pages`, these in the place of --memory and --fill, by turns
    #[arg(long, value_delimiter = ',', value_parser = footprint, value_name = "MEMORY:FILL")]
    footprints: Vec<(u32, u32)>,
    /// Packets that are lost in `settle`, of a hundred
    #[arg(long, default_value_t = 1)]
    loss: u8,
    /// Bandwidth of links in `whole` and `agility`, in Mbit/s
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    link: u32,
    /// Round trips of the link in `far` and `moves`, in ms
    #[arg(long, value_delimiter = ',', default_value = "80,20", value_parser = clap::value_parser!(u32).range(0..=1000))]
    round_trips: Vec<u32>,
    /// MiB of memory that a VM writes in a second, in `moves`
    #[arg(long, value_delimiter = ',', default_value = "0,8")]
    dirtying: Vec<u32>,
    /// Rate of the link in `far` and `moves`, in Mbit/s
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    far: u32,
    /// Folder for cluster.json and cluster.md
    #[arg(long, default_value = "bench/out")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Start,
    Pages,
    Settle,
    Page,
    Whole,
    Agility,
    Mpi,
    Far,
    Moves,
}

/// Transport of pages to several hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Way {
    Unicast,
    Multicast,
    /// Multicast, and what lies behind what is asked for comes unasked.
    Push,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Unicast => "unicast",
            Self::Multicast => "multicast",
            Self::Push => "push",
        }
    }
}

/// Measures, and writes what came of it.
pub fn measure(options: &Options) {
    let most = options.hosts.iter().copied().max().unwrap_or(1);
    let has = |part| options.parts.contains(&part);
    let mut rows = Vec::new();
    if has(Part::Start) {
        let bench = Bench::new(options, most, true);
        for round in 0..options.rounds {
            for hosts in &options.hosts {
                for clones in [options.clones, u16::from(*hosts)] {
                    let row = bench.start(*hosts, clones);
                    rows.push(Row { round, ..row });
                }
            }
        }
        bench.cluster.end();
    }
    if has(Part::Pages) {
        for sized in options.footprints() {
            rows.extend(pages(&sized, most));
        }
    }
    if has(Part::Settle) {
        let mut bench = Bench::new(options, most, true);
        // The same for all: what a parent gives up and takes elsewhere is in its images twice.
        bench.fill();
        for round in 0..options.rounds {
            let ways = options.ways.iter().copied();
            // All that settles is pushed in any case.
            for way in ways.filter(|way| *way != Way::Push) {
                bench.go(way);
                for loss in [0, options.loss] {
                    bench.cluster.lose(loss);
                    let row = bench.settle(most);
                    rows.push(Row {
                        round,
                        way: way.name(),
                        loss,
                        ..row
                    });
                }
            }
        }
        bench.cluster.end();
    }
    let mut latencies = Vec::new();
    if has(Part::Page) {
        let bench = Bench::new(options, 1, true);
        latencies = page::measure(&bench);
        bench.cluster.end();
    }
    if has(Part::Whole) {
        rows.extend(whole::measure(options, most));
    }
    if has(Part::Agility) {
        rows.extend(agility::measure(options, most));
    }
    if has(Part::Mpi) {
        rows.extend(mpi::measure(options));
    }
    if has(Part::Far) {
        rows.extend(far::measure(options));
    }
    if has(Part::Moves) {
        rows.extend(moves::measure(options));
    }
    report::write(&options.out, &format!("{options:?}"), &rows, &latencies);
}

/// Jobs that read and take memory, by each way, with and without page reporting.
fn pages(options: &Options, most: u8) -> Vec<Row> {
    let mut rows = Vec::new();
    for reporting in options.reporting.iter().copied() {
        let mut bench = Bench::new(options, most, reporting);
        for round in 0..options.rounds {
            for way in options.ways.iter().copied() {
                bench.go(way);
                // What is read is sent whether or not free pages are known.
                let jobs = options.jobs.iter().copied();
                for job in jobs.filter(|job| reporting || *job == Job::Takes) {
                    let row = bench.pages(job, most);
                    rows.push(Row {
                        round,
                        way: way.name(),
                        reporting,
                        ..row
                    });
                }
            }
        }
        bench.cluster.end();
    }
    rows
}

impl Options {
    /// Makes one for each footprint that was asked for.
    fn footprints(&self) -> Vec<Self> {
        let usual = [(self.memory, self.fill)];
        let asked = match &self.footprints[..] {
            [] => &usual[..],
            some => some,
        };
        let sized = asked.iter().map(|(memory, fill)| Self {
            memory: *memory,
            fill: *fill,
            ..self.clone()
        });
        sized.collect()
    }
}

/// Memory of a parent and what its job uses of it, both in MiB.
fn footprint(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once(':').and_then(|(memory, fill)| {
        let (memory, fill) = (memory.parse().ok()?, fill.parse().ok()?);
        (fill < memory).then_some((memory, fill))
    });
    parsed.ok_or_else(|| format!("{text:?} is no MEMORY:FILL, in MiB, as 1024:400"))
}

/// Work of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Job {
    /// Reads what its parent had.
    Reads,
    /// Takes memory in which its parent once had something, and writes to it.
    Takes,
}

/// Hosts, and a VM `p` on the first.
struct Bench<'a> {
    options: &'a Options,
    cluster: Cluster,
    way: Way,
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options, hosts: u8, reporting: bool) -> Self {
        let reporting = reporting.to_string();
        let told = [("FORKYARD_PAGE_REPORTING", reporting.as_str())];
        let cluster = Cluster::told(hosts + 1, &told);
        run_parent(cluster.host(0), "p", options);
        Self {
            options,
            cluster,
            way: Way::Multicast,
        }
    }

    fn sh(&self, script: &str) {
        self.cluster.host(0).sh("p", script);
    }

    /// From now on pages go this way. The daemon begins anew in any case, and copies
    /// all there is of the parent: no image has what an earlier fork left.
    fn go(&mut self, way: Way) {
        self.way = way;
        let multicast = (way != Way::Unicast).to_string();
        let push = if way == Way::Push {
            "everything"
        } else {
            "working-set"
        };
        self.cluster.kill_daemon(0);
        self.cluster.tell(0, "FORKYARD_MULTICAST", multicast);
        self.cluster.tell(0, "FORKYARD_PUSH", push);
        self.cluster.start(0);
    }

    /// Data that does not pack and that no host has yet.
    fn fill(&self) {
        self.sh(&fill(self.options));
    }

    /// Forks `p`.
    fn fork(&self, hosts: u8, clones: u16, more: &[&str]) -> Forked {
        let to: Vec<_> = (1..=hosts).map(usize::from).collect();
        fork(&self.cluster, (0, "p"), &to, clones, more)
    }

    fn all(&self, clones: &Clones, script: &str) {
        all(&self.cluster, clones, script);
    }

    fn remove(&self, clones: &Clones) {
        remove(&self.cluster, clones);
    }

    /// Makes a row of the traffic between two looks at the first host's links.
    fn row(&self, before: &Links, part: &'static str, hosts: u8, clones: u16) -> Row {
        let row = Row {
            part,
            hosts,
            clones,
            memory: self.options.memory,
            fill: self.options.fill,
            ..passed(&self.cluster, 0, before)
        };
        eprintln!(
            "bench-cluster: {part}, {hosts} hosts, {clones} clones, {:?}",
            self.way
        );
        row
    }

    /// Until clones are ready, and until each has run a command.
    fn start(&self, hosts: u8, clones: u16) -> Row {
        let before = Links::of(self.cluster.host(0));
        let begun = Instant::now();
        let Forked { made, running } = self.fork(hosts, clones, &[]);
        let ready = begun.elapsed();
        self.all(&made, "true");
        let done = begun.elapsed();
        let row = self.row(&before, "start", hosts, clones);
        self.remove(&made);
        Row {
            way: self.way.name(),
            reporting: true,
            running: ms(running),
            ready: ms(ready),
            done: ms(done),
            ..row
        }
    }

    /// Until all have done their job.
    fn pages(&self, job: Job, hosts: u8) -> Row {
        self.fill();
        let fill = self.options.fill;
        let (part, script) = match job {
            Job::Reads => ("reads", "md5sum /m/data >/dev/null".to_owned()),
            Job::Takes => {
                self.sh("rm /m/data");
                self.told();
                (
                    "takes",
                    format!("dd if=/dev/zero of=/m/own bs=1M count={fill} 2>/dev/null"),
                )
            }
        };
        let before = Links::of(self.cluster.host(0));
        let begun = Instant::now();
        let Forked { made, running } = self.fork(hosts, self.options.clones, &[]);
        let ready = begun.elapsed();
        self.all(&made, &script);
        let done = begun.elapsed();
        let row = self.row(&before, part, hosts, self.options.clones);
        self.remove(&made);
        self.sh("rm -f /m/data");
        Row {
            running: ms(running),
            ready: ms(ready),
            done: ms(done),
            ..row
        }
    }

    /// Waits until the guest has told of what it has freed.
    fn told(&self) {
        let own = || {
            let seen = self.cluster.host(0).get("/v1/vms/p/inspect");
            let seen: VmInspect = serde_json::from_str(&seen).expect("an answer");
            seen.private_pages
        };
        let mut before = own();
        loop {
            sleep(QUIET);
            let now = own();
            if now >= before {
                break;
            }
            before = now;
        }
    }

    /// Until all is on the clones' hosts: one clone on each.
    fn settle(&self, hosts: u8) -> Row {
        let before = Links::of(self.cluster.host(0));
        let begun = Instant::now();
        let Forked { made, running } = self.fork(hosts, hosts.into(), &["--settle"]);
        let ready = begun.elapsed();
        for (host, name) in &made {
            let path = format!("/v1/vms/{name}/inspect");
            let awaits = || {
                let seen = self.cluster.host(*host).get(&path);
                let seen: VmInspect = serde_json::from_str(&seen).expect("an answer");
                seen.vm.awaits
            };
            while !awaits().is_empty() {
                sleep(LOOK);
            }
        }
        let done = begun.elapsed();
        let row = self.row(&before, "settle", hosts, hosts.into());
        self.remove(&made);
        Row {
            reporting: true,
            running: ms(running),
            ready: ms(ready),
            done: ms(done),
            ..row
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
