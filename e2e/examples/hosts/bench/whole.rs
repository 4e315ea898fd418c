//! The way it was done before: a VM is saved whole by QEMU, the file is copied to
//! every host, and each restores it (SnowFlock, table II: 70.6 s and 41.8 MB by
//! fork, 157.3 s and 1124 MB by multicast, 412.3 s and 32 × 1124 MB by NFS).
//!
//! One clone to a host, and a job in each. The baseline is spared what a cloud
//! does besides: every host has the disk already, and guests have no network. It
//! copies by TCP, to all at once, and by `udp-sender` of udpcast, which is made for
//! that. What is counted is what left the parent's host.

use super::{
    Bench, Options, ms,
    parts::{Forked, MOUNT, fill, looks_up, passed},
};
use crate::report::Row;
use forkyard_e2e::{Cluster, Host, Links};
use forkyard_measure::{Accel, BaselineSources, BenchError, Plain, Saved};
use std::{
    env,
    fs::File,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Instant,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Port at which the file is to be had.
const COPIES: u16 = 7600;

/// By what the file goes to the hosts.
#[derive(Clone, Copy, Debug)]
enum Copying {
    Tcp,
    Udpcast,
}

/// Forks and copies take turns.
pub fn measure(options: &Options, hosts: u8) -> Vec<Row> {
    let bench = Bench::new(options, hosts, true);
    bench.cluster.limit(options.link);
    bench.fill();
    let runtime = Runtime::new().expect("threads");
    let mut baseline = Baseline::boot(&bench, &runtime);
    let mut rows = Vec::new();
    for round in 0..options.rounds {
        for copying in [None, Some(Copying::Tcp), Some(Copying::Udpcast)] {
            let before = sent(bench.cluster.host(0));
            let row = match copying {
                None => forked(&bench, hosts),
                Some(copying) => baseline.copied(&bench.cluster, copying, hosts),
            };
            let row = Row {
                part: "whole",
                round,
                hosts,
                clones: hosts.into(),
                reporting: true,
                bytes: sent(bench.cluster.host(0)) - before,
                ..row
            };
            eprintln!("bench-cluster: whole, {}, {} ms", row.way, row.done);
            rows.push(row);
        }
    }
    drop(baseline);
    bench.cluster.end();
    rows
}

/// By a fork.
fn forked(bench: &Bench<'_>, hosts: u8) -> Row {
    let before = Links::of(bench.cluster.host(0));
    let begun = Instant::now();
    let Forked { made, running } = bench.fork(hosts, hosts.into(), &[]);
    let ready = begun.elapsed();
    bench.all(&made, &looks_up(bench.options));
    let done = begun.elapsed();
    let row = passed(&bench.cluster, 0, &before);
    bench.remove(&made);
    Row {
        way: "fork",
        running: ms(running),
        ready: ms(ready),
        done: ms(done),
        ..row
    }
}

/// A guest as large as `p`, with as much in it.
struct Baseline<'a> {
    runtime: &'a Runtime,
    plain: Plain,
    /// Folder of copies, of all hosts: in memory.
    folder: TempDir,
    job: String,
}

impl<'a> Baseline<'a> {
    fn boot(bench: &Bench<'_>, runtime: &'a Runtime) -> Self {
        let (options, host) = (bench.options, bench.cluster.host(0));
        let places = BaselineSources {
            cache: host.cache().to_owned(),
            share: host.dist().join("share/forkyard"),
        };
        // As the hosts of tests have it.
        let accel = env::var("FORKYARD_E2E_ACCEL");
        let accel = accel.ok().and_then(|name| Accel::named(&name));
        let accel = accel.unwrap_or_default();
        let booted = async {
            let plain = Plain::boot(&places, accel, 1, options.memory.into(), 0).await?;
            let data = format!("{MOUNT}; {}", fill(options));
            plain.command(&["sh", "-e", "-c", &data]).await?;
            Ok::<_, BenchError>(plain)
        };
        Self {
            plain: runtime.block_on(booted).expect("the baseline's parent"),
            runtime,
            folder: TempDir::new_in("/dev/shm").expect("a folder"),
            job: looks_up(options),
        }
    }

    fn copied(&mut self, cluster: &Cluster, copying: Copying, hosts: u8) -> Row {
        let begun = Instant::now();
        let saved = self.runtime.block_on(self.plain.save()).expect("saved");
        let copies: Vec<_> = (1..=hosts)
            .map(|host| self.folder.path().join(host.to_string()))
            .collect();
        let way = match copying {
            Copying::Tcp => {
                by_tcp(cluster, &saved.memory, &copies);
                "copy, TCP"
            }
            Copying::Udpcast => {
                by_udpcast(cluster, &saved.memory, &copies);
                "copy, multicast"
            }
        };
        let ready = begun.elapsed();
        for copy in &copies {
            let size = copy.metadata().expect("a copy").len();
            assert_eq!(size, saved.size.0, "{way}: the copy is not whole");
        }
        let job = ["sh", "-e", "-c", &self.job];
        let restored = self.plain.restore(&saved, &copies, &job);
        self.runtime.block_on(restored).expect("restored");
        let done = begun.elapsed();
        forget(&saved, &copies);
        Row {
            way,
            ready: ms(ready),
            done: ms(done),
            ..Row::default()
        }
    }
}

fn forget(saved: &Saved, copies: &[PathBuf]) {
    for file in copies.iter().chain([&saved.memory]) {
        std::fs::remove_file(file).expect("removed");
    }
}

/// To each host a connection of its own, all at once, as from a file server.
fn by_tcp(cluster: &Cluster, file: &Path, copies: &[PathBuf]) {
    let at = SocketAddr::new(cluster.address(0).into(), COPIES);
    let listener = cluster.host(0).within(move || TcpListener::bind(at));
    let listener = listener.expect("bound");
    thread::scope(|scope| {
        for (host, copy) in (1..).zip(copies) {
            let connect = move || TcpStream::connect(at);
            let mut from = cluster.host(host).within(connect).expect("connected");
            let (mut to, _) = listener.accept().expect("accepted");
            scope.spawn(move || {
                let mut file = File::open(file).expect("there");
                io::copy(&mut file, &mut to).expect("sent");
            });
            scope.spawn(move || {
                let mut copy = File::create(copy).expect("made");
                io::copy(&mut from, &mut copy).expect("received");
            });
        }
    });
}

/// To all hosts together.
fn by_udpcast(cluster: &Cluster, file: &Path, copies: &[PathBuf]) {
    let started = |host: &Host, program: &str, file: &Path, more: &[&str]| {
        let mut command = Command::new(program);
        command.args(["--interface", "up0", "--nokbd", "--file"]);
        command.arg(file).args(more);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = host.within(move || command.spawn());
        child.expect("udpcast: is the Debian package there?")
    };
    let receivers = (1..).zip(copies).map(|(number, copy)| {
        let host = cluster.host(number);
        started(host, "udp-receiver", copy, &[])
    });
    let mut all: Vec<_> = receivers.collect();
    let count = copies.len().to_string();
    let more = ["--min-receivers", &count, "--ttl", "1"];
    all.push(started(cluster.host(0), "udp-sender", file, &more));
    for mut child in all {
        let status = child.wait().expect("a child of ours");
        assert!(status.success(), "udpcast: {status}");
    }
}

/// Bytes that have left a host.
fn sent(host: &Host) -> u64 {
    let devices = host.within(|| std::fs::read_to_string("/proc/thread-self/net/dev"));
    let devices = devices.expect("readable");
    let uplink = devices
        .lines()
        .find_map(|line| line.trim().strip_prefix("up0:"));
    let sent = uplink.and_then(|counts| counts.split_whitespace().nth(8));
    sent.and_then(|count| count.parse().ok()).expect("a count")
}
