//! A Slurm of one's own, in a temporary folder: for tests, which take the real one.
//! It ends with this value, and with the thread that started it if that is killed.

use std::{
    ffi::OsStr,
    fs::{self, File, Permissions},
    io,
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Time it may take until every node is idle.
const START: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);
/// Ports may be taken between our look and its.
const TRIES: usize = 5;

/// A node to be: its name, processors and MiB of memory, as Slurm is told.
pub type NodeOf<'a> = (&'a str, u32, u64);

/// A Slurm that runs: munged, slurmctld, and a slurmd for each node.
#[derive(Debug)]
pub struct SlurmServer {
    children: Vec<Child>,
    folder: TempDir,
}

impl SlurmServer {
    /// Starts one on this address of the calling thread's network, with these nodes.
    /// Blocks until all are idle. Takes a file system that its temporary folder is on
    /// to be visible to its users.
    pub fn start_on(address: Ipv4Addr, nodes: &[NodeOf<'_>]) -> io::Result<Self> {
        let mut failed = io::Error::other("never tried");
        for _ in 0..TRIES {
            match Self::try_start(address, nodes) {
                Ok(server) => return Ok(server),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn try_start(address: Ipv4Addr, nodes: &[NodeOf<'_>]) -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("forkyard-slurm.")
            .tempdir()?;
        // Munge wants no other user to be able to write here, and clients to pass.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        let conf = folder.path().join("slurm.conf");
        fs::write(&conf, configuration(folder.path(), address, nodes)?)?;
        let mut server = Self {
            children: Vec::new(),
            folder,
        };
        server.munge()?;
        server.run("slurmctld", &["-D".as_ref(), "-f".as_ref(), conf.as_ref()])?;
        for (name, ..) in nodes {
            server.run(
                "slurmd",
                &[
                    "-D".as_ref(),
                    "-N".as_ref(),
                    name.as_ref(),
                    "-f".as_ref(),
                    conf.as_ref(),
                ],
            )?;
        }
        server.wait(nodes.len())?;
        Ok(server)
    }

    /// Returns the value of `SLURM_CONF` with which its commands find it.
    pub fn conf(&self) -> PathBuf {
        self.folder.path().join("slurm.conf")
    }

    fn munge(&mut self) -> io::Result<()> {
        let folder = self.folder.path().to_owned();
        let key = folder.join("munge.key");
        let mut secret = [0; 128];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        fs::write(&key, secret)?;
        fs::set_permissions(&key, Permissions::from_mode(0o600))?;
        let option = |name: &str, file: &str| format!("--{name}={}", folder.join(file).display());
        let options = [
            option("key-file", "munge.key"),
            option("socket", "munge.socket"),
            option("pid-file", "munged.pid"),
            option("log-file", "munged.log"),
            option("seed-file", "munged.seed"),
        ];
        // Forced: it need not be a user of its own here.
        let mut words: Vec<&OsStr> = vec!["--foreground".as_ref(), "--force".as_ref()];
        words.extend(options.iter().map(OsStr::new));
        self.run("munged", &words)?;
        self.until(|server| server.folder.path().join("munge.socket").exists())
    }

    fn run(&mut self, program: &str, words: &[&OsStr]) -> io::Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", program])
            .args(words)
            .env("PATH", path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| {
                let text = format!(
                    "{program} cannot be run: {error}; Debian has it in slurmctld, slurmd and munge"
                );
                io::Error::new(error.kind(), text)
            })?;
        self.children.push(child);
        Ok(())
    }

    fn wait(&mut self, nodes: usize) -> io::Result<()> {
        self.until(|server| {
            let shown = command(&server.conf(), "sinfo", &["-h", "-N", "-o", "%T"]);
            shown.is_ok_and(|shown| shown.lines().filter(|state| *state == "idle").count() == nodes)
        })
    }

    fn until(&mut self, holds: impl Fn(&Self) -> bool) -> io::Result<()> {
        let begun = Instant::now();
        while !holds(self) {
            let mut ended = false;
            for child in &mut self.children {
                ended |= child.try_wait()?.is_some();
            }
            if ended || begun.elapsed() > START {
                let log = fs::read_to_string(self.folder.path().join("log"))?;
                let last: Vec<_> = log.lines().rev().take(20).collect();
                return Err(io::Error::other(format!("Slurm did not start: {last:#?}")));
            }
            sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for SlurmServer {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            // One that has ended already cannot be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a command of the Slurm of this configuration; what that printed.
pub fn command(conf: &Path, program: &str, words: &[impl AsRef<OsStr>]) -> io::Result<String> {
    let mut command = Command::new(program);
    let output = command
        .args(words)
        .env("SLURM_CONF", conf)
        .stdin(Stdio::null())
        .output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(format!(
            "{program} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

/// Returns the path with the folders of Debian's daemons, which not every user's PATH names.
fn path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/sbin:/sbin")
}

fn configuration(folder: &Path, address: Ipv4Addr, nodes: &[NodeOf<'_>]) -> io::Result<String> {
    let free = || Ok::<_, io::Error>(TcpListener::bind((address, 0))?.local_addr()?.port());
    let host = nix::unistd::gethostname()?;
    let host = host.to_string_lossy();
    let user = nix::unistd::User::from_uid(nix::unistd::getuid())?
        .ok_or_else(|| io::Error::other("this process's user has no name"))?
        .name;
    let at = folder.display();
    let mut text = format!(
        "ClusterName=test\n\
         SlurmctldHost={host}({address})\n\
         SlurmctldPort={}\n\
         SlurmUser={user}\n\
         SlurmdUser={user}\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={at}/munge.socket\n\
         StateSaveLocation={at}/state\n\
         SlurmdSpoolDir={at}/spool-%n\n\
         SlurmctldPidFile={at}/slurmctld.pid\n\
         SlurmdPidFile={at}/slurmd-%n.pid\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         MpiDefault=none\n\
         ReturnToService=2\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_CPU_Memory\n\
         SlurmdParameters=config_overrides\n\
         PartitionName=main Nodes=ALL Default=YES State=UP\n",
        free()?
    );
    for (name, cpus, mib) in nodes {
        let line = format!(
            "NodeName={name} NodeHostname={host} NodeAddr={address} Port={} CPUs={cpus} RealMemory={mib}\n",
            free()?
        );
        text.push_str(&line);
    }
    Ok(text)
}
