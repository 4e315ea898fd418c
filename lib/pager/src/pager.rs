//! A pager from start to end: what belongs together is wired here.
//!
//! ```text
//! start --> serving --unmounted--> last file closed --> ended
//!             | ^
//!   dies, or  | | takes over
//!   makes way v |
//!            keeper
//! ```

use crate::catalog::Catalog;
use crate::control::{self, Control};
use crate::journal::Answered;
use crate::keeper::Key;
use crate::mount::{self, Mounted};
use crate::service::{Recovered, Service};
use crate::successor_state::{Inheritance, SuccessorState};
use crate::{PagerOptions, PagerRefusal, Programs, Shutdown, StartError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;

/// A pager that serves.
#[derive(Debug)]
pub struct Pager {
    ended: mpsc::Receiver<io::Result<()>>,
    ender: Ender,
}

/// Ends a pager, from any thread.
#[derive(Clone, Debug)]
pub struct Ender {
    mount: PathBuf,
    service: Arc<Service>,
    control: Arc<Control>,
    /// Tells the pager that it has ended.
    ends: mpsc::Sender<io::Result<()>>,
}

/// Paths and options of a pager.
#[derive(Clone, Debug)]
pub struct PagerSetup {
    /// The directory to mount at.
    pub mount: PathBuf,
    /// The control socket.
    pub socket: PathBuf,
    /// Options for its images.
    pub options: PagerOptions,
    /// Commands that start pagers that take over; none if none is to.
    pub programs: Option<Programs>,
}

impl Pager {
    /// Mounts, and listens. What a dead pager left at either place is taken
    /// away; a living one is left alone. Needs to be root.
    pub fn start(setup: PagerSetup) -> Result<Self, StartError> {
        let thread = |source| StartError::Thread { source };
        let control = Arc::new(Control::bind(&setup.socket)?);
        let successor_state = setup.programs.clone().map(SuccessorState::new);
        let successor_state = successor_state
            .transpose()
            .map_err(|source| StartError::Keeper { source })?;
        let past = Recovered {
            catalog: Catalog::new(),
            successor_state,
            answered: Answered::default(),
        };
        let service = Service::start(setup.options, past).map_err(thread)?;
        let started = mount::mount(&setup.mount, &service)
            .and_then(|mounted| Self::run(setup, mounted, Arc::clone(&service), control));
        if started.is_err()
            && let Some(successor_state) = service.successor_state()
        {
            successor_state.farewell();
        }
        started
    }

    /// Goes on where a pager has gone, with what `keeper` has of it: the same
    /// mount, the same files, the same socket.
    pub fn succeed(setup: PagerSetup, keeper: UnixStream) -> Result<Self, StartError> {
        let thread = |source| StartError::Thread { source };
        let programs = setup.programs.clone().ok_or(StartError::NoPrograms)?;
        let Inheritance {
            successor_state,
            catalog,
            answered,
            kernel,
            control,
        } = SuccessorState::inherit(programs, keeper)?;
        let images = catalog.len();
        let control = Control::inherit(control, &setup.socket);
        let control = Arc::new(control.map_err(|source| StartError::Listen {
            socket: setup.socket.clone(),
            source,
        })?);
        let past = Recovered {
            catalog,
            successor_state: Some(successor_state),
            answered,
        };
        let service = Service::start(setup.options, past).map_err(thread)?;
        let mounted = mount::adopt(kernel, &service).map_err(|source| StartError::Mount {
            mount: setup.mount.clone(),
            source,
        })?;
        tracing::info!(images, "took over");
        Self::run(setup, mounted, service, control)
    }

    fn run(
        setup: PagerSetup,
        mounted: Mounted,
        service: Arc<Service>,
        control: Arc<Control>,
    ) -> Result<Self, StartError> {
        let thread = |source| StartError::Thread { source };
        let keeper = |source| StartError::Keeper { source };
        let Mounted { session, kernel } = mounted;
        if let Some(successor_state) = service.successor_state() {
            successor_state
                .keep(Key::Kernel, kernel.as_fd())
                .map_err(keeper)?;
            if control.is_open() {
                successor_state
                    .keep(Key::Control, control.listener())
                    .map_err(keeper)?;
            }
        }
        let session = thread::Builder::new()
            .name("session".into())
            .spawn(move || session.run())
            .map_err(thread)?;
        let (ends, ended) = mpsc::channel();
        let end = ends.clone();
        let watch = move || {
            let panicked = |_| Err(io::Error::other("file system thread panicked"));
            // No receiver: it has ended by itself.
            let _ = end.send(session.join().unwrap_or_else(panicked));
        };
        thread::Builder::new()
            .name("session's end".into())
            .spawn(watch)
            .map_err(thread)?;
        let ender = Ender {
            mount: setup.mount,
            service,
            control,
            ends,
        };
        control::serve(ender.clone()).map_err(thread)?;
        Ok(Self { ended, ender })
    }

    /// Returns the handle that ends it.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Blocks until the file system is unmounted and its last file closed. To be followed by the
    /// process's end, which cuts off copies of the mount.
    pub fn wait(self) -> io::Result<()> {
        let ended = self.ended.recv();
        self.ender.part();
        self.ender.control.close();
        self.ender.control.say_farewell();
        match ended {
            // The last file's release was being read as the kernel took the
            // connection away: an unmount, and no failure.
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(()),
            Ok(ended) => ended,
            // The ender has a sender as well.
            Err(_) => Ok(()),
        }
    }
}

impl Ender {
    /// Ends the pager, or refuses.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), PagerRefusal> {
        match how {
            Shutdown::WhenUnused => {
                mount::unmount_unused(&self.mount, &self.service)?;
                // A program in a mount namespace of its own may have a copy of the mount, which
                // would keep the session up for as long as it lives.
                if self.service.catalog().files() == 0 {
                    let _ = self.ends.send(Ok(()));
                }
                Ok(())
            }
            Shutdown::Now => mount::abort(&self.mount).map_err(|errno| PagerRefusal::Host {
                why: errno.desc().to_owned(),
            }),
        }
    }

    /// Makes room for another pager: mount and socket are gone when this
    /// returns, the socket last, and files that are open are served until they
    /// are closed.
    pub fn withdraw(&self) -> io::Result<()> {
        tracing::info!(files = self.service.catalog().files(), "withdrawing");
        let detached = mount::detach(&self.mount);
        self.control.close();
        if let Some(successor_state) = self.service.successor_state() {
            successor_state.forget(Key::Control);
        }
        Ok(detached?)
    }

    /// From now on no pager takes over: this pager ends, and is meant to.
    pub fn part(&self) {
        if let Some(successor_state) = self.service.successor_state() {
            successor_state.farewell();
        }
    }

    /// Replaces the program that a pager that takes over will run.
    pub(crate) fn replace(&self, program: PathBuf) -> Result<(), PagerRefusal> {
        let successor_state = self
            .service
            .successor_state()
            .ok_or(PagerRefusal::NoSuccessor)?;
        let failed = |error: io::Error| PagerRefusal::Host {
            why: error.to_string(),
        };
        // A pager that is ending has no mount that another could serve.
        if !mount::is_ours(&self.mount) {
            return Err(PagerRefusal::NoSuccessor);
        }
        let file = std::fs::metadata(&program).map_err(failed)?;
        if !file.is_file() || file.permissions().mode() & 0o111 == 0 {
            return Err(failed(io::ErrorKind::PermissionDenied.into()));
        }
        successor_state.next(program).map_err(failed)
    }

    /// Ends this process so that another takes over: as a crash would, for one
    /// way of doing it is enough to get right.
    pub(crate) fn make_way(&self) -> ! {
        tracing::info!("making way for another pager");
        std::process::exit(0)
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }
}
