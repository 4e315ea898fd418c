//! Sockets at which the daemon listens.

use anyhow::Context;
use forkyard_fork::{Folders, Host, HostError, MakeEngine, Options, PartsError};
use forkyard_tls::Certificate;
use nix::{
    sys::{
        socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr},
        stat::{Mode, fchmod},
    },
    unistd::{Gid, Group, chown},
};
use std::{
    fs, io,
    net::SocketAddr,
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
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
        let opened = Host::open(folders.clone(), options, engine).await;
        let Err(HostError::Parts(PartsError::Locked { run } | PartsError::StateLocked { run, .. })) =
            &opened
        else {
            return opened;
        };
        let serves = UnixStream::connect(socket_path(run)).await.is_ok();
        if serves || begun.elapsed() >= LETS_GO {
            return opened;
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn socket_path(run: &Path) -> PathBuf {
    run.join("api.sock")
}

/// Finds the group of this name.
pub fn group(name: &str) -> anyhow::Result<Gid> {
    let found =
        Group::from_name(name).with_context(|| format!("cannot look for the group {name:?}"))?;
    let found = found.with_context(|| {
        format!("there is no group {name:?} on this host: `groupadd --system {name}`, or name another (--group)")
    })?;
    Ok(found.gid)
}

/// Listens on the Unix socket in `run`, which is root's alone, or root's and a group's.
pub fn socket(run: &Path, group: Option<Gid>) -> anyhow::Result<(SocketFile, UnixListener)> {
    let socket = socket_path(run);
    // The host holds the folder's lock: a socket found here is a dead daemon's.
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).context("cannot remove the old socket");
        }
        Ok(()) | Err(_) => {}
    }
    let listener =
        bound(&socket, group).with_context(|| format!("cannot listen on {}", socket.display()))?;
    tracing::info!(socket = %socket.display(), "listening");
    Ok((SocketFile(socket), listener))
}

/// Binds a socket that others cannot connect to at any moment.
fn bound(path: &Path, group: Option<Gid>) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // What a file's mode is to be when it comes to be; the umask alone would decide otherwise.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    if group.is_some() {
        chown(path, None, group)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
    }
    socket::listen(&socket, Backlog::MAXCONN)?;
    UnixListener::from_std(socket.into())
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
