//! Ways to servers: a Unix socket a slot, whose connections lead to a port of the VM in it.
//!
//! ```text
//! HAProxy --> FOLDER/sN.sock --a request of the API--> daemon --> port in the VM
//! ```
//!
//! A slot without a VM has no socket: HAProxy tries another server at once. A connection that the
//! VM does not take is closed before anything was answered on it, which HAProxy sees.

use super::stat::PREFIX;
use anyhow::Context;
use forkyard_autoscale::SlotNo;
use forkyard_client::Client;
use forkyard_types::{GuestPort, VmId};
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::copy_bidirectional,
    net::{UnixListener, UnixStream},
    task::JoinHandle,
    time::sleep,
};

/// Before another try where no connection can be taken.
const BREATH: Duration = Duration::from_millis(100);

/// The way to one server. Dropped, it takes no more connections; those it has go on.
#[derive(Debug)]
pub struct Way {
    path: PathBuf,
    accepting: JoinHandle<()>,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.accepting.abort();
        // In a folder that is removed as a whole.
        let _ = fs::remove_file(&self.path);
    }
}

/// Where the socket of a slot is.
pub fn socket(folder: &Path, slot: SlotNo) -> PathBuf {
    folder.join(format!("{PREFIX}{slot}.sock"))
}

impl Way {
    /// Opens the way to a port of a VM.
    pub fn open(
        client: &Client,
        folder: &Path,
        slot: SlotNo,
        vm: VmId,
        port: GuestPort,
    ) -> anyhow::Result<Self> {
        let path = socket(folder, slot);
        let _ = fs::remove_file(&path);
        let opened = UnixListener::bind(&path).and_then(|listener| {
            // The folder is HAProxy's user's alone.
            fs::set_permissions(&path, Permissions::from_mode(0o666))?;
            Ok(listener)
        });
        let listener = opened.with_context(|| format!("cannot listen on {}", path.display()))?;
        let accepting = tokio::spawn(accept(client.clone(), listener, vm.to_string(), port));
        Ok(Self { path, accepting })
    }
}

async fn accept(client: Client, listener: UnixListener, vm: String, port: GuestPort) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(pass_on(client.clone(), stream, vm.clone(), port));
            }
            // Out of file descriptors, say: others may be closed meanwhile.
            Err(_) => sleep(BREATH).await,
        }
    }
}

/// Failures are HAProxy's to notice: it counts them, and its checks fail.
async fn pass_on(client: Client, mut local: UnixStream, vm: String, port: GuestPort) {
    if let Ok(mut remote) = client.connect(&vm, port).await {
        let _ = copy_bidirectional(&mut local, &mut remote).await;
    }
}
