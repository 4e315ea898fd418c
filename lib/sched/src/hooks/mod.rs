//! Hooks that change a choice: gangs, and SBCO.

mod gang;
mod sbco;

pub use gang::{Gang, Leader};
pub use sbco::{Sbco, SbcoKnobs};
