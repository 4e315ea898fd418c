//! The allocator on Slurm beside a real Slurm: munged, slurmctld and slurmd.

use forkyard_etcd::server::Server;
use forkyard_placement::{
    AllocateError, Allocator, Book, CloneLayout, CloneNeed, Ledger, Offer, PlacementDenied, Rooms,
    Slurm, Wish, slurm::server,
};
use forkyard_types::{ByteCount, NodeName};
use futures::future::join_all;
use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};
use tokio::time::sleep;

const USER: &str = "ci";
/// Slurm may be slow on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn name(text: &str) -> NodeName {
    text.parse().expect("a name")
}

fn wish(count: u16, vcpus: u8, layout: CloneLayout) -> Wish {
    Wish {
        user: None,
        count,
        need: CloneNeed {
            vcpus,
            memory: ByteCount(100 << 20),
        },
        layout,
        near: Some(name("a")),
        only: None,
    }
}

async fn eventually(holds: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "it never came");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn grants_are_allocations_and_end_with_them() {
    let slurm = server::SlurmServer::start_on(
        Ipv4Addr::LOCALHOST,
        &[("a", 8, 2000), ("b", 4, 2000), ("c", 8, 250)],
    );
    let slurm = slurm.expect("a Slurm");
    let command = |program, words: &[&str]| server::command(&slurm.conf(), program, words);
    let etcd = Server::start().expect("etcd");
    let (client, book) = (etcd.client(), Book::default());
    // A fourth that Slurm does not know.
    for node in ["a", "b", "c", "d"] {
        let offer = serde_json::to_vec(&Offer::default()).expect("JSON");
        let put = client.put(&book.offer(&name(node)), offer, None).await;
        put.expect("put");
    }
    let ledger = Ledger::new(client.clone(), book.clone(), None);
    let rooms = Rooms::Slurm(Slurm::new(ledger, None).of(slurm.conf()));
    let (a, b) = (name("a"), name("b"));
    // What has ended is taken until its node has cleared it away, which is a moment later.
    let taken = async || -> u32 {
        let picture = rooms.picture().await.expect("seen");
        let nodes = ["a", "b", "c"].map(|node| picture.taken(&name(node)).vcpus);
        nodes.iter().sum()
    };

    // What is granted is taken in Slurm, where the policy said.
    let first = rooms.reserve(&a, &wish(9, 1, CloneLayout::Spread)).await;
    let first = first.expect("room");
    assert_eq!(first.count(), 9);
    let (on_a, on_c) = (first.on(&a), first.on(&name("c")));
    // Memory for two there.
    assert_eq!(on_c, 2, "{first:?}");
    let picture = rooms.picture().await.expect("seen");
    assert_eq!(picture.taken(&a).vcpus, u32::from(on_a));
    assert_eq!(
        picture.taken(&a).memory,
        ByteCount(u64::from(on_a) * (100 << 20))
    );
    let nodes: Vec<_> = picture.offers.keys().map(NodeName::as_str).collect();
    assert_eq!(nodes, ["a", "b", "c"]);
    let granted = rooms.granted_to(&a).await.expect("asked");
    assert_eq!(granted, [first.id]);
    assert_eq!(rooms.granted_to(&b).await.expect("asked"), []);

    // Released, it is free again; twice is as once.
    for _ in 0..2 {
        rooms.release(first.id).await.expect("released");
    }
    assert_eq!(rooms.granted_to(&a).await.expect("asked"), []);
    eventually(async || taken().await == 0).await;

    // Many that ask at once get no more than there is: 8 + 4 + 2 clones of one vCPU.
    let three = wish(3, 1, CloneLayout::Pack);
    let grants = join_all((0..6).map(|_| rooms.reserve(&b, &three))).await;
    let (mut granted, mut ids) = (0, Vec::new());
    for grant in grants {
        match grant {
            Ok(grant) => {
                granted += grant.count();
                ids.push(grant.id);
            }
            Err(
                AllocateError::Denied(PlacementDenied::NoRoom { .. }) | AllocateError::Slurm(_),
            ) => {}
            Err(error) => panic!("{error}"),
        }
    }
    eventually(async || taken().await == u32::from(granted)).await;
    assert!((10..=14).contains(&granted), "{granted}");
    for id in ids {
        rooms.release(id).await.expect("released");
    }
    eventually(async || taken().await == 0).await;

    // Quotas are the cluster's, whichever user is first.
    let quota = client.put(&book.quota(USER), "6", None).await;
    quota.expect("put");
    let two = Wish {
        user: Some(USER.into()),
        ..wish(2, 2, CloneLayout::Pack)
    };
    let grants = join_all((0..3).map(|_| rooms.reserve(&a, &two))).await;
    let counts = grants
        .iter()
        .flatten()
        .map(forkyard_placement::Grant::count);
    let vcpus = 2 * counts.sum::<u16>();
    assert!((2..=6).contains(&vcpus), "{vcpus}");
    let picture = rooms.picture().await.expect("seen");
    assert_eq!(picture.taken_by(USER), u32::from(vcpus));
    eventually(async || taken().await == u32::from(vcpus)).await;

    // Ended in Slurm, it is granted no more, and one of several nodes is not whole.
    let over = wish(12, 1, CloneLayout::Spread);
    let over = rooms.reserve(&b, &over).await.expect("room");
    assert_eq!(rooms.whole_of(&b).await.expect("asked"), [over.id]);
    let part = command("scancel", &["--nodelist=b", "--me"]);
    part.expect("ended");
    eventually(async || rooms.whole_of(&b).await.expect("asked").is_empty()).await;
    assert_eq!(rooms.granted_to(&b).await.expect("asked"), [over.id]);
    command("scancel", &["--state=RUNNING", "--me"]).expect("ended");
    eventually(async || rooms.granted_to(&a).await.expect("asked").is_empty()).await;
    eventually(async || taken().await == 0).await;

    // A node that drains in Slurm takes nothing new.
    command(
        "scontrol",
        &["update", "NodeName=a", "State=DRAIN", "Reason=test"],
    )
    .expect("drained");
    let only = Wish {
        only: Some(a.clone()),
        ..wish(1, 1, CloneLayout::Pack)
    };
    let refused = rooms.reserve(&a, &only).await;
    assert!(
        matches!(
            refused,
            Err(AllocateError::Denied(PlacementDenied::Draining { .. }))
        ),
        "{refused:?}"
    );
    let elsewhere = rooms.reserve(&a, &wish(1, 1, CloneLayout::Pack)).await;
    assert_eq!(elsewhere.expect("room").on(&a), 0);

    // A Slurm that cannot be used: an error that says so, and no room.
    let ledger = Ledger::new(client, book, None);
    let none = Slurm::new(ledger, None).of("/nowhere/slurm.conf".into());
    let refused = none.reserve(&a, &only).await;
    assert!(
        matches!(refused, Err(AllocateError::Slurm(_))),
        "{refused:?}"
    );
}
