//! The fluid model of friendly guests: section 3 of "Friendly Virtual Machines"
//! (Zhang and others, 2004), and the admission controller it is compared with.
//!
//! ```text
//! Model --adapt, admit--> Trajectory --plot--> SVG
//!   +-- steady --> Steady: fixed point, linearisation, roots
//! ```
//!
//! Numbers in, numbers out; only [`plot()`] writes a file.

mod integrate;
mod model;
mod plot;
mod steady;

pub use integrate::{FluidError, Trajectory, adapt, admit};
pub use model::{Model, ModelError};
pub use plot::{PlotError, plot};
pub use steady::{CharacteristicRoot, Regime, Roots, Steady, paper_roots, steady};
