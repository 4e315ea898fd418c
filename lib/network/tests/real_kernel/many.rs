//! As many members as a large fork makes, and names without a race.

use crate::{
    guest::{Guest, alone, family, until},
    lifecycle::members,
};
use forkyard_network::{Link, NetworkError, Subnet};
use forkyard_types::{Member, VmId};
use std::{collections::BTreeSet, net::Ipv4Addr, thread};

const MANY: u16 = 200;

#[test]
fn two_hundred_clones_of_one_family_come_go_and_leave_nothing() {
    alone(|networks| async move {
        let [parent] = family(&networks, 0).await;
        let subnet = Subnet::of(0).expect("room");
        let wanted: Vec<_> = (1..=MANY)
            .filter_map(|member| Some((VmId::random(), subnet.address(Member(member))?)))
            .collect();
        assert_eq!(wanted.len(), usize::from(MANY));
        // As a fork does: taps first, one admission of all, then port by port.
        let taps: Vec<_> = wanted
            .iter()
            .map(|(vm, _)| networks.create_tap(*vm).expect("a tap"))
            .collect();
        networks.admit(&wanted).await.expect("admitted");
        for (vm, _) in &wanted {
            networks.open_port(parent.family, *vm).await.expect("open");
        }
        let clones: Vec<_> = wanted
            .into_iter()
            .zip(taps)
            .map(|((vm, address), tap)| Guest::of(vm, parent.family, address, tap))
            .collect();
        assert_eq!(members(), Some(clones.len() + 1));
        let addresses: BTreeSet<Ipv4Addr> = clones.iter().map(|c| c.address.ip).collect();
        assert_eq!(addresses.len(), clones.len());
        // Each is heard by its parent and its neighbour with its first packet.
        for (one, next) in clones.iter().zip(clones.iter().skip(1)) {
            for other in [next, &parent] {
                let packet = one.packet_to(other);
                one.send(&packet);
                assert!(other.receives(&packet), "{:?}", one.address);
            }
        }
        let forgotten = clones.iter().map(|clone| networks.forget(clone.vm));
        for gone in futures::future::join_all(forgotten).await {
            gone.expect("forgotten");
        }
        drop(clones);
        let bridge = Link::Bridge(parent.family);
        let tap = Link::Tap(parent.vm);
        until(async || {
            let mut left = networks.links().expect("listed");
            left.sort_by_key(|link| link.name());
            left == [bridge, tap]
        })
        .await;
        assert_eq!(members(), Some(1));
    });
}

#[test]
fn of_two_that_create_the_same_tap_at_once_one_has_it_and_the_other_is_told() {
    alone(|networks| async move {
        for _ in 0..20 {
            let vm = VmId::random();
            let race = || {
                let taken = networks.create_tap(vm);
                (taken.is_ok(), taken)
            };
            let outcomes = thread::scope(|scope| {
                let both = [scope.spawn(race), scope.spawn(race)];
                both.map(|thread| thread.join().expect("no panic"))
            });
            let had = outcomes.iter().filter(|(had, _)| *had).count();
            assert_eq!(had, 1);
            for (_, outcome) in outcomes {
                assert!(matches!(outcome, Ok(_) | Err(NetworkError::Tap { .. })));
            }
        }
    });
}
