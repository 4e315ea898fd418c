//! Requests of guests, and their limits: tickets, quotas, rates, and what their families reach.

use crate::{bounds::RecentForks, quota::Quotas, ticket::Tickets};
use std::sync::Mutex;

/// Tickets and limits of families.
#[derive(Debug, Default)]
pub(crate) struct Families {
    pub tickets: Mutex<Tickets>,
    pub quotas: Quotas,
    /// Of the checkpoints that guests take.
    pub kept: Quotas,
    pub recent_forks: Mutex<RecentForks>,
    /// Held while what a family may reach is changed.
    pub egress: tokio::sync::Mutex<()>,
}
