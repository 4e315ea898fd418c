//! What a fork over several hosts takes, and what crosses the network for it.
//!
//! ```text
//! start   the same number of clones on ever more hosts, and more clones
//! pages   a job that reads what its parent has, and one that takes memory anew:
//!         by unicast and by multicast, with and without page reporting
//! settle  clones that are to need their parent's host no more, and loss
//! ```

use crate::report::{self, Row};
use forkyard_e2e::{Cluster, Links};
use forkyard_types::{CloneResult, ForkResponse, VmInspect};
use std::{
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

/// Between two looks at clones that are on their way.
const LOOK: Duration = Duration::from_millis(20);
/// A guest tells of free pages two seconds after they have become free.
const REPORTED: Duration = Duration::from_secs(8);

#[derive(Debug, clap::Args)]
pub struct Options {
    /// What to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "start,pages,settle"
    )]
    parts: Vec<Part>,
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
    /// Packets that are lost in `settle`, of a hundred
    #[arg(long, default_value_t = 1)]
    loss: u8,
    /// Where cluster.json and cluster.md go
    #[arg(long, default_value = "bench/out")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Start,
    Pages,
    Settle,
}

/// How pages go to several hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Unicast,
    Multicast,
}

impl Way {
    const BOTH: [Self; 2] = [Self::Unicast, Self::Multicast];

    fn name(self) -> &'static str {
        match self {
            Self::Unicast => "unicast",
            Self::Multicast => "multicast",
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
    for reporting in [true, false] {
        if !has(Part::Pages) {
            break;
        }
        let mut bench = Bench::new(options, most, reporting);
        for round in 0..options.rounds {
            for way in Way::BOTH {
                bench.go(way);
                // What is read is sent whether or not free pages are known.
                for job in [Job::Reads, Job::Takes]
                    .into_iter()
                    .skip(usize::from(!reporting))
                {
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
    if has(Part::Settle) {
        let mut bench = Bench::new(options, most, true);
        for round in 0..options.rounds {
            for way in Way::BOTH {
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
    report::write(&options.out, &format!("{options:?}"), &rows);
}

/// What a clone's job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let memory = options.memory.to_string();
        cluster
            .host(0)
            .ok(["run", "tiny", "--name", "p", "--memory", &memory]);
        let bench = Self {
            options,
            cluster,
            way: Way::Multicast,
        };
        bench.sh("mkdir -p /m && mount -t tmpfs -o size=90% m /m");
        bench
    }

    fn sh(&self, script: &str) {
        self.cluster.host(0).sh("p", script);
    }

    /// From now on pages go this way.
    fn go(&mut self, way: Way) {
        if self.way == way {
            return;
        }
        self.way = way;
        let multicast = (way == Way::Multicast).to_string();
        self.cluster.kill_daemon(0);
        self.cluster.tell(0, "FORKYARD_MULTICAST", multicast);
        self.cluster.start(0);
    }

    /// Data that does not pack and that nobody has yet.
    fn fill(&self) {
        let fill = self.options.fill;
        self.sh(&format!("head -c {fill}m /dev/urandom >/m/data"));
    }

    /// Forks `p`; names of the clones, and the number of the host of each.
    fn fork(&self, hosts: u8, clones: u16, more: &[&str]) -> Vec<(usize, String)> {
        let to: Vec<_> = (1..=hosts).map(|host| format!("h{host}")).collect();
        let (count, to) = (clones.to_string(), to.join(","));
        let words = [&["fork", "p", "-n", &count, "--to", &to], more].concat();
        let answer: ForkResponse = self.cluster.host(0).json(words);
        let made = answer.clones.into_iter().map(|clone| {
            let CloneResult::Vm(vm) = clone else {
                panic!("a clone was not made: {clone:?}");
            };
            let host = vm.host.as_deref().and_then(|host| host.strip_prefix('h'));
            let host = host.and_then(|host| host.parse().ok());
            (host.expect("elsewhere"), vm.name.to_string())
        });
        made.collect()
    }

    /// Has all of them do something at once.
    fn all(&self, clones: &[(usize, String)], script: &str) {
        let running = clones.iter().map(|(host, name)| {
            let words = ["exec", name, "--", "sh", "-e", "-c", script];
            self.cluster.host(*host).start(words, "")
        });
        let running: Vec<_> = running.collect();
        for one in running {
            one.wait().exited(0);
        }
    }

    fn remove(&self, clones: &[(usize, String)]) {
        for (host, name) in clones {
            self.cluster.host(*host).ok(["rm", name]);
        }
    }

    /// What passed between two looks at the first host's links.
    fn row(&self, before: &Links, part: &'static str, hosts: u8, clones: u16) -> Row {
        let after = Links::of(self.cluster.host(0));
        let more = |name: &str| after.all(name) - before.all(name);
        let row = Row {
            part,
            hosts,
            clones,
            asked: more("pages_asked"),
            suppressed: more("pages_suppressed"),
            sent: more("pages_sent"),
            resent: more("pages_resent"),
            pushed: more("pages_pushed"),
            bytes: more("bytes_sent"),
            ..Row::default()
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
        let made = self.fork(hosts, clones, &[]);
        let ready = begun.elapsed();
        self.all(&made, "true");
        let done = begun.elapsed();
        let row = self.row(&before, "start", hosts, clones);
        self.remove(&made);
        Row {
            way: self.way.name(),
            reporting: true,
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
                sleep(REPORTED);
                (
                    "takes",
                    format!("head -c {fill}m /dev/zero | tr '\\0' x >/m/own"),
                )
            }
        };
        let before = Links::of(self.cluster.host(0));
        let begun = Instant::now();
        let made = self.fork(hosts, self.options.clones, &[]);
        let ready = begun.elapsed();
        self.all(&made, &script);
        let done = begun.elapsed();
        let row = self.row(&before, part, hosts, self.options.clones);
        self.remove(&made);
        self.sh("rm -f /m/data");
        Row {
            ready: ms(ready),
            done: ms(done),
            ..row
        }
    }

    /// Until all is on the clones' hosts: one clone on each.
    fn settle(&self, hosts: u8) -> Row {
        self.fill();
        let before = Links::of(self.cluster.host(0));
        let begun = Instant::now();
        let made = self.fork(hosts, hosts.into(), &["--settle"]);
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
        self.sh("rm /m/data");
        Row {
            reporting: true,
            ready: ms(ready),
            done: ms(done),
            ..row
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
