//! The terminal that this program runs on.

use forkyard_types::WindowSize;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use rustix::termios::tcgetwinsize;
use std::io::stdin;

/// A terminal that passes every key on as it is, until dropped.
pub struct Raw(Termios);

impl Raw {
    /// The one on standard input.
    pub fn enter() -> anyhow::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(stdin(), SetArg::TCSANOW, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &self.0);
    }
}

/// Returns the terminal's size; the usual one if there is none.
pub fn size() -> WindowSize {
    let found = tcgetwinsize(std::io::stdout()).or_else(|_| tcgetwinsize(stdin()));
    let found = found.ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
    found.map_or(WindowSize { rows: 24, cols: 80 }, |size| WindowSize {
        rows: size.ws_row,
        cols: size.ws_col,
    })
}
