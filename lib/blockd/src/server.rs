//! Sockets and threads.

use crate::{
    connection,
    control::{self, After},
    workers::Workers,
};
use forkyard_volume::Geometry;
use forkyard_volume_store::{Library, StoreError};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::{
    fs::{self, Permissions},
    io::{self, ErrorKind},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

/// Connections at a time.
const MOST_CONNECTIONS: usize = 1024;
/// Pause between looks at what upkeep is due, and before accepting again without descriptors.
const BREATH: Duration = Duration::from_millis(200);
/// Threads that wait for disks.
const WORKERS: usize = 16;

/// Where volumes and sockets are.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Folder of the volumes.
    pub folder: PathBuf,
    /// Socket for NBD clients.
    pub nbd: PathBuf,
    /// Socket for managers.
    pub control: PathBuf,
    /// Segments of new volumes.
    pub geometry: Geometry,
}

/// Server that did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
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
pub struct Server {
    setup: Setup,
    library: Arc<Library>,
    end: Sender<End>,
    ended: Receiver<End>,
}

/// Wish that the server ends. Carries the connection that it came by: the process keeps it until
/// it is gone, and so tells its manager.
#[derive(Debug)]
pub struct End(Option<UnixStream>);

impl End {
    /// Wish of the process itself.
    pub fn own() -> Self {
        Self(None)
    }
}

impl Server {
    /// Begins to serve.
    pub fn start(setup: Setup) -> Result<Self, StartError> {
        // Each segment is a file, and each client a socket.
        if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        }
        let library = Arc::new(Library::with_geometry(&setup.folder, setup.geometry)?);
        let control = listen(&setup.control)?;
        let nbd = listen(&setup.nbd)?;
        let (end, ended) = channel();
        let server = Self {
            setup,
            library,
            end,
            ended,
        };
        server.threads(nbd, control).map_err(StartError::Threads)?;
        Ok(server)
    }

    fn threads(&self, nbd: UnixListener, control: UnixListener) -> io::Result<()> {
        let workers = Workers::start(WORKERS)?;
        let library = Arc::clone(&self.library);
        spawn("accept-nbd", move || {
            accept(&nbd, "nbd", move |stream| {
                if let Err(error) = connection::serve(stream, &library, &workers) {
                    tracing::warn!(error = %error, source = ?error, "connection ended");
                }
            });
        })?;
        let (library, end) = (Arc::clone(&self.library), self.end.clone());
        spawn("accept-control", move || {
            accept(&control, "control", move |stream| {
                match control::serve(&stream, &library) {
                    Ok(After::GoOn) => {}
                    Ok(After::End) => {
                        let _ = end.send(End(Some(stream)));
                    }
                    Err(error) => tracing::warn!(%error, "manager's connection ended"),
                }
            });
        })?;
        let library = Arc::clone(&self.library);
        spawn("upkeep", move || upkeep(&library))
    }

    /// Way to end it, beside the control socket.
    pub fn ender(&self) -> Sender<End> {
        self.end.clone()
    }

    /// Waits until it is told to end. Flushes all volumes, and removes the sockets.
    ///
    /// The process is to end then: threads go on, and volumes stay locked.
    pub fn wait(self) -> Result<(), StoreError> {
        if let Ok(End(manager)) = self.ended.recv() {
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
fn listen(socket: &Path) -> Result<UnixListener, StartError> {
    let failed = |source| StartError::Listen {
        socket: socket.to_owned(),
        source,
    };
    match UnixStream::connect(socket) {
        Ok(_) => return Err(StartError::Running(socket.to_owned())),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(socket).map_err(failed)?;
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(socket).map_err(failed)?;
    fs::set_permissions(socket, Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

fn accept(
    listener: &UnixListener,
    name: &str,
    serve: impl Fn(UnixStream) + Clone + Send + 'static,
) {
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                thread::sleep(BREATH);
                continue;
            }
        };
        if connections.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
            connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (serve, count) = (serve.clone(), Arc::clone(&connections));
        let spawned = spawn(name, move || {
            serve(stream);
            count.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(error) = spawned {
            connections.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "cannot serve a connection");
        }
    }
}

fn upkeep(library: &Library) {
    loop {
        for store in library.opened() {
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
        thread::sleep(BREATH);
    }
}
