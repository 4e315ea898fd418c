//! The network of a family over several hosts ("sites"): where each member is, and
//! the entries of each site's kernel that follow from it.
//!
//! ```text
//! loans of places --.
//! sightings --------+--> Span --> Table --difference--> TablePlan: what to change, in which order
//! part in a move ---'
//! ```
//!
//! A move of a member, as each site has it:
//!
//! ```text
//!                        expected             stopped            announced
//! source       its port  |  its port          |  on to the destination  |  the destination
//! destination  source    |  its port, shut    |  its port, shut         |  its port
//! any other    source    |  source            |  source                 |  the destination
//! ```
//!
//! Frames that reach the port while it is shut wait there. The source passes on what
//! still comes to it, and the destination takes that from the source alone: so no frame
//! goes round, however late a site hears of the move.
//!
//! Opens no socket and reads no clock.

mod holdings;
mod news;
mod part;
mod span;
mod subnet;
mod table;
mod whereabouts;

pub use holdings::Holding;
pub use news::{Key, MOST_SIGHTINGS, News, NewsError};
pub use part::{Event, Part, Port};
pub use span::Span;
pub use subnet::Subnet;
pub use table::{Table, TableChange, TablePlan};
pub use whereabouts::{PlaceGeneration, PlaceNews, Whereabout, Whereabouts};

#[cfg(test)]
mod tests;
