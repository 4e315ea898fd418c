//! One volume at several sites: its writer, where each block is, and what is sent ahead.
//!
//! ```text
//!            Open, TakeOver --> +-----------+
//! Site A <------ Granted ------ | Authority |  map as of the last close, epoch, lease
//!   |        Close -----------> +-----------+
//!   | Fetch, pushes
//! Site B
//! ```
//!
//! Close-to-open: a writer commits locally. The authority gets its map when it closes, and
//! the next opening begins with that map. A block is read locally if the version there is the one
//! in the map, and is fetched from a site that has it otherwise.
//!
//! Hand-over: the destination has blocks pushed to it before the source lets go, activates
//! nothing, and opens once the source has closed. If it does not, the source opens again: each
//! opening has a new epoch, and the first to ask has the lease. A takeover without a close goes
//! back to the last close; what the former writer wrote since is dropped where it is.
//!
//! State machines: no I/O, no clock, no random numbers. Messages may be lost, doubled, late and
//! out of order; every request may be sent again until it is answered.

mod allowance;
mod authority;
mod fetching;
mod learning;
mod propagation;
pub mod replay;
mod site;
mod stamp;
mod verdict;

pub use allowance::{Allowance, Meter, Money};
pub use authority::{AuthorityAnswer, AuthorityRequest, VolumeAuthority};
pub use fetching::{BlockFetching, BlockRun, Purpose, SiteConnection};
pub use learning::{Learner, Transitions};
pub use propagation::{Decision, Destinations, Knobs, Propagation, Send, SendBudget};
pub use site::{BlockContent, Closing, Read, Site, SiteRole, SiteWriter, Unwritable};
pub use stamp::{BlockEntry, GlobalMap, OpeningId, SiteId, Sites, Stamp};
pub use verdict::{Judgement, TransferVerdict};
