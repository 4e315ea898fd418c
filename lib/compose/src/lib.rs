//! Several VMs that belong together, each with a system of its own, as one file says: which they are,
//! which of them wait for which, and when each is well. Policy alone; nothing here waits or connects.
//!
//! ```text
//! TOML or YAML --parse--> ComposeFile --check--> Composition --startable--> members that may begin
//! ```

mod check;
mod file;
mod health;
mod yaml;

pub use check::{ComposeError, ComposeMember, Composition, FileFormat, Of};
pub use file::{ComposeFile, HealthFile, MemberFile};
pub use health::{HealthCheck, MemberHealth, TestVerdict};
pub use yaml::LONGEST;

/// Label of a VM: the composition that it belongs to.
pub const COMPOSITION: &str = "composition";
/// Label of a VM: its member's name in the composition.
pub const MEMBER: &str = "member";
