//! Object stores, reached by `forkyard-porter`: a process for each order, which ends with this one.
//!
//! Its account of a store is as good as the store's own: manifests are opened, and pieces
//! compared with them, by those that asked. It is confined: it has the files of its order, a network if the
//! store is on one, no other process in sight, and none of root's rights.

use super::SubstrateError;
use crate::{Host, HostError, blocking, error::check_store};
use forkyard_confine::{Confinement, Lifespan, Network, Who, confine};
use forkyard_objects::{
    LONGEST, Root, StoreAddress,
    order::{Done, Failed, Order, Said, Work},
    settings,
};
use forkyard_sys_host::process::spawn_first;
use std::{
    env, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{ChildStdin, ChildStdout},
};

/// The program.
const PORTER: &str = "forkyard-porter";
/// Beginnings of the variables that it gets: of keys, ways to servers and certificates.
const VARIABLES: [&str; 5] = ["AWS_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
/// Variables that name a file or folder which it reads.
const FILES: [&str; 3] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
];
/// Largest file that it writes: 4 TiB.
const LARGEST: u64 = 4 << 40;
/// Most bytes of a line that it says: a manifest, in which each byte may be written as six.
const LINE: u64 = 6 * LONGEST + (1 << 16);

/// The operator's choices of object stores.
#[derive(Clone, Debug, Default)]
pub struct Stores {
    /// File with settings and keys.
    pub settings: Option<PathBuf>,
    /// Store that the pool is backed up to.
    pub backup: Option<StoreAddress>,
}

/// The operator's choices, once they are known.
pub(crate) type Chosen = OnceLock<Stores>;

impl Host {
    /// Has a store be worked on. Dropped, the work ends.
    pub(super) async fn carry(
        &self,
        store: &StoreAddress,
        work: Work,
        mut each: impl FnMut(Said) + Send,
    ) -> Result<Done, HostError> {
        let order = Order {
            store: store.clone(),
            settings: self
                .substrates
                .stores
                .get()
                .and_then(|it| it.settings.clone()),
            work,
        };
        let program = self.parts.folders.bin.join(PORTER);
        let ran = run(program, order, &mut each).await?;
        ran.map_err(|source| {
            let store = store.to_string();
            SubstrateError::Store { store, source }.into()
        })
    }
}

async fn run(
    program: PathBuf,
    order: Order,
    each: &mut (impl FnMut(Said) + Send),
) -> Result<Result<Done, Failed>, HostError> {
    let mut line = crate::to_text(&order)?.into_bytes();
    line.push(b'\n');
    let path = program.clone();
    let started = blocking(move || start(&program, &order)).await?;
    let mut running = match started {
        Ok(running) => running,
        Err(failed) => return Ok(Err(failed)),
    };
    let talked = async {
        // It stays open: at its end the program ends, too.
        let mut input = running.input()?;
        input.write_all(&line).await?;
        input.flush().await?;
        let mut last = None;
        let mut output = BufReader::new(running.output()?);
        let mut said = Vec::new();
        loop {
            said.clear();
            let mut bounded = (&mut output).take(LINE);
            if bounded.read_until(b'\n', &mut said).await? == 0 {
                break;
            }
            match serde_json::from_slice(&said)? {
                Said::Done(done) => last = Some(Ok(done)),
                Said::Failed(failed) => last = Some(Err(failed)),
                manifest @ Said::Manifest { .. } => each(manifest),
            }
        }
        drop(input);
        let status = tokio::task::spawn_blocking(move || running.0.wait()).await;
        let status = status.map_err(io::Error::other)??;
        last.ok_or_else(|| io::Error::other(format!("it gave no answer: {status}")))
    };
    talked.await.map_err(HostError::io("run", &path))
}

/// The program while it works. Dropped, it is ended.
#[derive(Debug)]
struct Running(Child);

impl Running {
    fn input(&mut self) -> io::Result<ChildStdin> {
        let input = self.0.stdin.take().ok_or_else(no_pipe)?;
        ChildStdin::from_std(input)
    }

    fn output(&mut self) -> io::Result<ChildStdout> {
        let output = self.0.stdout.take().ok_or_else(no_pipe)?;
        ChildStdout::from_std(output)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // No error if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn no_pipe() -> io::Error {
    io::Error::other("it has no pipe")
}

/// Starts the program with what its order needs. Blocks for some milliseconds.
fn start(program: &Path, order: &Order) -> Result<Result<Running, Failed>, HostError> {
    let wanted = |name: &str| {
        let upper = name.to_ascii_uppercase();
        VARIABLES.iter().any(|it| upper.starts_with(it))
    };
    let kept = env::vars_os().filter(|(name, _)| name.to_str().is_some_and(wanted));
    let kept: Vec<_> = kept.collect();
    let mut reads = vec![program.to_owned()];
    let mut writes = Vec::new();
    let network = match order.store.root() {
        Root::Folder(folder) => {
            check_store(folder)?;
            writes.push(folder.clone());
            Network::None
        }
        Root::Bucket(bucket) => {
            reads.extend(order.settings.iter().filter_map(|path| there(path)));
            if let Some(path) = &order.settings {
                match settings::StoreSettings::read(path) {
                    Ok(settings) => reads.extend(settings.authority_of(bucket).and_then(there)),
                    Err(failed) => return Ok(Err(failed)),
                }
            }
            let files = kept
                .iter()
                .filter(|(name, _)| FILES.iter().any(|it| name == it));
            reads.extend(files.filter_map(|(_, path)| there(Path::new(path))));
            Network::Host
        }
    };
    match &order.work {
        Work::Put { files, .. } => reads.extend(files.iter().map(|file| file.path.clone())),
        Work::Fetch { files } => {
            let folders = files.iter().filter_map(|file| file.path.parent());
            let mut folders: Vec<_> = folders.map(Path::to_owned).collect();
            folders.sort();
            folders.dedup();
            writes.extend(folders);
        }
        Work::List | Work::Get { .. } | Work::Remove { .. } | Work::Collect => {}
    }
    let (reads, writes): (Vec<_>, Vec<_>) = (
        reads.iter().map(PathBuf::as_path).collect(),
        writes.iter().map(PathBuf::as_path).collect(),
    );
    let mut command = Command::new(program);
    let confined = confine(
        &mut command,
        Confinement {
            who: Who::Carrier,
            reads: &reads,
            writes: &writes,
            largest: LARGEST,
            network,
            ends: Lifespan::ByItself,
        },
    );
    let failed = HostError::io("run", program);
    let started = confined.and_then(|()| {
        command
            .envs(kept)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        // In sight of no other process.
        spawn_first(&mut command)
    });
    Ok(Ok(Running(started.map_err(failed)?)))
}

/// A path, if there is anything at it.
fn there(path: &Path) -> Option<PathBuf> {
    path.exists().then(|| path.to_owned())
}
