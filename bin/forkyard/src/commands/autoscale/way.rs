//! Ways to servers: a Unix socket a slot, whose connections lead to a port of the VM in it.
//!
//! ```text
//! HAProxy --> FOLDER/sN.sock --a request of the API--> daemon --> port in the VM
//! ```
//!
//! A slot without a VM has no socket: HAProxy tries another server at once. So it is for a moment
//! with a VM that takes no connection. HAProxy then has it be down; as long as it were connected and
//! then hung up on, it would choose that server again and again, for it is the one with least to do.

use super::stat::PREFIX;
use anyhow::Context;
use forkyard_api_client::Client;
use forkyard_autoscale::SlotNo;
use forkyard_types::{GuestPort, VmId};
use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::copy_bidirectional,
    net::{UnixListener, UnixStream},
    sync::Notify,
    task::JoinHandle,
    time::sleep,
};

/// Time for which there is no socket when the VM has taken no connection, and before another try
/// where none can be taken here.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

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

/// Returns the path of the socket of a slot.
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
        let listener = listen(&path);
        let listener = listener.with_context(|| format!("cannot listen on {}", path.display()))?;
        let (client, vm, at) = (client.clone(), vm.to_string(), path.clone());
        let accepting = tokio::spawn(async move {
            let mut listener = Some(listener);
            loop {
                match listener.take().map_or_else(|| listen(&at), Ok) {
                    Ok(listener) => accept(&client, listener, &vm, port).await,
                    // Out of file descriptors, say: others may be closed meanwhile.
                    Err(error) => tell!("forkyard: cannot listen on {}: {error}", at.display()),
                }
                let _ = fs::remove_file(&at);
                sleep(RETRY_PAUSE).await;
            }
        });
        Ok(Self { path, accepting })
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    // One of a VM that was here before.
    let _ = fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    // The folder is HAProxy's user's alone.
    fs::set_permissions(path, Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Takes connections until the VM does not take one, or none can be taken here.
async fn accept(client: &Client, listener: UnixListener, vm: &str, port: GuestPort) {
    let refused = Arc::new(Notify::new());
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                let (client, vm, refused) = (client.clone(), vm.to_owned(), refused.clone());
                tokio::spawn(async move { pass_on(&client, stream, &vm, port, &refused).await });
            }
            () = refused.notified() => return,
        }
    }
}

async fn pass_on(
    client: &Client,
    mut local: UnixStream,
    vm: &str,
    port: GuestPort,
    refused: &Notify,
) {
    match client.connect(vm, port).await {
        // How it ends is HAProxy's to notice.
        Ok(mut remote) => drop(copy_bidirectional(&mut local, &mut remote).await),
        Err(_) => refused.notify_one(),
    }
}
