//! Tests of the life of network objects, and of leftovers.

use crate::guest::{Guest, alone, family, until};
use forkyard_network::{Closed, Link, NetworkError, Networks, Subnet};
use forkyard_types::{FamilyId, Member, NetworkPolicy, Transport, VmId};
use nftables::{
    helper::{
        DEFAULT_ARGS, DEFAULT_NFT, NftablesError, apply_ruleset_raw, get_current_ruleset_with_args,
    },
    schema::{NfListObject, NfObject},
};
use std::{
    collections::BTreeSet,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
};

/// The number of members in the rules, if there are rules.
pub fn members() -> Option<usize> {
    let set = ["list", "set", "bridge", "forkyard", "members"];
    let set = match get_current_ruleset_with_args(None::<&str>, set) {
        Err(NftablesError::NftFailed { .. }) => return None,
        other => other.expect("nft lists"),
    };
    set.objects.iter().find_map(|object| {
        let NfObject::ListObject(NfListObject::Set(set)) = object else {
            return None;
        };
        Some(set.elem.as_ref().map_or(0, |members| members.len()))
    })
}

/// The networks, once their former owner is gone.
pub async fn opened() -> Networks {
    let mut networks = None;
    until(async || {
        networks = Networks::open(BTreeSet::new()).await.ok();
        networks.is_some()
    })
    .await;
    networks.expect("opened")
}

#[test]
fn taps_go_with_their_descriptors_and_bridges_with_their_families() {
    alone(|networks| async move {
        let [guest] = family(&networks, 0).await;
        let (bridge, tap) = (Link::Bridge(guest.family), Link::Tap(guest.vm));
        let mut links = networks.links().expect("listed");
        links.sort_by_key(|link| link.name());
        assert_eq!(links, [bridge, tap]);
        let family = guest.family;
        drop(guest);
        until(async || networks.links().expect("listed") == [bridge]).await;
        networks.remove_family(family).await.expect("removed");
        let again = networks.remove_family(family).await;
        again.expect("removing nothing is no error");
        assert_eq!(networks.links().expect("listed"), []);
    });
}

#[test]
fn what_was_closed_to_guests_is_closed_as_soon_as_there_are_rules() {
    alone(|networks| async move {
        let closed = || {
            let set = ["list", "set", "ip", "forkyard", "closed"];
            let set = get_current_ruleset_with_args(None::<&str>, set).expect("nft lists");
            let elements = set.objects.iter().find_map(|object| match object {
                NfObject::ListObject(NfListObject::Set(set)) => set.elem.as_ref(),
                NfObject::ListObject(_) | NfObject::CmdObject(_) => None,
            });
            elements.map_or(0, |elements| elements.len())
        };
        assert_eq!(closed(), 0);
        drop(networks);
        let etcd = Closed {
            at: "192.0.2.1:2379".parse().expect("a place"),
            transport: Transport::Tcp,
        };
        let mut again = None;
        until(async || {
            again = Networks::open(BTreeSet::from([etcd])).await.ok();
            again.is_some()
        })
        .await;
        assert_eq!(closed(), 1);
        let again = again.expect("opened");
        again.close(BTreeSet::new()).await.expect("opened");
        assert_eq!(closed(), 0);
    });
}

#[test]
fn those_who_are_forgotten_leave_nothing_in_the_rules() {
    alone(|networks| async move {
        let subnet = Subnet::of(7).expect("room");
        let guests: Vec<_> = (0..20)
            .filter_map(|member| Some((VmId::random(), subnet.address(Member(member))?)))
            .collect();
        networks.admit(&guests).await.expect("admitted");
        assert_eq!(members(), Some(20));
        let going = guests[1..].iter().map(|(vm, _)| networks.forget(*vm));
        for gone in futures::future::join_all(going).await {
            gone.expect("forgotten");
        }
        assert_eq!(members(), Some(1));
    });
}

#[test]
fn whoever_is_not_in_the_rules_can_be_forgotten() {
    alone(|networks| async move {
        let [guest] = family(&networks, 0).await;
        let flush = r#"{"nftables": [{"flush": {"set": {"family": "bridge", "table": "forkyard", "name": "members"}}}]}"#;
        apply_ruleset_raw(flush, DEFAULT_NFT, DEFAULT_ARGS).expect("flushed");
        networks.forget(guest.vm).await.expect("forgotten");
        let never_admitted = networks.forget(VmId::random()).await;
        never_admitted.expect("nothing to do");
    });
}

#[test]
fn one_who_gives_up_waiting_is_forgotten_with_the_next() {
    alone(|networks| async move {
        let [a, b] = family(&networks, 0).await;
        {
            let first = networks.forget(a.vm);
            let mut given_up = std::pin::pin!(networks.forget(b.vm));
            let (done, ()) = futures::join!(first, async {
                assert!(futures::poll!(&mut given_up).is_pending());
            });
            done.expect("forgotten");
        }
        let c = Guest::new(&networks, a.family, 0, 2).await;
        networks.forget(c.vm).await.expect("forgotten");
        assert_eq!(members(), Some(0));
    });
}

#[test]
fn a_new_owner_starts_with_rules_of_its_own() {
    alone(|networks| async move {
        let [a, b] = family(&networks, 0).await;
        drop(networks);
        let networks = opened().await;
        assert_eq!(members(), Some(0));
        let packet = a.packet_to(&b);
        a.send(&packet);
        assert!(b.misses(&packet), "not admitted by this one");
        let admitted = networks.admit(&[(a.vm, a.address)]).await;
        admitted.expect("admitted");
        let subnet = Subnet::of(0).expect("room");
        let restored = networks
            .restore_family(a.family, subnet, &NetworkPolicy::default(), None)
            .await;
        restored.expect("restored");
        a.send(&packet);
        assert!(b.receives(&packet), "its port is still open");
    });
}

#[test]
fn removed_rules_are_gone() {
    alone(|networks| async move {
        assert_eq!(members(), Some(0));
        networks.remove_rules().await.expect("removed");
        assert_eq!(members(), None);
        let again = networks.remove_rules().await;
        again.expect("removing nothing is no error");
    });
}

#[test]
fn a_namespace_has_one_owner() {
    alone(|first| async move {
        // What any user can do takes it from none.
        let squatter = SocketAddr::from_abstract_name("forkyard.network")
            .and_then(|name| UnixListener::bind_addr(&name));
        let _squatter = squatter.expect("nobody has it");
        assert!(matches!(
            Networks::open(BTreeSet::new()).await,
            Err(NetworkError::Taken { .. })
        ));
        drop(first);
        opened().await;
    });
}

#[test]
fn a_port_of_a_family_without_a_bridge_is_refused() {
    alone(|networks| async move {
        let guest = Guest::new(&networks, FamilyId::random(), 0, 0).await;
        let refused = networks.open_port(guest.family, guest.vm).await;
        assert!(matches!(refused, Err(NetworkError::NoLink { .. })));
    });
}
