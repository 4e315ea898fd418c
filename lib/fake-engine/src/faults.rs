//! Faults on demand: a file in a host's run folder has the next call of its name fail.
//!
//! ```text
//! RUN/faults/cont       "refuse"     the next cont is refused; the file goes
//! RUN/faults/load       "kill"       the machine is killed as it is asked
//! RUN/faults/stop       "hang up"    the connection to the machine breaks
//! RUN/faults/adopt      "wait"       the call waits until the file is removed
//! ```

use forkyard_vmm::{QmpError, VmmError};
use qapi::ErrorClass;
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Between looks at a file that is to be removed.
const LOOK: Duration = Duration::from_millis(2);

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The machine does not do it, once.
    Refuse,
    /// The machine dies, once.
    Kill,
    /// The connection to the machine breaks, once.
    HangUp,
    /// Nothing happens as long as the file is there.
    Wait,
}

impl Fault {
    /// The content of the file that asks for it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Kill => "kill",
            Self::HangUp => "hang up",
            Self::Wait => "wait",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let all = [Self::Refuse, Self::Kill, Self::HangUp, Self::Wait];
        all.into_iter().find(|fault| fault.text() == text.trim())
    }
}

/// The faults of one host.
#[derive(Clone, Debug)]
pub struct Faults(PathBuf);

impl Faults {
    /// Those in a run folder.
    pub fn of(run: &Path) -> Self {
        Self(run.join("faults"))
    }

    /// Has the next call of this name fail. Panics if that cannot be written.
    pub fn set(&self, call: &str, fault: Fault) {
        fs::create_dir_all(&self.0).expect("a folder");
        // That of one that was killed while it waited.
        let _ = fs::remove_file(self.met(call));
        // Whole from the start: the engine may be looking.
        let new = self.0.join(format!(".{call}"));
        fs::write(&new, fault.text()).expect("written");
        fs::rename(new, self.0.join(call)).expect("in place");
    }

    /// Takes a fault back.
    pub fn clear(&self, call: &str) {
        let _ = fs::remove_file(self.0.join(call));
    }

    /// Says whether a fault that was set is still to come.
    pub fn is_set(&self, call: &str) -> bool {
        self.0.join(call).exists()
    }

    /// Says whether a call waits that was to.
    pub fn holds_up(&self, call: &str) -> bool {
        self.met(call).exists()
    }

    /// The file by which a call says that it waits.
    fn met(&self, call: &str) -> PathBuf {
        self.0.join(format!(".{call}.waits"))
    }

    /// Takes the fault of a call, if there is one, once it may go on.
    pub(crate) async fn take(&self, call: &str) -> Option<Fault> {
        let path = self.0.join(call);
        let mut waits = None;
        loop {
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
                Err(error) => panic!("{}: {error}", path.display()),
            };
            match Fault::parse(&text) {
                Some(Fault::Wait) => {
                    waits.get_or_insert_with(|| Mark::set(self.met(call)));
                    tokio::time::sleep(LOOK).await;
                }
                Some(fault) => {
                    // Of two calls one has it.
                    match fs::remove_file(&path) {
                        Ok(()) => return Some(fault),
                        Err(_) => continue,
                    }
                }
                None => panic!("{}: no fault is called {text:?}", path.display()),
            }
        }
    }
}

/// A file that is there as long as this lives.
#[derive(Debug)]
struct Mark(PathBuf);

impl Mark {
    fn set(path: PathBuf) -> Self {
        fs::write(&path, "").expect("written");
        Self(path)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // Another call that waited for the same may have been sooner.
        let _ = fs::remove_file(&self.0);
    }
}

/// The error of a call that is refused.
pub(crate) fn refused(command: &'static str) -> VmmError {
    VmmError::Qmp {
        command,
        source: QmpError::Refused {
            class: ErrorClass::GenericError,
            desc: "a test wants it refused".to_owned(),
        },
    }
}
