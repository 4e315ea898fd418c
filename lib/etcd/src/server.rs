//! An etcd of one's own, on loopback, in a temporary folder: for tests, which
//! take the real one. It ends with this value, and with the thread that
//! started it if that is killed.

use crate::{Endpoint, Etcd};
use nix::sys::statvfs::statvfs;
use std::{
    fs::File,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Time it may take to be healthy.
const START: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// Memory that passes for a folder, where a machine has it; and bytes of it that are
/// enough: some log is made room for in advance.
const MEMORY: (&str, u64) = ("/dev/shm", 1 << 30);
/// Ports may be taken between our look and its.
const TRIES: usize = 5;

/// An etcd that runs.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
    peers: SocketAddr,
    folder: TempDir,
}

impl Server {
    /// Starts one on 127.0.0.1.
    pub fn start() -> io::Result<Self> {
        Self::start_on(Ipv4Addr::LOCALHOST)
    }

    /// Starts one on this address of the calling thread's network. Blocks
    /// until it is healthy.
    pub fn start_on(address: Ipv4Addr) -> io::Result<Self> {
        let mut failed = io::Error::other("never tried");
        for _ in 0..TRIES {
            let folder = folder()?;
            let (clients, peers) = (free(address)?, free(address)?);
            let child = spawn(&folder, clients, peers)?;
            let mut server = Self {
                child,
                address: clients,
                peers,
                folder,
            };
            match server.wait() {
                Ok(()) => return Ok(server),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Kills it as a crash would; its data stays.
    pub fn stop(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Starts it again with the data it had.
    pub fn go_on(&mut self) -> io::Result<()> {
        self.child = spawn(&self.folder, self.address, self.peers)?;
        self.wait()
    }

    /// Returns its address.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            secure: false,
            host: self.address.ip().to_string(),
            port: self.address.port(),
        }
    }

    /// A client of it.
    pub fn client(&self) -> Etcd {
        Etcd::new(vec![self.endpoint()], None)
    }

    fn wait(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        while !healthy(self.address) {
            let ended = self.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > START {
                let log = std::fs::read_to_string(self.folder.path().join("log"))?;
                let last: Vec<_> = log.lines().rev().take(5).collect();
                return Err(io::Error::other(format!("etcd did not start: {last:?}")));
            }
            sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already cannot be killed.
        let _ = self.stop();
    }
}

/// In memory, if there is room: nothing of it is kept, and a disk that is busy with
/// what was just compiled takes so long to sync that leases run out.
fn folder() -> io::Result<TempDir> {
    let mut folder = tempfile::Builder::new();
    folder.prefix("forkyard-etcd.");
    let (memory, enough) = MEMORY;
    let has_room =
        statvfs(memory).is_ok_and(|of| of.blocks_available() * of.fragment_size() >= enough);
    match has_room {
        true => folder.tempdir_in(memory).or_else(|_| folder.tempdir()),
        false => folder.tempdir(),
    }
}

fn spawn(folder: &TempDir, clients: SocketAddr, peers: SocketAddr) -> io::Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.path().join("log"))?;
    let (clients, peers) = (format!("http://{clients}"), format!("http://{peers}"));
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "etcd", "--logger", "zap"])
        .args(["--log-outputs", "stderr", "--data-dir"])
        .arg(folder.path().join("data"))
        .args([
            "--listen-client-urls",
            &clients,
            "--advertise-client-urls",
            &clients,
        ])
        .args([
            "--listen-peer-urls",
            &peers,
            "--initial-advertise-peer-urls",
            &peers,
        ])
        .args(["--initial-cluster", &format!("default={peers}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(|error| {
            let text = format!("etcd cannot be run: {error}; Debian has it as etcd-server");
            io::Error::new(error.kind(), text)
        })
}

fn free(address: Ipv4Addr) -> io::Result<SocketAddr> {
    TcpListener::bind((address, 0))?.local_addr()
}

fn healthy(address: SocketAddr) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, io::Error>(answer.contains("\"true\""))
    };
    ask().unwrap_or(false)
}
