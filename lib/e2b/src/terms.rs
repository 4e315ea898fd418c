//! Terms of a sandbox, and their encoding in its VM's labels.

use crate::NewSandbox;
use forkyard_types::{AtEnd, Labels, Lifetime, VmId};

/// Labels of the sandbox's that are not its metadata begin so.
pub const OURS: &str = "e2b.";
/// Template that it was made of.
pub const TEMPLATE: &str = "e2b.template";
/// Set if it is paused, and not removed, when its time is up.
pub const AUTO_PAUSE: &str = "e2b.autopause";
/// Set if its ports are reached with a token alone.
pub const PRIVATE: &str = "e2b.private";
/// Seconds that a sandbox is wanted if nothing is said.
pub const TIMEOUT_S: u32 = 300;
/// A sandbox that would not be as it is wanted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Undone {
    /// Something that there is not here.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// Metadata of a name that is not the client's to give.
    #[error("metadata {0:?}: names that begin with {OURS:?} are the endpoint's own")]
    Reserved(String),
}

/// Refuses what would not be done, instead of leaving it out.
pub fn check(wanted: &NewSandbox) -> Result<(), Undone> {
    for (what, value) in [
        ("mcp", &wanted.mcp),
        ("volume_mounts", &wanted.volume_mounts),
        ("iam", &wanted.iam),
    ] {
        if value.as_ref().is_some_and(|value| !value.is_null()) {
            return Err(Undone::Unsupported(what.to_owned()));
        }
    }
    if let Some(network) = &wanted.network
        && let Some(name) = network.more.keys().next()
    {
        return Err(Undone::Unsupported(format!("network.{name}")));
    }
    if let Some(name) = wanted.metadata.keys().find(|name| name.starts_with(OURS)) {
        return Err(Undone::Reserved(name.clone()));
    }
    Ok(())
}

/// Labels of the VM that such a sandbox is.
pub fn labels(wanted: &NewSandbox) -> Labels {
    let mut labels = wanted.metadata.clone();
    labels.insert(TEMPLATE.into(), wanted.template.clone());
    if wanted.auto_pause == Some(true) {
        labels.insert(AUTO_PAUSE.into(), "true".into());
    }
    let public = wanted
        .network
        .as_ref()
        .and_then(|it| it.allow_public_traffic);
    if public == Some(false) {
        labels.insert(PRIVATE.into(), "true".into());
    }
    Labels(labels)
}

/// Time for which a sandbox with these labels is wanted, and its end.
pub fn lifetime(labels: &Labels, timeout: Option<u32>) -> Lifetime {
    let action = match labels.0.contains_key(AUTO_PAUSE) {
        true => AtEnd::Pause,
        false => AtEnd::Rm,
    };
    Lifetime {
        ttl_s: timeout.unwrap_or(TIMEOUT_S).clamp(1, Lifetime::MOST_S),
        action: Some(action),
    }
}

/// True if a request that shows no token may be for a VM that it names so: a sandbox of this
/// endpoint's, by its id, which is drawn. Names are guessed, and other VMs are none of its business.
pub fn is_told(labels: &Labels, id: VmId, named: &str) -> bool {
    labels.0.contains_key(TEMPLATE) && id.as_str() == named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(more: &str) -> NewSandbox {
        serde_json::from_str(&format!("{{\"templateID\": \"t\"{more}}}")).expect("read")
    }

    #[test]
    fn what_would_not_be_done_is_refused() {
        for wrong in [
            r#", "mcp": {}"#,
            r#", "volumeMounts": [1]"#,
            r#", "network": {"denyOut": []}"#,
            r#", "metadata": {"e2b.template": "x"}"#,
        ] {
            assert!(check(&new(wrong)).is_err(), "{wrong}");
        }
        let right =
            r#", "mcp": null, "network": {"allowPublicTraffic": true}, "metadata": {"a": "b"}"#;
        check(&new(right)).expect("all of it is done");
    }

    #[test]
    fn a_sandboxs_end_is_what_its_maker_wanted_every_time() {
        let kept = labels(&new(r#", "autoPause": true"#));
        for (labels, action) in [(Labels::default(), AtEnd::Rm), (kept, AtEnd::Pause)] {
            let wanted = lifetime(&labels, Some(0));
            assert_eq!((wanted.ttl_s, wanted.action), (1, Some(action)));
            assert_eq!(lifetime(&labels, None).ttl_s, TIMEOUT_S);
        }
    }

    #[test]
    fn without_a_token_a_sandbox_is_found_by_its_id_and_no_other_vm_at_all() {
        let id = VmId::random();
        let ours = Labels([(TEMPLATE.to_owned(), "base".to_owned())].into());
        let others = Labels([("user".to_owned(), "ada".to_owned())].into());
        assert!(is_told(&ours, id, id.as_str()));
        for (labels, named) in [(&ours, "p"), (&others, id.as_str()), (&others, "p")] {
            assert!(!is_told(labels, id, named), "{labels:?} {named}");
        }
    }
}
