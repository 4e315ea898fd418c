//! Sockets at which the daemon listens.

use anyhow::Context;
use forkyard_fork::{Folders, Host, HostError, MakeEngine, Options};
use forkyard_tls::Certificate;
use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// Time a daemon that ends may take to let go of its host.
const LETS_GO: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

/// The Unix socket's file, until dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl SocketFile {
    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // One that stays is taken for a dead daemon's by the next.
        let _ = fs::remove_file(&self.0);
    }
}

/// Takes over the host, once a daemon that is on its way out has let go of it: its
/// socket has gone, and soon its lock.
pub async fn host(
    folders: Folders,
    options: Options,
    engine: MakeEngine,
) -> Result<Arc<Host>, HostError> {
    let begun = Instant::now();
    loop {
        let socket = socket_path(&folders.run);
        match Host::open(folders.clone(), options, engine).await {
            Err(HostError::Locked { .. })
                if begun.elapsed() < LETS_GO && UnixStream::connect(&socket).await.is_err() =>
            {
                tokio::time::sleep(LOOK).await;
            }
            opened => return opened,
        }
    }
}

fn socket_path(run: &Path) -> PathBuf {
    run.join("api.sock")
}

/// Listens on the Unix socket in `run`, which is root's alone.
pub fn socket(run: &Path) -> anyhow::Result<(SocketFile, UnixListener)> {
    let socket = socket_path(run);
    // The host holds the folder's lock: a socket found here is a dead daemon's.
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).context("cannot remove the old socket");
        }
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&socket)
        .with_context(|| format!("cannot listen on {}", socket.display()))?;
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
    tracing::info!(socket = %socket.display(), "listening");
    Ok((SocketFile(socket), listener))
}

/// Listens on `address`.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))
}

/// The certificate given, with its key, or the one kept in `state`, made if
/// there is none.
pub fn certificate(
    address: SocketAddr,
    given: Option<(&Path, &Path)>,
    state: &Path,
) -> anyhow::Result<Certificate> {
    Ok(match given {
        Some((certificate, key)) => Certificate::load(certificate, key)?,
        None => Certificate::kept_in(&state.join("tls"), &names(address))?,
    })
}

/// Lists the names by which a client may know this host.
fn names(address: SocketAddr) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".into(), "::1".into()];
    if let Ok(host) = nix::unistd::gethostname()
        && let Ok(host) = host.into_string()
    {
        names.push(host);
    }
    if !address.ip().is_unspecified() {
        names.push(address.ip().to_string());
    }
    names.sort();
    names.dedup();
    names
}
