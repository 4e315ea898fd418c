//! Policy of substrates: kinds, access, and what a guest is rid of before it becomes one.
//!
//! ```text
//! kind + lists + request --Lists::plan--> Plan --(the guest carries it out)--> Prepared
//! kind + owner + asker --access::may--> allowed or refused
//! pool + limit + size --pool::make_room--> what goes, or that it is full
//! ```
//!
//! Performs no I/O and reads no clock.

pub mod access;
#[cfg(feature = "lists")]
mod lists;
mod path;
mod plan;
pub mod pool;
#[cfg(feature = "sign")]
pub mod sign;

#[cfg(feature = "lists")]
pub use lists::{Lists, ListsError};
pub use path::matches;
pub use plan::{Plan, Prepared};

/// Name of the file of lists, beside the folder of recipes.
pub const LISTS: &str = "generalise.toml";
