//! Turns by sched_ext: a scheduler of our own in BPF, which decides nothing.
//!
//! ```text
//! take: a queue for the thread --> (its class is set) --> decide, as often as wanted
//!                                  (its class is set back) --> forget
//! the kernel ends the scheduler: an error of the next decide; nothing is left of it
//! ```
//!
//! The programs are in `sched-ext/forkyard.bpf.c`. The scheduler lives as long as a
//! descriptor in this process does: when the process dies, the kernel takes every
//! thread back to the usual class by itself. It does so too when a thread that would
//! run has not run for 30 s.

use crate::{DispatchError, mechanism::Turn};
use libbpf_rs::{
    Link, Map, MapCore, MapFlags, Object, ObjectBuilder, PrintLevel, ProgramInput, ProgramMut,
    set_print,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Folder in which the kernel tells of it.
const KERNEL: &str = "/sys/kernel/sched_ext";
/// The first namespace's number: numbers of threads in BPF are of that one.
const FIRST_PIDS: &str = "pid:[4026531836]";

/// As the programs have them.
const FREE: i32 = -1;
const WAITS: i32 = -2;
const MOST: usize = 256;

/// The scheduler, which may not be loaded now.
#[derive(Debug)]
pub struct SchedExt {
    path: PathBuf,
    loaded: Option<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    /// First, for it goes first: what it holds together is the other's.
    _link: Link,
    object: Object,
}

impl SchedExt {
    /// Looks whether it can be.
    pub(crate) fn new(path: &Path) -> Result<Self, DispatchError> {
        match state() {
            Ok(Free::Yes) => {}
            Ok(Free::No) => return Err(taken()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(DispatchError::NoSchedExt);
            }
            Err(error) => return Err(DispatchError::host("read", KERNEL)(error)),
        }
        // A kernel without namespaces has one of each.
        match fs::read_link("/proc/self/ns/pid") {
            Ok(pids) if pids != Path::new(FIRST_PIDS) => return Err(DispatchError::Contained),
            Ok(_) | Err(_) => {}
        }
        fs::File::open(path).map_err(DispatchError::host("open", path))?;
        set_print(Some((PrintLevel::Debug, |level, text| match level {
            PrintLevel::Warn => tracing::warn!("{}", text.trim_end()),
            PrintLevel::Info | PrintLevel::Debug => tracing::debug!("{}", text.trim_end()),
        })));
        Ok(Self {
            path: path.to_owned(),
            loaded: None,
        })
    }

    /// Gives a thread a queue, in which it waits once it is of the class. Loads the
    /// scheduler if it is not.
    pub(crate) fn take(&mut self, tid: u32) -> Result<(), DispatchError> {
        let loaded = match self.loaded.take() {
            Some(loaded) => loaded,
            None => Loaded::load(&self.path)?,
        };
        self.loaded.insert(loaded).on_thread("take", tid)
    }

    /// Takes it away again, from a thread that is of the class no more.
    pub(crate) fn forget(&mut self, tid: u32) -> Result<(), DispatchError> {
        match &self.loaded {
            Some(loaded) => loaded.on_thread("forget", tid),
            None => Ok(()),
        }
    }

    /// Tells every vCPU's turn. To tell the same again puts right what the kernel
    /// has done meanwhile. If the kernel has ended the scheduler, every thread is of the
    /// usual class already.
    pub(crate) fn decide(&mut self, turns: &[(u32, Turn)]) -> Result<(), DispatchError> {
        let Some(loaded) = &self.loaded else {
            return Ok(());
        };
        for some in turns.chunks(MOST) {
            let ended = loaded.decide(some)?;
            if ended != 0 {
                self.loaded = None;
                return Err(DispatchError::Ejected(ended));
            }
        }
        Ok(())
    }
}

impl Loaded {
    fn load(path: &Path) -> Result<Self, DispatchError> {
        let cannot = |what| move |source| DispatchError::Bpf { what, source };
        let open = { ObjectBuilder::default().open_file(path) }.map_err(cannot("open"))?;
        let mut object = open.load().map_err(cannot("load"))?;
        let mut maps = object.maps_mut();
        let mut scheduler = maps
            .find(|map| map.name() == "forkyard")
            .ok_or(DispatchError::NotOurs)?;
        // The one that was there first stays.
        let link = { scheduler.attach_struct_ops() }.map_err(|source| match state() {
            Ok(Free::No) => taken(),
            Ok(Free::Yes) | Err(_) => cannot("begin")(source),
        })?;
        drop(maps);
        Ok(Self {
            _link: link,
            object,
        })
    }

    fn program(&self, name: &str) -> Result<ProgramMut<'_>, DispatchError> {
        let found = self.object.progs_mut().find(|it| it.name() == name);
        found.ok_or(DispatchError::NotOurs)
    }

    fn map(&self, name: &str) -> Result<Map<'_>, DispatchError> {
        let found = self.object.maps().find(|it| it.name() == name);
        found.ok_or(DispatchError::NotOurs)
    }

    /// Runs a program, and says what it returns.
    fn run(&self, name: &'static str, context: &mut [u8]) -> Result<u32, DispatchError> {
        let input = ProgramInput {
            context_in: Some(context),
            ..ProgramInput::default()
        };
        let output = self.program(name)?.test_run(input);
        let cannot = |source| DispatchError::Bpf { what: name, source };
        Ok(output.map_err(cannot)?.return_value)
    }

    fn on_thread(&self, name: &'static str, tid: u32) -> Result<(), DispatchError> {
        let returned = self.run(name, &mut tid.to_ne_bytes())?;
        match returned.cast_signed() {
            0 => Ok(()),
            error => {
                let error = io::Error::from_raw_os_error(error.saturating_neg());
                Err(DispatchError::host(
                    "have sched_ext know",
                    format!("/proc/{tid}"),
                )(error))
            }
        }
    }

    /// Says why the kernel has ended the scheduler, or 0.
    fn decide(&self, turns: &[(u32, Turn)]) -> Result<u32, DispatchError> {
        let cannot = |source| DispatchError::Bpf {
            what: "decide",
            source,
        };
        let told = self.map("told")?;
        told.update(&0_u32.to_ne_bytes(), &encode(turns), MapFlags::ANY)
            .map_err(cannot)?;
        self.run("decide", &mut [0; 4])
    }
}

/// As `struct decisions` has them: a count, then for each a thread, its turn, and
/// room for the turn before. Those beyond [`MOST`] are left out.
fn encode(turns: &[(u32, Turn)]) -> Vec<u8> {
    let some = &turns[..turns.len().min(MOST)];
    let mut bytes = Vec::with_capacity(4 + 12 * MOST);
    let count = u32::try_from(some.len()).unwrap_or(0);
    bytes.extend(count.to_ne_bytes());
    for &(tid, turn) in some {
        let turn = match turn {
            Turn::On(cpu) => i32::try_from(cpu).unwrap_or(WAITS),
            Turn::Waits => WAITS,
            Turn::Free => FREE,
        };
        bytes.extend(tid.to_ne_bytes());
        bytes.extend(turn.to_ne_bytes());
        bytes.extend([0; 4]);
    }
    bytes.resize(4 + 12 * MOST, 0);
    bytes
}

/// Result of loading a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Free {
    Yes,
    No,
}

fn state() -> io::Result<Free> {
    let state = fs::read_to_string(format!("{KERNEL}/state"))?;
    Ok(match state.trim() {
        "disabled" => Free::Yes,
        _ => Free::No,
    })
}

/// Another program's scheduler is loaded.
fn taken() -> DispatchError {
    let name = fs::read_to_string(format!("{KERNEL}/root/ops")).unwrap_or_default();
    DispatchError::Taken(name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_written_as_the_programs_read_them() {
        let turns = [(7, Turn::On(3)), (8, Turn::Waits), (9, Turn::Free)];
        let bytes = encode(&turns);
        assert_eq!(bytes.len(), 4 + 12 * MOST);
        let numbers: Vec<i32> = { bytes.chunks_exact(4) }
            .map(|four| i32::from_ne_bytes(four.try_into().expect("four")))
            .collect();
        assert_eq!(numbers[..10], [3, 7, 3, 0, 8, WAITS, 0, 9, FREE, 0]);
        assert!(numbers[10..].iter().all(|&number| number == 0));
    }

    #[test]
    fn a_kernel_without_it_is_refused() {
        if Path::new(KERNEL).exists() {
            // Past what keeps a test's words back: such lines are counted.
            let line = b"\nskipped: a_kernel_without_it_is_refused: this kernel has sched_ext\n";
            std::io::Write::write_all(&mut std::io::stdout(), line).expect("said");
            return;
        }
        let refused = SchedExt::new(Path::new("/nowhere"));
        assert!(matches!(refused, Err(DispatchError::NoSchedExt)));
    }
}
