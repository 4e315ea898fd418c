//! Changes of nodes between two looks.

use forkyard_types::{NodeChanged, NodeName, NodeState};
use std::collections::{BTreeMap, BTreeSet};

/// The nodes, and how each stands.
pub type NodeStates = BTreeMap<NodeName, NodeState>;

/// Returns the nodes that stand otherwise than before, have joined or were removed, by name.
pub fn news(before: &NodeStates, after: &NodeStates) -> Vec<(NodeName, NodeChanged)> {
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let change = |name: &NodeName| NodeChanged {
        from: before.get(name).copied(),
        to: after.get(name).copied(),
    };
    let changes = names.into_iter().map(|name| (name.clone(), change(name)));
    changes.filter(|(_, it)| it.from != it.to).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use NodeState::{Active, Lost};

    fn states<const N: usize>(states: [(&str, NodeState); N]) -> NodeStates {
        let named = states.map(|(name, state)| (name.parse().expect("a name"), state));
        named.into()
    }

    #[test]
    fn joining_losing_a_lease_and_leaving_are_told_and_nothing_else() {
        let before = states([("a", Active), ("b", Active), ("c", Lost)]);
        let after = states([("a", Active), ("b", Lost), ("d", Active)]);
        let told = news(&before, &after);
        let told: Vec<_> = told
            .iter()
            .map(|(name, it)| (name.as_str(), it.from, it.to))
            .collect();
        assert_eq!(
            told,
            [
                ("b", Some(Active), Some(Lost)),
                ("c", Some(Lost), None),
                ("d", None, Some(Active)),
            ]
        );
        assert!(news(&after, &after).is_empty());
    }
}
