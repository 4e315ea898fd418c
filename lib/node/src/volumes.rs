//! Volumes of all nodes.

use crate::Node;
use forkyard_cluster::VolumeHome;
use forkyard_types::{ByteCount, NodeName, VolumeView};
use futures::future::join_all;
use hyper::Method;
use std::{collections::BTreeSet, time::Duration};
use tokio::time::timeout;

/// Longest wait for a node's answer.
const ANSWER: Duration = Duration::from_secs(3);

impl Node {
    /// Lists the volumes of all nodes, sorted by name, of which this node has these. Those of a node that does
    /// not answer are as the cluster knows them.
    pub async fn all_volumes(&self, own: Vec<VolumeView>) -> Vec<VolumeView> {
        let nodes = self.cluster().other_nodes();
        let asked = nodes.iter().map(|node| async move {
            let client = self.cluster().client(node).ok()?;
            let asked = client.call::<Vec<VolumeView>>(Method::GET, "/v1/volumes");
            let all = timeout(ANSWER, asked).await.ok()?.ok()?;
            Some((node, all))
        });
        let answers: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        let answered: BTreeSet<_> = answers.iter().map(|(node, _)| (*node).clone()).collect();
        let mut all = own;
        all.extend(answers.into_iter().flat_map(|(_, volumes)| volumes));
        let known = self.cluster().volumes().await.unwrap_or_else(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "places of volumes not known"
            );
            Vec::new()
        });
        let silent = |home: &VolumeHome| {
            home.node != *self.cluster().name() && !answered.contains(&home.node)
        };
        let silent = known.into_iter().filter(|(_, home)| silent(home));
        all.extend(silent.map(|(id, home)| unseen(id, home)));
        all.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
        all
    }
}

/// Volume of a node that does not answer.
fn unseen(id: String, home: VolumeHome) -> VolumeView {
    let VolumeHome {
        name,
        node,
        term,
        size,
    } = home;
    VolumeView {
        name,
        size,
        stored: ByteCount::default(),
        at: None,
        failure: Some(not_answered(&node)),
        node: Some(node.to_string()),
        id: Some(id),
        term: Some(term),
        moving: None,
        vm: None,
        encrypted: false,
        key_file: None,
        epoch: 0,
        mirrors: Vec::new(),
        law: None,
        lacking: Vec::new(),
        needed_by: Vec::new(),
        snapshots: Vec::new(),
    }
}

fn not_answered(node: &NodeName) -> String {
    format!("its node, {node}, does not answer")
}
