//! A chore of ours that runs beside another, out of its way: at the lowest priority, and
//! heard of when the other is done.

use anyhow::{Context, Result, ensure};
use std::{
    env, io,
    path::Path,
    process::{Command, Output, Stdio},
    thread::{self, JoinHandle},
};

/// One that has begun. Dropped, it goes on unheard.
#[derive(Debug)]
pub struct Beside {
    chore: &'static str,
    ended: JoinHandle<io::Result<Output>>,
}

impl Beside {
    /// Begins `cargo xtask CHORE`.
    pub fn begin(root: &Path, chore: &'static str) -> Result<Self> {
        let ours = env::current_exe().context("the program that runs")?;
        // Both its outputs in one, for the order tells what an error belongs to.
        let mut command = Command::new("nice");
        command
            .args(["-n", "19", "sh", "-c", r#"exec "$0" "$1" 2>&1"#])
            .arg(ours)
            .arg(chore)
            .current_dir(root)
            .stdin(Stdio::null());
        Ok(Self {
            chore,
            ended: thread::spawn(move || command.output()),
        })
    }

    /// Waits for its end, and passes on what it printed; that it failed is an error.
    pub fn end(self) -> Result<()> {
        let Self { chore, ended } = self;
        let output = ended
            .join()
            .ok()
            .context("its thread panicked")?
            .context("nice")?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        ensure!(output.status.success(), "{chore}: {}", output.status);
        Ok(())
    }
}
