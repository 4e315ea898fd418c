//! A pager that is gone for good, noticed and replaced.
//!
//! A pager that dies is followed by another within milliseconds: its keeper starts that. Once the
//! keeper is gone as well, or has given up, none comes. What runs then lacks its memory, and ends as it meets that; a
//! host on which nothing runs takes a new one, and goes on.

use crate::Host;
use std::time::Duration;
use tokio::time::sleep;

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(2);
/// Looks without an answer, one after the other, after which it is gone.
const LOOKS: u32 = 2;

impl Host {
    /// Looks after the pager until the host is closed.
    pub(crate) fn watch_pager(&self) {
        let host = self.handle();
        tokio::spawn(async move {
            let mut unanswered = 0;
            loop {
                sleep(EVERY).await;
                let Some(host) = host.upgrade() else { return };
                unanswered = match host.parts.pager_call(|pager| pager.ping()).await {
                    Ok(()) => 0,
                    Err(_) => unanswered + 1,
                };
                if unanswered < LOOKS || host.parts.runs_something() {
                    continue;
                }
                // It is closing: its pager ends with it.
                if host.forks.under_way.is_closed() {
                    return;
                }
                if let Err(error) = host.parts.need_pager().await {
                    tracing::error!(error = &error as &dyn std::error::Error, "no pager");
                }
            }
        });
    }
}
