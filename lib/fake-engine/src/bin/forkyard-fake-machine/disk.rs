//! The disk: slices, of which one is written to.

use std::{
    fs::File,
    io,
    path::PathBuf,
    sync::{Mutex, MutexGuard},
};

use forkyard_fake_engine::{OrderRefusal, Reply};

#[derive(Debug)]
pub struct Disk(Mutex<Slices>);

#[derive(Debug)]
struct Slices {
    /// By number, the oldest first; none of those that were closed.
    opened: Vec<Option<PathBuf>>,
    active: Option<usize>,
}

/// Opens a slice as QEMU would.
fn check(path: &PathBuf) -> io::Result<()> {
    File::options().read(true).write(true).open(path).map(drop)
}

impl Disk {
    pub fn open(path: Option<PathBuf>) -> io::Result<Self> {
        path.iter().try_for_each(check)?;
        Ok(Self(Mutex::new(Slices {
            active: path.is_some().then_some(0),
            opened: vec![path],
        })))
    }

    fn slices(&self) -> MutexGuard<'_, Slices> {
        self.0.lock().expect("no holder panics")
    }

    pub fn active(&self) -> Reply {
        let slices = self.slices();
        Reply::Slice(slices.active.and_then(|at| slices.opened[at].clone()))
    }

    pub fn prepare(&self, path: PathBuf) -> Reply {
        let mut slices = self.slices();
        let Some(active) = slices.active else {
            return Reply::Refused(OrderRefusal::NoDisk);
        };
        if let Err(error) = check(&path) {
            return Reply::Refused(OrderRefusal::Other(format!("{}: {error}", path.display())));
        }
        slices.opened.push(Some(path));
        Reply::Opened(slices.opened.len() as u64 - 1, active as u64)
    }

    pub fn freeze(&self, number: u64, over: u64) -> Reply {
        let mut slices = self.slices();
        if slices.active.map(|active| active as u64) != Some(over) {
            return Reply::Refused(OrderRefusal::Stale);
        }
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        match slices.opened.get(number) {
            Some(Some(_)) => {
                slices.active = Some(number);
                Reply::Done
            }
            Some(None) | None => Reply::Refused(OrderRefusal::Other("no such overlay".to_owned())),
        }
    }

    pub fn close(&self, number: u64) -> Reply {
        let mut slices = self.slices();
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        if let Some(slice) = slices.opened.get_mut(number) {
            *slice = None;
        }
        Reply::Done
    }
}
