//! Folders of commands in clones, coming home.

use super::report::TaskNo;
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Receivers of folders that are under way, into one folder here.
pub struct Folders {
    home: PathBuf,
    under_way: BTreeMap<TaskNo, Child>,
}

impl Folders {
    /// Makes the folder they come to, unless it is there.
    pub fn into(home: &Path) -> io::Result<Self> {
        fs::create_dir_all(home)?;
        Ok(Self {
            home: fs::canonicalize(home)?,
            under_way: BTreeMap::new(),
        })
    }

    /// Takes in a piece of a command's folder.
    pub fn feed(&mut self, number: TaskNo, data: &[u8]) -> io::Result<()> {
        if !self.under_way.contains_key(&number) {
            let receiver = Command::new(crate::PROGRAM)
                .args(["files", "receive"])
                .arg(&self.home)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()?;
            self.under_way.insert(number, receiver);
        }
        let receiver = self.under_way.get_mut(&number);
        let input = receiver.and_then(|receiver| receiver.stdin.as_mut());
        input.ok_or(io::ErrorKind::BrokenPipe)?.write_all(data)
    }

    /// Waits until a command's folder, if it has one, is here.
    pub fn finish(&mut self, number: TaskNo) -> io::Result<()> {
        let Some(mut receiver) = self.under_way.remove(&number) else {
            return Ok(());
        };
        // Closes its input, too.
        match receiver.wait()?.success() {
            true => Ok(()),
            false => Err(io::Error::other("it did not come home whole")),
        }
    }
}
