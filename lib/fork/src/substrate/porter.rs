//! Object stores, reached by `forkyard-porter`: a process for each order, which ends with this one.
//!
//! Its account of a store is as good as the store's own: manifests are opened, and pieces
//! compared with them, by those that asked.

use super::SubstrateError;
use crate::{Host, HostError};
use forkyard_objects::{
    Address, LONGEST,
    order::{Done, Failed, Order, Said, Work},
};
use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    sync::OnceLock,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
};

/// The program.
const PORTER: &str = "forkyard-porter";
/// Beginnings of the variables that it gets: of keys, ways to servers and certificates.
const VARIABLES: [&str; 5] = ["AWS_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
/// Most bytes of a line that it says: a manifest, in which each byte may be written as six.
const LINE: u64 = 6 * LONGEST + (1 << 16);

/// The operator's choices of object stores.
#[derive(Clone, Debug, Default)]
pub struct Stores {
    /// File with settings and keys.
    pub settings: Option<PathBuf>,
    /// Store that the pool is backed up to.
    pub backup: Option<Address>,
}

/// The operator's choices, once they are known.
pub(crate) type Chosen = OnceLock<Stores>;

impl Host {
    /// Has a store be worked on. Dropped, the work ends.
    pub(super) async fn carry(
        &self,
        store: &Address,
        work: Work,
        mut each: impl FnMut(Said) + Send,
    ) -> Result<Done, HostError> {
        let order = Order {
            store: store.clone(),
            settings: self.stores.get().and_then(|it| it.settings.clone()),
            work,
        };
        let program = self.folders.bin.join(PORTER);
        let ran = run(&program, &order, &mut each).await?;
        ran.map_err(|source| {
            let store = store.to_string();
            SubstrateError::Store { store, source }.into()
        })
    }
}

async fn run(
    program: &Path,
    order: &Order,
    each: &mut (impl FnMut(Said) + Send),
) -> Result<Result<Done, Failed>, HostError> {
    let broken = HostError::io("run", program);
    let mut child = match start(program) {
        Ok(child) => child,
        Err(error) => return Err(broken(error)),
    };
    let mut line = crate::to_text(order)?.into_bytes();
    line.push(b'\n');
    let talked = async {
        // It stays open: at its end the program ends, too.
        let mut input = child.stdin.take();
        if let Some(input) = &mut input {
            input.write_all(&line).await?;
            input.flush().await?;
        }
        let mut last = None;
        if let Some(output) = child.stdout.take() {
            let mut output = BufReader::new(output);
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
        }
        drop(input);
        let status = child.wait().await?;
        last.ok_or_else(|| std::io::Error::other(format!("it gave no answer: {status}")))
    };
    talked.await.map_err(HostError::io("run", program))
}

fn start(program: &Path) -> std::io::Result<Child> {
    let wanted = |name: &str| {
        let upper = name.to_ascii_uppercase();
        VARIABLES.iter().any(|it| upper.starts_with(it))
    };
    let kept = env::vars_os().filter(|(name, _)| name.to_str().is_some_and(wanted));
    Command::new(program)
        .env_clear()
        .envs(kept)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
}
