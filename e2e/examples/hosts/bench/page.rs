//! One page's latency, and its parts (SnowFlock, section 4.2: 275 µs).
//!
//! ```text
//! away   a page of the clone's memory that its host does not have, read from the
//!        pager's file as the guest's fault does
//! here   the same page again: it is in the pager now
//! echo   a datagram of the same size there and back, by plain sockets
//! ```
//!
//! One after the other, by turns. What is left of *away* without the two others is the
//! protocol's, at both ends, and the wait for its threads.

use super::{Bench, LOOK};
use crate::report::Latency;
use forkyard_types::{ImageView, PAGE_SIZE};
use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    net::{SocketAddr, UdpSocket},
    os::unix::fs::FileExt,
    path::PathBuf,
    thread::{JoinHandle, sleep, spawn},
    time::{Duration, Instant},
};

/// Pages that are read, and echoes.
const SAMPLES: usize = 2000;
/// A request for one page, and one of the four datagrams that a page takes which
/// does not pack, without what IP and UDP add.
const ASKED: usize = 130;
const ANSWERED: usize = 1100;
const ANSWERS: usize = 4;
/// Port of the echo; nothing else of ours listens there.
const ECHO: u16 = 7500;

/// Times of one kind, each.
#[derive(Default)]
struct Times {
    away: Vec<Duration>,
    here: Vec<Duration>,
    echo: Vec<Duration>,
}

/// Measures all of them, over one link.
pub fn measure(bench: &Bench<'_>) -> Vec<Latency> {
    bench.fill();
    let made = bench.fork(1, 1, &[]).made;
    // What the clone itself needs has come.
    bench.all(&made, "true");
    sleep(LOOK * 50);
    let files = files(bench);
    let mut echo = Echo::start(bench);
    // Its disk may be as large, and has hardly anything that does not pack.
    let (mut times, echo) = bench.cluster.host(1).within(move || {
        let of_each = files.iter().map(|file| read(file, &mut echo));
        (of_each.max_by_key(|times| times.away.len()), echo)
    });
    echo.end();
    let times = times.as_mut().expect("the memory of a clone");
    bench.remove(&made);
    eprintln!("bench-cluster: page, {} read", times.away.len());
    vec![
        Latency::of("away", &mut times.away),
        Latency::of("here", &mut times.here),
        Latency::of("echo", &mut times.echo),
    ]
}

/// Files of the clone that are as large as its memory.
fn files(bench: &Bench<'_>) -> Vec<PathBuf> {
    let host = bench.cluster.host(1);
    let images: Vec<ImageView> = serde_json::from_str(&host.get("/v1/pages")).expect("images");
    let folder = host.folder().join("run/pages");
    let size = u64::from(bench.options.memory) << 20;
    let files: Vec<_> = images
        .iter()
        .map(|image| folder.join(image.id.to_string()))
        .collect();
    let is_memory = move |file: &PathBuf| file.metadata().is_ok_and(|file| file.len() == size);
    host.within(move || files.into_iter().filter(is_memory).collect())
}

/// Times for pages that do not pack, drawn from all of memory.
fn read(memory: &PathBuf, echo: &mut Echo) -> Times {
    // As QEMU opens it: what is read for writing passes the kernel's cache by.
    let mut file = File::options()
        .read(true)
        .write(true)
        .open(memory)
        .expect("opened");
    let pages = file.seek(SeekFrom::End(0)).expect("a size") / PAGE_SIZE as u64;
    let mut draw = File::open("/dev/urandom").expect("there");
    let mut times = Times::default();
    for _ in 0..SAMPLES * 20 {
        if times.away.len() == SAMPLES {
            break;
        }
        let mut number = [0; 8];
        draw.read_exact(&mut number).expect("random numbers");
        let at = (u64::from_ne_bytes(number) % pages) * PAGE_SIZE as u64;
        let mut page = [0; PAGE_SIZE];
        let begun = Instant::now();
        file.read_exact_at(&mut page, at).expect("a page");
        let first = begun.elapsed();
        let begun = Instant::now();
        file.read_exact_at(&mut page, at).expect("the page");
        let second = begun.elapsed();
        if does_not_pack(&page) {
            times.away.push(first);
            times.here.push(second);
            times.echo.push(echo.once());
        }
    }
    times
}

/// Tells whether nearly every byte there is occurs, which in a page of anything
/// but noise they do not.
fn does_not_pack(page: &[u8]) -> bool {
    let mut seen = [false; 256];
    for byte in page {
        seen[usize::from(*byte)] = true;
    }
    seen.iter().filter(|seen| **seen).count() > 250
}

/// Echo of the same number of bytes, in as many datagrams.
struct Echo {
    client: UdpSocket,
    answering: JoinHandle<()>,
}

impl Echo {
    fn start(bench: &Bench<'_>) -> Self {
        let at = SocketAddr::new(bench.cluster.address(0).into(), ECHO);
        let from = SocketAddr::new(bench.cluster.address(1).into(), 0);
        let server = bench.cluster.host(0).within(move || UdpSocket::bind(at));
        let server = server.expect("bound");
        let answering = spawn(move || {
            let mut buffer = [0; 2000];
            while let Ok((ASKED, from)) = server.recv_from(&mut buffer) {
                for _ in 0..ANSWERS {
                    server.send_to(&[0; ANSWERED], from).expect("sent");
                }
            }
        });
        let client = bench.cluster.host(1).within(move || UdpSocket::bind(from));
        let client = client.expect("bound");
        client.connect(at).expect("connected");
        Self { client, answering }
    }

    fn once(&mut self) -> Duration {
        let mut buffer = [0; 2000];
        let begun = Instant::now();
        self.client.send(&[0; ASKED]).expect("sent");
        for _ in 0..ANSWERS {
            self.client.recv(&mut buffer).expect("answered");
        }
        begun.elapsed()
    }

    fn end(self) {
        self.client.send(&[0]).expect("sent");
        self.answering.join().expect("it ends");
    }
}
