//! Several VMs that belong together, each with a system of its own, as one file says: which they are,
//! which of them wait for which, and when each is well. Policy alone; nothing here waits or connects.
//!
//! ```text
//! TOML or YAML --parse--> File --check--> Composition --startable--> members whose command may begin now
//! ```

mod check;
mod file;
mod health;
mod yaml;

pub use check::{ComposeError, Composition, Form, Member, Of};
pub use file::{File, HealthFile, MemberFile};
pub use health::{Health, Pulse, Verdict};
pub use yaml::LONGEST;

/// Label of a VM: the composition that it belongs to.
pub const COMPOSITION: &str = "composition";
/// Label of a VM: its member's name in the composition.
pub const MEMBER: &str = "member";
