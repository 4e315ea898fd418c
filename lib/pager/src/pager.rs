//! A pager from start to end: what belongs together is wired here.
//!
//! ```text
//! start --> serving --unmounted--> last file closed --> ended
//! ```

use crate::control::{self, Control};
use crate::service::Service;
use crate::{Care, Refusal, Shutdown, StartError, mount};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// A pager that serves.
#[derive(Debug)]
pub struct Pager {
    session: JoinHandle<io::Result<()>>,
    ender: Ender,
}

/// Ends a pager, from any thread.
#[derive(Clone, Debug)]
pub struct Ender {
    mount: PathBuf,
    service: Arc<Service>,
    control: Arc<Control>,
}

impl Pager {
    /// Mounts at `mount`, a directory, and listens at `socket`. What a dead
    /// pager left at either is taken away; a living one is left alone. Needs
    /// to be root.
    pub fn start(mount: &Path, socket: &Path, care: Care) -> Result<Self, StartError> {
        let thread = |source| StartError::Thread { source };
        let service = Service::start(care).map_err(thread)?;
        let control = Arc::new(Control::bind(socket)?);
        let session = mount::mount(mount, Arc::clone(&service))?;
        let session = thread::Builder::new()
            .name("session".into())
            .spawn(move || session.run())
            .map_err(thread)?;
        mount::raise_read_ahead(mount);
        let ender = Ender {
            mount: mount.into(),
            service,
            control,
        };
        control::serve(ender.clone()).map_err(thread)?;
        Ok(Self { session, ender })
    }

    /// What ends it.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Blocks until the file system is unmounted and its last file closed.
    pub fn wait(self) -> io::Result<()> {
        let ended = self.session.join();
        self.ender.control.close();
        self.ender.control.say_farewell();
        ended.unwrap_or_else(|_| Err(io::Error::other("file system thread panicked")))
    }
}

impl Ender {
    /// Ends the pager, or refuses.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Refusal> {
        match how {
            Shutdown::WhenUnused => mount::unmount_unused(&self.mount, &self.service),
            Shutdown::Now => mount::abort(&self.mount).map_err(|errno| Refusal::Host {
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
        Ok(detached?)
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }
}
