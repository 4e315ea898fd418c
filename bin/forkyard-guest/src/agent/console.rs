//! The guest's console, where commands are heard whose clients are the parent's.
//!
//! A clone has its parent's commands, and no client that follows their output: it goes where
//! `forkyard logs CLONE` shows it, each line with the command's name, up to [`MOST`] bytes of each command.

use crate::foreign;
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

/// Bytes of one command's output.
pub const MOST: usize = 64 << 10;

/// See the module.
#[derive(Clone, Debug)]
pub struct Console(PathBuf);

impl Console {
    /// This guest's.
    pub fn of_guest() -> Self {
        Self("/dev/console".into())
    }

    #[cfg(test)]
    pub fn at(path: &Path) -> Self {
        Self(path.into())
    }

    /// Writes what a command said; `last` if no more of it is shown. A console that cannot be
    /// written costs the command nothing.
    pub fn tell(&self, name: &str, data: &[u8], last: bool) {
        if let Ok(mut console) = foreign::open(File::options().append(true), &self.0) {
            // One that is full of errors has no room for another.
            let _ = console.write_all(lines(name, data, last).as_bytes());
        }
    }
}

/// Returns the name of a command: its program, without the folders.
pub fn name(argv: &[String]) -> String {
    let program = argv.first().map(Path::new);
    let name = program.and_then(Path::file_name).unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn lines(name: &str, data: &[u8], last: bool) -> String {
    let text = String::from_utf8_lossy(data);
    let mut lines: String = text
        .lines()
        .map(|line| format!("{name}: {line}\n"))
        .collect();
    if last {
        lines += &format!("{name}: (what else it says is not shown)\n");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_says_whose_it_is() {
        let argv = ["/usr/bin/make", "-j"].map(str::to_owned);
        let name = name(&argv);
        assert_eq!(lines(&name, b"a\n\nb", false), "make: a\nmake: \nmake: b\n");
        let last = lines(&name, b"\xff", true);
        assert_eq!(
            last,
            "make: \u{fffd}\nmake: (what else it says is not shown)\n"
        );
        assert_eq!(super::name(&[]), "");
    }
}
