//! The ledger beside a real etcd: what is granted adds up, however many ask at once.

use forkyard_etcd::{Etcd, server::Server};
use forkyard_placement::{
    AllocateError, Allocator, Book, CloneLayout, CloneNeed, Ledger, Offer, PlacementDenied, Wish,
};
use forkyard_types::{ByteCount, NodeName, Room};
use futures::future::join_all;
use std::{collections::BTreeMap, time::Duration};

fn name(text: &str) -> NodeName {
    text.parse().expect("a name")
}

async fn offer(etcd: &Etcd, book: &Book, node: &str, vcpus: u32) {
    let offer = Offer {
        offers: Room {
            vcpus,
            memory: ByteCount(1 << 40),
        },
        taken: Room::default(),
        vms: 0,
        users: BTreeMap::new(),
    };
    let text = serde_json::to_vec(&offer).expect("JSON");
    let put = etcd.put(&book.offer(&name(node)), text, None).await;
    put.expect("put");
}

fn wish(count: u16, user: Option<&str>) -> Wish {
    Wish {
        user: user.map(str::to_owned),
        count,
        need: CloneNeed {
            vcpus: 2,
            memory: ByteCount(1 << 20),
        },
        layout: CloneLayout::Spread,
        near: None,
        only: None,
    }
}

#[tokio::test]
async fn many_who_ask_at_once_get_exactly_what_there_is() {
    let server = Server::start().expect("etcd");
    let (etcd, book) = (server.client(), Book::default());
    for node in ["a", "b", "c"] {
        offer(&etcd, &book, node, 20).await;
    }
    let ledger = Ledger::new(etcd.clone(), book.clone(), None);
    let (here, three) = (name("a"), wish(3, None));
    let grants = join_all((0..12).map(|_| ledger.reserve(&here, &three))).await;
    let mut granted = Vec::new();
    for grant in grants {
        match grant {
            Ok(grant) => granted.push(grant),
            Err(AllocateError::Denied(PlacementDenied::NoRoom { .. })) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let count: u16 = granted.iter().map(forkyard_placement::Grant::count).sum();
    assert_eq!(count, 30);
    let picture = ledger.picture().await.expect("read");
    for node in ["a", "b", "c"] {
        assert_eq!(picture.taken(&name(node)).vcpus, 20, "{node}");
    }
    // What is given back can be had again, and twice is as once.
    let first = granted.remove(0);
    ledger.release(first.id).await.expect("released");
    ledger.release(first.id).await.expect("released before");
    let again = ledger.reserve(&here, &wish(99, None)).await.expect("room");
    assert_eq!(again.count(), first.count());
    let others = ledger.granted_to(&name("b")).await;
    assert_eq!(others.expect("asked"), []);
    for grant in granted {
        ledger.release(grant.id).await.expect("released");
    }
    let own = ledger.granted_to(&here).await;
    assert_eq!(own.expect("asked"), [again.id]);
    let left = ledger.picture().await.expect("read").grants;
    assert_eq!(left, [again]);
}

#[tokio::test]
async fn quotas_and_draining_nodes_bind_from_the_moment_they_are_written() {
    let server = Server::start().expect("etcd");
    let (etcd, book) = (server.client(), Book::default());
    offer(&etcd, &book, "a", 20).await;
    offer(&etcd, &book, "b", 20).await;
    etcd.put(&book.quota("ci"), "6", None).await.expect("put");
    etcd.put(&book.draining(&name("b")), "", None)
        .await
        .expect("put");
    let ledger = Ledger::new(etcd.clone(), book.clone(), None);
    let grant = ledger.reserve(&name("a"), &wish(9, Some("ci"))).await;
    let grant = grant.expect("three");
    assert_eq!((grant.count(), grant.on(&name("a"))), (3, 3));
    let more = ledger.reserve(&name("a"), &wish(1, Some("ci"))).await;
    assert!(matches!(
        more,
        Err(AllocateError::Denied(PlacementDenied::Quota { .. }))
    ));
    let others = ledger.reserve(&name("a"), &wish(99, Some("x"))).await;
    assert_eq!(others.expect("room").count(), 7);
}

#[tokio::test]
async fn grants_go_with_their_holders_lease_and_nodes_with_theirs() {
    let server = Server::start().expect("etcd");
    let (etcd, book) = (server.client(), Book::default());
    offer(&etcd, &book, "a", 4).await;
    let lease = etcd.grant(Duration::from_secs(600)).await.expect("granted");
    let ledger = Ledger::new(etcd.clone(), book.clone(), Some(lease));
    let grant = ledger.reserve(&name("a"), &wish(9, None)).await;
    assert_eq!(grant.expect("room").count(), 2);
    let full = ledger.reserve(&name("a"), &wish(1, None)).await;
    assert!(matches!(
        full,
        Err(AllocateError::Denied(PlacementDenied::NoRoom { .. }))
    ));
    etcd.revoke(lease).await.expect("ended");
    let next = Ledger::new(etcd, book, None);
    let grant = next.reserve(&name("a"), &wish(9, None)).await;
    assert_eq!(grant.expect("room again").count(), 2);
}
