//! A process that has memory and does with it what it is told: this test
//! program, run again.

use forkyard_capture::{HostAddr, MemoryRegion};
use forkyard_sys_host::mapping::Mapping;
use forkyard_types::{PAGE_SIZE, PageCount};
use std::env;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// Page by page what a puppet may be told to do.
#[derive(Clone, Copy, Debug)]
#[allow(
    dead_code,
    reason = "not every test program that has puppets needs all"
)]
pub enum Order {
    /// Say the first byte of this page.
    Read(u64),
    /// Fill this page with bytes made from this one; 0 makes zeros.
    Fill(u64, u8),
    /// Give this page back to the kernel.
    Discard(u64),
}

/// A running puppet; killed on drop.
pub struct Puppet {
    child: Child,
    orders: ChildStdin,
    says: BufReader<ChildStdout>,
    region: MemoryRegion,
}

const PAGES: &str = "FORKYARD_PUPPET_PAGES";
const FILE: &str = "FORKYARD_PUPPET_FILE";
const MARK: &str = "puppet:";

/// Returns the page that `Order::Fill` makes of a byte.
pub fn pattern(byte: u8) -> [u8; PAGE_SIZE] {
    std::array::from_fn(|i| {
        if byte == 0 {
            0
        } else {
            byte.wrapping_add((i % 251).to_le_bytes()[0])
        }
    })
}

impl Puppet {
    /// A process with anonymous memory, or with a private view of `file`.
    pub fn start(pages: u64, file: Option<&Path>) -> Self {
        let mut command = Command::new(env::current_exe().expect("we are a program"));
        command.args(["puppet::be_a_puppet", "--exact", "--ignored", "--nocapture"]);
        command
            .env(PAGES, pages.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(file) = file {
            command.env(FILE, file);
        }
        let mut child = command.spawn().expect("starts");
        let orders = child.stdin.take().expect("piped");
        let says = BufReader::new(child.stdout.take().expect("piped"));
        let region = MemoryRegion {
            start: HostAddr(0),
            pages: PageCount(pages),
        };
        let mut puppet = Self {
            child,
            orders,
            says,
            region,
        };
        puppet.region.start = HostAddr(puppet.hear().expect("says where its memory is"));
        puppet
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn region(&self) -> MemoryRegion {
        self.region
    }

    /// Has it do something and waits until it has; answers the byte read, or
    /// `None` if it died of the order.
    pub fn tell(&mut self, order: Order) -> Option<u8> {
        self.send(order);
        self.hear().map(|byte| u8::try_from(byte).expect("a byte"))
    }

    /// Has it begin something that may take long.
    pub fn send(&mut self, order: Order) {
        let text = match order {
            Order::Read(page) => format!("read {page} 0"),
            Order::Fill(page, byte) => format!("fill {page} {byte}"),
            Order::Discard(page) => format!("discard {page} 0"),
        };
        writeln!(self.orders, "{text}").expect("listens");
    }

    /// Waits for what it says next.
    pub fn hear(&mut self) -> Option<u64> {
        let mut line = String::new();
        while self.says.read_line(&mut line).expect("text") > 0 {
            if let Some((_, said)) = line.split_once(MARK) {
                return Some(said.trim().parse().expect("a number"));
            }
            line.clear();
        }
        None
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) -> ExitStatus {
        self.child.kill().expect("ours");
        self.child.wait().expect("ours")
    }

    /// Waits until it has ended by itself.
    #[allow(
        dead_code,
        reason = "not every test program that has puppets needs all"
    )]
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("ours")
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "run by other tests, in a process of its own"]
fn be_a_puppet() {
    let pages: usize = env::var(PAGES)
        .expect("started as a puppet")
        .parse()
        .expect("a number");
    let size = NonZeroUsize::new(pages * PAGE_SIZE).expect("some pages");
    let memory = match env::var_os(FILE) {
        Some(path) => {
            let file = File::options()
                .read(true)
                .write(true)
                .open(path)
                .expect("opens");
            Mapping::private(&file, size).expect("maps")
        }
        None => Mapping::anonymous(size).expect("maps"),
    };
    println!("\n{MARK}{}", memory.address().0);
    for order in io::stdin().lines() {
        let order = order.expect("text");
        let words: Vec<&str> = order.split(' ').collect();
        let [verb, page, byte] = words[..] else {
            panic!("not an order: {order}")
        };
        let offset = page.parse::<usize>().expect("a number") * PAGE_SIZE;
        let mut said = [0];
        match verb {
            "read" => memory.read(offset, &mut said).expect("inside"),
            "fill" => {
                memory
                    .write(offset, &pattern(byte.parse().expect("a byte")))
                    .expect("inside");
            }
            "discard" => memory.discard(offset, PAGE_SIZE).expect("inside"),
            _ => panic!("not an order: {order}"),
        }
        println!("\n{MARK}{}", said[0]);
    }
}
