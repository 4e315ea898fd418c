//! Sockets and threads.

use crate::{
    connection,
    control::{self, After},
    passes::Passes,
    workers::Workers,
};
use forkyard_volume::Geometry;
use forkyard_volume_store::{Library, StoreError};
use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        socket::{getsockopt, sockopt::PeerCredentials},
    },
    unistd::geteuid,
};
use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    io::{self, ErrorKind},
    ops::Range,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Connections at a time.
const MOST_CONNECTIONS: usize = 4096;
/// Connections of one other user at a time: a QEMU has one for each disk, and one more while it
/// reconnects.
const MOST_OF_A_USER: usize = 8;
/// Pause between looks at what upkeep is due, and before accepting again without descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);
/// Threads that wait for disks.
const WORKERS: usize = 16;

/// Folders of volumes and sockets.
#[derive(Clone, Debug)]
pub struct BlockdSetup {
    /// Folder of the volumes.
    pub folder: PathBuf,
    /// Folder of the keys of encrypted volumes; `.keys` in that of the volumes if absent.
    pub keys: Option<PathBuf>,
    /// Socket for NBD clients.
    pub nbd: PathBuf,
    /// Socket for managers.
    pub control: PathBuf,
    /// Users that may connect with a pass, beside the server's own and root.
    pub users: Users,
    /// Segments of new volumes.
    pub geometry: Geometry,
}

/// Numbers of users that are let in. May be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users(pub Range<u32>);

/// Server that did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockdStartError {
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] StoreError),
    /// Another server has the socket.
    #[error("another server listens at {} (end it first: `forkyard-blockd end`)", .0.display())]
    Running(PathBuf),
    /// The socket cannot be made.
    #[error("cannot listen at {}", socket.display())]
    Listen {
        /// Socket.
        socket: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// No threads.
    #[error("cannot start threads")]
    Threads(#[source] io::Error),
}

/// Running server.
#[derive(Debug)]
pub struct BlockServer {
    setup: BlockdSetup,
    library: Arc<Library>,
    passes: Arc<Passes>,
    end: Sender<EndRequest>,
    ended: Receiver<EndRequest>,
}

/// Wish that the server ends. Carries the connection that it came by: the process keeps it until
/// it is gone, and so tells its manager.
#[derive(Debug)]
pub struct EndRequest(Option<UnixStream>);

impl EndRequest {
    /// Wish of the process itself.
    pub fn own() -> Self {
        Self(None)
    }
}

impl BlockServer {
    /// Begins to serve.
    pub fn start(setup: BlockdSetup) -> Result<Self, BlockdStartError> {
        // Each segment is a file, and each client a socket.
        if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        }
        let library = match &setup.keys {
            Some(keys) => Library::with_keys(&setup.folder, setup.geometry, keys)?,
            None => Library::with_geometry(&setup.folder, setup.geometry)?,
        };
        let library = Arc::new(library);
        // The folders above it may be passed by all users.
        let own = Permissions::from_mode(0o700);
        fs::set_permissions(&setup.folder, own).map_err(|source| StoreError::Io {
            doing: "close to others",
            path: setup.folder.clone(),
            source,
        })?;
        let passes = Arc::new(Passes::of(&setup.folder)?);
        let control = listen(&setup.control, 0o600)?;
        let nbd = listen(
            &setup.nbd,
            if setup.users.0.is_empty() {
                0o600
            } else {
                0o666
            },
        )?;
        let (end, ended) = channel();
        let server = Self {
            setup,
            library,
            passes,
            end,
            ended,
        };
        server
            .threads(nbd, control)
            .map_err(BlockdStartError::Threads)?;
        Ok(server)
    }

    fn threads(&self, nbd: UnixListener, control: UnixListener) -> io::Result<()> {
        let workers = Workers::start(WORKERS)?;
        let (library, passes) = (Arc::clone(&self.library), Arc::clone(&self.passes));
        let door = Door::new(self.setup.users.clone());
        spawn("accept-nbd", move || {
            let admit = move |stream: &UnixStream| door.admit(stream);
            accept(&nbd, "nbd", admit, move |stream, client: Inside| {
                let passes = client.is_other().then_some(&*passes);
                match connection::serve(stream, (&library, passes), &workers) {
                    Ok(()) => {}
                    // As often as it likes: no line for each.
                    Err(error) if client.is_other() => {
                        tracing::debug!(error = %error, source = ?error, "connection ended");
                    }
                    Err(error) => {
                        tracing::warn!(error = %error, source = ?error, "connection ended");
                    }
                }
            });
        })?;
        let (library, end) = (Arc::clone(&self.library), self.end.clone());
        let passes = Arc::clone(&self.passes);
        spawn("accept-control", move || {
            accept(
                &control,
                "control",
                |_| Some(()),
                move |stream, ()| match control::serve(&stream, &library, &passes) {
                    Ok(After::GoOn) => {}
                    Ok(After::End) => {
                        let _ = end.send(EndRequest(Some(stream)));
                    }
                    Err(error) => tracing::warn!(%error, "manager's connection ended"),
                },
            );
        })?;
        let library = Arc::clone(&self.library);
        spawn("upkeep", move || upkeep(&library))
    }

    /// Way to end it, beside the control socket.
    pub fn ender(&self) -> Sender<EndRequest> {
        self.end.clone()
    }

    /// Waits until it is told to end. Flushes all volumes, and removes the sockets.
    ///
    /// The process is to end then: threads go on, and volumes stay locked.
    pub fn wait(self) -> Result<(), StoreError> {
        if let Ok(EndRequest(manager)) = self.ended.recv() {
            // Closed by the end of the process, and by nothing before.
            std::mem::forget(manager);
        }
        let _ = fs::remove_file(&self.setup.control);
        let _ = fs::remove_file(&self.setup.nbd);
        for store in self.library.opened() {
            store.flush()?;
        }
        Ok(())
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(work).map(|_| ())
}

/// Listens at a path, in place of a server that died.
fn listen(socket: &Path, mode: u32) -> Result<UnixListener, BlockdStartError> {
    let failed = |source| BlockdStartError::Listen {
        socket: socket.to_owned(),
        source,
    };
    match UnixStream::connect(socket) {
        Ok(_) => return Err(BlockdStartError::Running(socket.to_owned())),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(socket).map_err(failed)?;
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(socket).map_err(failed)?;
    fs::set_permissions(socket, Permissions::from_mode(mode)).map_err(failed)?;
    Ok(listener)
}

/// Serves clients, each on a thread of its own, unless they are not admitted.
fn accept<T: Send + 'static>(
    listener: &UnixListener,
    name: &str,
    admit: impl Fn(&UnixStream) -> Option<T>,
    serve: impl Fn(UnixStream, T) + Clone + Send + 'static,
) {
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                thread::sleep(ACCEPT_BACKOFF);
                continue;
            }
        };
        let Some(client) = admit(&stream) else {
            continue;
        };
        if connections.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
            connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (serve, count) = (serve.clone(), Arc::clone(&connections));
        let spawned = spawn(name, move || {
            serve(stream, client);
            count.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(error) = spawned {
            connections.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "cannot serve a connection");
        }
    }
}

/// Admission of connections, and the number of each user's.
#[derive(Clone, Debug)]
struct Door {
    users: Users,
    inside: Arc<Mutex<BTreeMap<u32, usize>>>,
}

/// Client that was let in; counted until dropped.
struct Inside {
    user: Option<u32>,
    inside: Arc<Mutex<BTreeMap<u32, usize>>>,
}

impl Door {
    fn new(users: Users) -> Self {
        Self {
            users,
            inside: Arc::default(),
        }
    }

    /// Lets a client in, unless its user is a stranger or has too many.
    fn admit(&self, stream: &UnixStream) -> Option<Inside> {
        let user = getsockopt(stream, PeerCredentials).ok()?.uid();
        let inside = Arc::clone(&self.inside);
        if user == 0 || user == geteuid().as_raw() {
            return Some(Inside { user: None, inside });
        }
        if !self.users.0.contains(&user) {
            tracing::debug!(user, "stranger turned away");
            return None;
        }
        let mut counts = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(user).or_default();
        if *count >= MOST_OF_A_USER {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Inside {
            user: Some(user),
            inside,
        })
    }
}

impl Inside {
    fn is_other(&self) -> bool {
        self.user.is_some()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let Some(user) = self.user else { return };
        let mut counts = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&user);
            }
        }
    }
}

fn upkeep(library: &Library) {
    loop {
        for store in library.opened() {
            store.expire(Instant::now());
            store.expire_mirrors(Instant::now());
            match store.upkeep() {
                Ok(done) if done.checkpoint => {
                    tracing::debug!(volume = store.name(), ?done, "upkeep");
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(volume = store.name(), %error, source = ?error, "upkeep failed");
                }
            }
        }
        thread::sleep(ACCEPT_BACKOFF);
    }
}
