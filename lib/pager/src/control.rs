//! The control socket: one thread a connection, one request at a time.
//!
//! Only the user the pager runs as may connect: the socket's mode says so, and
//! so does the kernel about each peer.

use crate::catalog::bad_layer;
use crate::pager::Ender;
use crate::protocol::{Answer, Hello, Request, VERSION, receive, send};
use crate::{PagerRefusal, StartError};
use forkyard_image::{Layer, Lineage};
use forkyard_transfer::Complete;
use nix::sys::socket::{Shutdown, getsockopt, shutdown, sockopt::PeerCredentials};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

/// Most connections at a time: a daemon needs a few.
const MAX_CONNECTIONS: usize = 64;
/// Pause before accepting again when the host has no descriptors left.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// The socket.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
    closed: Once,
    connections: AtomicUsize,
    /// Held from before the pager ends until the client that asked for it has heard so.
    farewell: Mutex<()>,
}

impl Control {
    /// Listens at `path`, in place of a pager that died.
    pub fn bind(path: &Path) -> Result<Self, StartError> {
        let failed = |source| StartError::Listen {
            socket: path.into(),
            source,
        };
        match UnixStream::connect(path) {
            Ok(_) => {
                return Err(StartError::AlreadyRunning {
                    socket: path.into(),
                });
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?;
            }
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(Self::of(listener, path))
    }

    /// Goes on listening for a pager that is gone; with `None`, for one that had
    /// ceased to.
    pub fn inherit(listener: Option<OwnedFd>, path: &Path) -> io::Result<Self> {
        match listener {
            Some(listener) => Ok(Self::of(listener.into(), path)),
            None => {
                // It never accepts a connection.
                let (nobody, _) = UnixStream::pair()?;
                let control = Self::of(OwnedFd::from(nobody).into(), path);
                control.closed.call_once(|| {});
                Ok(control)
            }
        }
    }

    fn of(listener: UnixListener, path: &Path) -> Self {
        Self {
            listener,
            path: path.into(),
            closed: Once::new(),
            connections: AtomicUsize::new(0),
            farewell: Mutex::new(()),
        }
    }

    /// Returns the socket that a pager that takes over needs to go on
    /// listening.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Listens no more; connections that exist go on. The socket's name is
    /// taken away once, for later it may be another pager's, and is gone when
    /// this returns, whatever takes it away: the process may end next.
    pub fn close(&self) {
        self.closed.call_once(|| {
            let _ = fs::remove_file(&self.path);
            // Wakes the thread that accepts.
            let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        });
    }

    /// Blocks until no client is owed the answer that the pager ends.
    pub fn say_farewell(&self) {
        drop(self.farewell());
    }

    fn farewell(&self) -> MutexGuard<'_, ()> {
        self.farewell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whether clients can connect.
    pub fn is_open(&self) -> bool {
        !self.is_closed()
    }

    fn is_closed(&self) -> bool {
        self.closed.is_completed()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.close();
    }
}

/// Serves connections on threads of their own until the socket is closed.
pub(crate) fn serve(pager: Ender) -> io::Result<()> {
    thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            while !pager.control().is_closed() {
                match pager.control().listener.accept() {
                    Ok((stream, _)) => admit(&pager, stream),
                    Err(_) => thread::sleep(ACCEPT_BACKOFF),
                }
            }
        })?;
    Ok(())
}

fn admit(pager: &Ender, stream: UnixStream) {
    let peer = getsockopt(&stream, PeerCredentials);
    if !peer.is_ok_and(|peer| peer.uid() == nix::unistd::geteuid().as_raw()) {
        return tracing::warn!("connection of another user refused");
    }
    let Some(place) = Place::take(pager) else {
        return tracing::warn!("connection refused: there are {MAX_CONNECTIONS}");
    };
    let started = thread::Builder::new().name("client".into()).spawn(move || {
        if let Err(error) = converse(&place.0, &stream) {
            tracing::warn!(%error, "connection ended");
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, "connection refused");
    }
}

/// One of the connections there may be; given back on drop.
struct Place(Ender);

impl Place {
    fn take(pager: &Ender) -> Option<Self> {
        let count = &pager.control().connections;
        // Taken first, so that dropping what is refused gives it back.
        let place = Self(pager.clone());
        (count.fetch_add(1, Ordering::AcqRel) < MAX_CONNECTIONS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.control().connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Answers one client until it goes.
fn converse(pager: &Ender, stream: &UnixStream) -> io::Result<()> {
    let Some((hello, _)) = receive::<Hello>(stream)? else {
        return Ok(());
    };
    send(stream, &Hello::ours(), None)?;
    if hello.version != VERSION {
        return Ok(());
    }
    while let Some((request, file)) = receive(stream)? {
        let ends = matches!(request, Request::Shutdown(_));
        let replaced = matches!(request, Request::Replace { .. });
        let _farewell = ends.then(|| pager.control().farewell());
        let answer = perform(pager, request, file);
        send(stream, &answer, None)?;
        if replaced && answer.is_ok() {
            pager.make_way();
        }
    }
    Ok(())
}

fn perform(pager: &Ender, request: Request, file: Option<OwnedFd>) -> Result<Answer, PagerRefusal> {
    let service = pager.service();
    match request {
        Request::Ping => Ok(Answer::Done),
        Request::Promise { image, pages } => service.promise(image, pages).map(|()| Answer::Done),
        Request::Publish { image, parent } => {
            let layer = open_layer(Lineage { image, parent }, file)?;
            service.publish(layer).map(|()| Answer::Done)
        }
        Request::Fail { image, reason } => service.fail(image, &reason).map(|()| Answer::Done),
        Request::Retire { image } => service.retire(image).map(|()| Answer::Done),
        Request::Stats { image } => service.catalog().usage(image).map(Answer::Stats),
        Request::List => Ok(Answer::List(service.catalog().views())),
        Request::Listen { at } => service.listen(at).map(Answer::Listening),
        Request::Offer { image, offering } => service.offer(image, offering).map(|()| Answer::Done),
        Request::Withdraw { image, key } => {
            service.withdraw(image, key);
            Ok(Answer::Done)
        }
        Request::Fetch { image, fetching } => {
            service.fetch(image, &fetching).map(|()| Answer::Done)
        }
        Request::Settle { image } => service.settle(image, Complete::Yes).map(|()| Answer::Done),
        Request::Arrival { image } => service.arrival(image).map(Answer::Arrival),
        Request::Links => Ok(Answer::Links(service.links())),
        Request::Changes { image, since } => service.changes(image, since).map(Answer::Runs),
        Request::Noise { image } => service.noise(image).map(Answer::Runs),
        Request::Expected { image } => service.expected(image).map(Answer::Runs),
        Request::Touched { image } => service.touched(image).map(Answer::Runs),
        Request::TouchedElsewhere { image, runs } => service
            .touched_elsewhere(image, &runs)
            .map(|()| Answer::Done),
        Request::Replace { program } => pager.replace(program).map(|()| Answer::Done),
        Request::Shutdown(how) => pager.shutdown(how).map(|()| Answer::Done),
    }
}

fn open_layer(wanted: Lineage, file: Option<OwnedFd>) -> Result<Layer, PagerRefusal> {
    let file = File::from(file.ok_or(PagerRefusal::MissingFile)?);
    let layer = Layer::open(file).map_err(|error| bad_layer(&error))?;
    let Lineage { image, parent } = layer.lineage();
    match layer.lineage() == wanted {
        true => Ok(layer),
        false => Err(PagerRefusal::WrongLineage { image, parent }),
    }
}
