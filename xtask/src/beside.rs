//! A chore that runs beside another, out of its way: at the lowest priority, and heard of
//! when the other is done.

use crate::run::Run;
use anyhow::{Context, Result};
use std::thread::{self, JoinHandle};

/// One that has begun. Dropped, it goes on unheard.
#[derive(Debug)]
pub struct Beside(JoinHandle<(String, Result<()>)>);

impl Beside {
    /// Begins it.
    pub fn begin(run: Run) -> Self {
        Self(thread::spawn(|| run.low().heard_afterwards()))
    }

    /// Waits for its end, and passes on what it printed; that it failed is an error.
    pub fn end(self) -> Result<()> {
        let (said, outcome) = self.0.join().ok().context("its thread panicked")?;
        print!("{said}");
        outcome
    }
}
