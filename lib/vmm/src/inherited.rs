//! Descriptors that a QEMU inherits: every file and socket it uses in its VM's
//! directory, opened by the daemon. So the directory may be closed to it, and a
//! QEMU that a guest has taken over cannot plant files for the daemon to trip
//! over.
//!
//! Sockets listen before QEMU starts, so no program need wait for them to appear.

use crate::{Nic, Owner, VmmError, files, jail, process::ProcessId, qemu_log::QemuLog};
use forkyard_sys_host::jail::Jail;
use forkyard_types::Mac;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::{
    fs::{self, File, Permissions},
    io,
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::{
            fs::{FileExt, OpenOptionsExt, PermissionsExt, fchown},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
};

/// Largest device state believed: some three hundred times a usual one.
const MAX_STATE: u64 = 64 << 20;

/// Mode of the files: for the daemon alone. QEMU has them open.
const PRIVATE: u32 = 0o600;

/// Descriptors that one QEMU is to inherit, and the daemon's ends of them.
#[derive(Debug)]
pub(crate) struct InheritedFds {
    /// The descriptors to hand over; their numbers stay the same.
    pub(crate) inherited: Vec<OwnedFd>,
    /// Those numbers.
    pub(crate) numbers: Numbers,
    /// For QEMU's standard output and error.
    pub(crate) log: File,
    /// Standard output and error of QEMU.
    pub(crate) words: QemuLog,
}

/// QEMU's numbers of what it inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) qmp: RawFd,
    pub(crate) agent: RawFd,
    pub(crate) console: RawFd,
    /// The tap, and the guest's address on it.
    pub(crate) nic: Option<(RawFd, Mac)>,
    /// A placeholder, for what the tracker opens.
    pub(crate) track: RawFd,
}

impl InheritedFds {
    /// Opens it all. Blocks no longer than it takes to create a few files.
    pub(crate) fn lay(dir: &Path, nic: Option<Nic>) -> Result<Self, VmmError> {
        let qmp = listen(&dir.join(files::QMP))?;
        let agent = listen(&dir.join(files::AGENT))?;
        let console = listen(&dir.join(files::CONSOLE_SOCKET))?;
        let (log, words) = QemuLog::lay(dir)?;
        let track = OwnedFd::from(open_null()?);
        let numbers = Numbers {
            qmp: qmp.as_raw_fd(),
            agent: agent.as_raw_fd(),
            console: console.as_raw_fd(),
            nic: nic.as_ref().map(|nic| (nic.tap.as_raw_fd(), nic.mac)),
            track: track.as_raw_fd(),
        };
        let mut inherited = vec![qmp.into(), agent.into(), console.into(), track];
        inherited.extend(nic.map(|nic| nic.tap));
        Ok(Self {
            inherited,
            numbers,
            log,
            words,
        })
    }
}

/// A file in memory through which a device state passes to or from QEMU.
#[derive(Debug)]
pub(crate) struct StateFile {
    file: File,
    there: There,
}

/// Way in which QEMU has a state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    /// Open, under this number.
    Open(RawFd),
    /// In its jail.
    InJail,
}

impl StateFile {
    const NAME: &str = "forkyard-state";
    /// In a jail.
    const PATH: &str = "/device-state";

    /// An empty one, and the descriptor for QEMU.
    pub(crate) fn create() -> Result<(Self, OwnedFd), VmmError> {
        let made = || -> io::Result<_> {
            let ours = memfd_create(Self::NAME, MFdFlags::MFD_CLOEXEC)?;
            let theirs = ours.try_clone()?;
            let there = There::Open(theirs.as_raw_fd());
            let file = File::from(ours);
            Ok((Self { file, there }, theirs))
        };
        made().map_err(VmmError::io("create memory file", Self::NAME))
    }

    /// An empty one in a jail, for this user to write. Blocks for some calls.
    pub(crate) fn create_in(jail: &Jail, owner: Owner) -> Result<Self, VmmError> {
        let made = jail.within(|| {
            let file = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(PRIVATE)
                .open(Self::PATH)?;
            fchown(&file, Some(owner.uid), Some(owner.gid))?;
            Ok(file)
        });
        let file = made.map_err(VmmError::io("create memory file", Self::PATH))?;
        let there = There::InJail;
        Ok(Self { file, there })
    }

    /// The one of a living QEMU of an earlier daemon: in its jail, or under this
    /// number. Blocks likewise.
    pub(crate) fn of_process(process: ProcessId, number: Option<RawFd>) -> Result<Self, VmmError> {
        match number {
            Some(number) => Self::of_number(process.pid, number),
            None => {
                let jail = jail::of(process)?.ok_or(VmmError::Gone { process })?;
                let open = || File::options().read(true).write(true).open(Self::PATH);
                let file = jail
                    .within(open)
                    .map_err(VmmError::io("open", Self::PATH))?;
                let there = There::InJail;
                Ok(Self { file, there })
            }
        }
    }

    fn of_number(pid: u32, number: RawFd) -> Result<Self, VmmError> {
        let path = PathBuf::from(format!("/proc/{pid}/fd/{number}"));
        let opened = || -> io::Result<_> {
            let name = fs::read_link(&path)?;
            let expected = format!("/memfd:{} (deleted)", Self::NAME);
            if name != Path::new(&expected) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let file = File::options().read(true).write(true).open(&path)?;
            let there = There::Open(number);
            Ok(Self { file, there })
        };
        opened().map_err(VmmError::io("open", &path))
    }

    /// Returns the name under which QEMU opens it to write to it. By name, not
    /// by number: so it is opened anew, from its start, each time.
    pub(crate) fn name_in_qemu(&self) -> String {
        match self.there {
            There::Open(number) => format!("/proc/self/fd/{number}"),
            There::InJail => Self::PATH.to_owned(),
        }
    }

    /// QEMU's number of it, if it has it open.
    pub(crate) fn number(&self) -> Option<RawFd> {
        match self.there {
            There::Open(number) => Some(number),
            There::InJail => None,
        }
    }

    /// Fills it. It is in memory: this blocks for a copy alone.
    pub(crate) fn put(&self, state: &[u8]) -> Result<(), VmmError> {
        self.file
            .write_all_at(state, 0)
            .map_err(VmmError::io("write", Self::NAME))
    }

    /// Empties it into a buffer. Blocks for a copy alone.
    pub(crate) fn take(&self) -> Result<Vec<u8>, VmmError> {
        let taken = || -> io::Result<_> {
            let size = self.file.metadata()?.len();
            if size == 0 || size > MAX_STATE {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let mut state = vec![0; usize::try_from(size).map_err(io::Error::other)?];
            self.file.read_exact_at(&mut state, 0)?;
            self.file.set_len(0)?;
            Ok(state)
        };
        taken().map_err(VmmError::io("read", Self::NAME))
    }
}

fn listen(path: &Path) -> Result<UnixListener, VmmError> {
    let bound = UnixListener::bind(path).map_err(VmmError::io("listen on", path))?;
    fs::set_permissions(path, Permissions::from_mode(PRIVATE))
        .map_err(VmmError::io("close to others", path))?;
    Ok(bound)
}

fn open_null() -> Result<File, VmmError> {
    const NULL: &str = "/dev/null";
    File::open(NULL).map_err(VmmError::io("open", NULL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_taken_once() {
        let (state, _theirs) = StateFile::create().expect("memory");
        state.put(b"registers").expect("put");
        assert_eq!(state.take().expect("taken"), b"registers");
        assert!(matches!(state.take(), Err(VmmError::Io { .. })));
    }

    #[test]
    fn a_state_too_large_to_be_one_is_not_read() {
        let (state, _theirs) = StateFile::create().expect("memory");
        state.file.set_len(MAX_STATE + 1).expect("sparse");
        assert!(matches!(state.take(), Err(VmmError::Io { .. })));
    }

    #[test]
    fn the_file_of_another_process_is_found_by_number_and_no_other_file_is() {
        let (state, _theirs) = StateFile::create().expect("memory");
        state.put(b"x").expect("put");
        let number = state.number().expect("open");
        let again = StateFile::of_number(std::process::id(), number).expect("found");
        assert_eq!(again.take().expect("taken"), b"x");
        let other = File::open("/dev/null").expect("device");
        assert!(StateFile::of_number(std::process::id(), other.as_raw_fd()).is_err());
    }
}
