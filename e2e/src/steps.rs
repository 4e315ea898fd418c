//! A daemon that dies before the Nth thing it does to the outside world: a file
//! made, a message sent, a process started.
//!
//! The daemon is the one that users run: a library loaded ahead of its own
//! (`preload/steps.c`) counts its calls, and kills it at the one chosen.

use std::{
    env,
    ffi::OsString,
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// Variable that has all steps tried, or every so manieth.
const EVERY: &str = "FORKYARD_E2E_STEPS";
/// As the library has it: the call chosen, the calls so far, and the name of
/// the one it died before.
const NUMBERS: usize = 16;
const NAME: usize = 32;
/// The number of the program, and whether it stands still at the call chosen.
const OF: usize = 8;
const STOPS: usize = 8;

/// The steps of whatever daemon runs.
#[derive(Debug)]
pub struct Steps {
    folder: TempDir,
    control: File,
}

impl Steps {
    /// Compiles the library. It does nothing yet.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("preload/steps.c");
        let library = library(&folder);
        let mut gcc = Command::new("gcc");
        gcc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]);
        let status = gcc.arg("-o").arg(library).arg(source).arg("-ldl").status();
        assert!(status.expect("gcc").success());
        let mut control = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(folder.path().join("control"))
            .expect("a file");
        control
            .write_all(&[0; NUMBERS + NAME + OF + STOPS])
            .expect("a small one");
        Self { folder, control }
    }

    /// Returns the variables that a daemon, or a command that starts one, needs
    /// in its environment.
    pub fn variables(&self) -> [(&'static str, OsString); 2] {
        [
            ("LD_PRELOAD", library(&self.folder).into()),
            ("FORKYARD_STEPS", self.folder.path().join("control").into()),
        ]
    }

    /// From here on the steps are those of the server of volumes, or of the daemon again.
    pub fn are_of_blockd(&self, are: bool) {
        let number = u64::from(are).to_ne_bytes();
        let at = (NUMBERS + NAME) as u64;
        self.control.write_all_at(&number, at).expect("written");
    }

    /// From here on the program stands still at the step chosen, until it is told to go on, or dies again.
    pub fn stand_still(&self, still: bool) {
        let stops = u64::from(still).to_ne_bytes();
        let at = (NUMBERS + NAME + OF) as u64;
        self.control.write_all_at(&stops, at).expect("written");
    }

    /// Counts from here on, and kills the daemon before this one; the first is 1.
    pub fn kill_at(&self, step: u64) {
        let nothing = [0; NUMBERS + NAME];
        self.control.write_all_at(&nothing, 0).expect("written");
        let chosen = step.to_ne_bytes();
        self.control.write_all_at(&chosen, 0).expect("written");
    }

    /// Only counts from here on.
    pub fn count_only(&self) {
        self.kill_at(u64::MAX);
    }

    /// Counts no more; gives the steps counted.
    pub fn stop(&self) -> u64 {
        let mut number = [0; 8];
        self.control.read_exact_at(&mut number, 8).expect("read");
        self.control.write_all_at(&[0; 8], 0).expect("written");
        u64::from_ne_bytes(number)
    }

    /// The call before which it died.
    pub fn died_before(&self) -> String {
        let mut name = [0; NAME];
        let at = NUMBERS as u64;
        self.control.read_exact_at(&mut name, at).expect("read");
        String::from_utf8_lossy(&name)
            .trim_end_matches('\0')
            .to_owned()
    }
}

impl Default for Steps {
    fn default() -> Self {
        Self::new()
    }
}

fn library(folder: &TempDir) -> PathBuf {
    folder.path().join("steps.so")
}

/// Chooses the steps to try, of so many: `few` of them, spread evenly, or more of them
/// on request: `FORKYARD_E2E_STEPS=1` is every one.
pub fn chosen(total: u64, few: u64) -> Vec<u64> {
    let every = env::var(EVERY).ok().map(|text| text.parse());
    let every = every.map(|number| number.expect("FORKYARD_E2E_STEPS is a number"));
    let stride = every.unwrap_or(total.div_ceil(few)).max(1);
    (1..=total)
        .step_by(usize::try_from(stride).expect("few"))
        .collect()
}
