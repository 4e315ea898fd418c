//! Tests of traffic that other programs of the host lead somewhere else.

use crate::{
    beyond::{at, heard, is_refused, listen, nat},
    guest::{PATIENCE, SILENCE, alone, family_with},
};
use forkyard_e2e::{
    Outside,
    outside::{PRIVATE, SERVER},
};
use forkyard_types::NetworkPolicy;

#[test]
fn what_another_program_leads_elsewhere_is_judged_by_where_that_is() {
    alone(|networks| async move {
        let outside = Outside::join();
        let [guest] = family_with(&networks, 0, nat()).await;
        guest.gateway();
        let server = listen(&outside, PRIVATE);
        let rules = format!(
            "table ip elsewhere {{ chain pre {{ type nat hook prerouting priority dstnat; \
             ip daddr {SERVER} dnat to {PRIVATE}; }}; }}"
        );
        let led = std::process::Command::new("nft").arg(rules).status();
        assert!(led.expect("nft runs").success());
        guest.sends_out(1000, at(SERVER), b"round");
        assert!(is_refused(&guest));
        assert_eq!(heard(&server, b"round", SILENCE), None);
        let there = NetworkPolicy {
            allow: vec![format!("{PRIVATE}/32").parse().expect("a destination")],
            ..nat()
        };
        networks.set_way(guest.family, &there).await.expect("open");
        guest.sends_out(1001, at(SERVER), b"allowed");
        assert!(heard(&server, b"allowed", PATIENCE).is_some());
        let elsewhere = NetworkPolicy {
            allow: vec![format!("{SERVER}/32").parse().expect("a destination")],
            ..nat()
        };
        networks
            .set_way(guest.family, &elsewhere)
            .await
            .expect("open");
        guest.sends_out(1002, at(SERVER), b"hidden");
        assert_eq!(heard(&server, b"hidden", SILENCE), None);
    });
}
