//! The networks' rules, watched for as long as the host lives, and what is closed to
//! guests.
//!
//! Rules that another program removes are put back at once; what that takes is told in
//! the log and by the doctor. If it fails, the families' bridges are down and it is tried
//! again.

use crate::{Host, HostError};
use forkyard_network::{Closed, Wall};
use std::{collections::BTreeSet, error::Error, time::Duration};
use tokio::time::sleep;

/// Pause before rules are tried again that could not be put back.
const AGAIN: Duration = Duration::from_secs(1);

impl Host {
    /// Closes these destinations to all guests, whatever they are allowed, and opens
    /// those closed before. If cancelled, it happens or not.
    pub async fn close_to_guests(&self, closed: BTreeSet<Closed>) -> Result<(), HostError> {
        if closed != self.parts.network.closed_now() {
            // The next daemon begins with what this one knew.
            let places = closed.iter().map(|closed| (closed.at, closed.transport));
            self.parts.store.put_closed(places)?;
        }
        Ok(self.parts.network.close(closed).await?)
    }

    /// Destinations that are closed to all guests now.
    pub fn closed_to_guests(&self) -> BTreeSet<Closed> {
        self.parts.network.closed_now()
    }

    /// Starts the task that puts rules back. It ends with the host.
    pub(crate) fn watch_rules(&self) {
        let Some(mut watch) = self.parts.network.watch() else {
            return;
        };
        let host = self.handle();
        tokio::spawn(async move {
            loop {
                let commits = match watch.next().await {
                    Ok(commits) => commits,
                    Err(error) => {
                        tracing::error!(%error, "the networks' rules are not watched any more");
                        return;
                    }
                };
                loop {
                    let Some(host) = host.upgrade() else { return };
                    match host.parts.network.mend(&commits).await {
                        Ok(true) => {
                            tracing::warn!(
                                "another program changed the networks' rules: they were put back"
                            );
                            break;
                        }
                        Ok(false) => break,
                        Err(error) => tracing::error!(
                            error = &error as &dyn Error,
                            "the networks' rules are not put back: guests' networks are down"
                        ),
                    }
                    drop(host);
                    sleep(AGAIN).await;
                }
            }
        });
    }

    /// Describes the interference for the doctor.
    pub(crate) fn interference(&self) -> Option<String> {
        let Wall { mended, broken } = self.parts.network.wall();
        match (broken, mended) {
            (true, _) => Some(
                "another program changed the nftables tables `forkyard`, and they could not be put \
                 back yet: guests' networks are down; the daemon's log says why"
                    .to_owned(),
            ),
            (false, 0) => None,
            (false, times) => Some(format!(
                "another program changed the nftables tables `forkyard` {times} times since the \
                 daemon started; they were put back, and guests' networks were down meanwhile: \
                 have it leave them alone (`flush ruleset` in /etc/nftables.conf, say)"
            )),
        }
    }
}
