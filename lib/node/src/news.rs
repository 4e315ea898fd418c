//! Events of a cluster's nodes, as this one hears of them.

use forkyard_cluster::{Cluster, news};
use forkyard_fork::Host;
use forkyard_types::{EventSubject, Occurrence};

/// Tells of nodes that join, stand otherwise than before, or are removed, for ever. Those that
/// are known at first are not told of. Cancel-safe.
pub async fn tell(cluster: &Cluster, host: &Host) {
    let mut changes = cluster.changes();
    let mut known = cluster.states();
    // It ends with the cluster's own part of this daemon.
    while changes.changed().await.is_ok() {
        let now = cluster.states();
        for (node, change) in news(&known, &now) {
            let subject = EventSubject {
                node: Some(node),
                ..EventSubject::default()
            };
            host.events()
                .publish(subject, Occurrence::NodeChanged(change));
        }
        known = now;
    }
}
