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
    let right = r#", "mcp": null, "network": {"allowPublicTraffic": true}, "metadata": {"a": "b"}"#;
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
