//! Scenarios for the scheduler's simulator: read from TOML, run over many
//! seeds, told as a table and drawn as plots.
//!
//! ```text
//! scenario.toml -> Scenario -> (case x policy x seed) -> SimResults -> table, SVG
//! ```
//!
//! Reads no clock and no file: texts come in, and only plots go out.

mod plot;
mod results;
mod scenario;
mod table;

pub use plot::{PlotError, plots};
pub use results::{Measure, Row, SimResults, run};
pub use scenario::{Case, Paper, Scenario, ScenarioError, ScenarioVm};
pub use table::table;

#[cfg(test)]
mod tests;
