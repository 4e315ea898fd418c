//! Nodes of a cluster beside a real etcd, each with a folder of its own.

use forkyard_cluster::{
    CloneLayout, CloneNeed, Cluster, ClusterError, Force, NodeAddresses, PlacementDenied, Settings,
    Standing, Token, Wish,
};
use forkyard_etcd::server::Server;
use forkyard_types::{
    ByteCount, FamilyId, JoinRequest, NodeName, NodeState, Room, VmId, VmState, VmView,
};
use serde_json::json;
use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Longer than anything here takes that comes at all.
const SOON: Duration = Duration::from_secs(60);

fn name(text: &str) -> NodeName {
    text.parse().expect("a name")
}

fn reach(port: u16) -> NodeAddresses {
    NodeAddresses {
        api: (Ipv4Addr::LOCALHOST, port).into(),
        pages: (Ipv4Addr::LOCALHOST, port + 1).into(),
        tunnel: Ipv4Addr::LOCALHOST,
    }
}

fn settings(server: &Server, node: &str, folder: &TempDir) -> Settings {
    Settings {
        etcd: vec![server.endpoint()],
        etcd_tls: None,
        plain_etcd: forkyard_cluster::PlainEtcd::default(),
        name: name(node),
        reach: reach(7),
        offers: Room {
            vcpus: 8,
            memory: ByteCount(1 << 40),
        },
        lease: Duration::from_secs(600),
        folder: folder.path().join("cluster"),
        invitation: None,
        allocation: forkyard_cluster::Allocation::Ledger,
    }
}

/// A node that was let in as the daemon's API would do it.
async fn join(founder: &Cluster, settings: Settings) -> Cluster {
    let token = founder
        .invite(Duration::from_secs(600))
        .await
        .expect("invited");
    std::fs::create_dir_all(&settings.folder).expect("a folder");
    let request = request(&token, &settings);
    let joined = founder.admit(request).await.expect("let in");
    forkyard_tls::NodeIdentity::keep(&settings.folder, &joined.certificate, &joined.authority)
        .expect("kept");
    Cluster::start(settings).await.expect("a node")
}

fn request(token: &Token, settings: &Settings) -> JoinRequest {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let key = forkyard_tls::NodeIdentity::key(&settings.folder).expect("drawn");
    JoinRequest {
        invitation: token.id.clone(),
        secret: token.secret.clone(),
        name: settings.name.clone(),
        api: settings.reach.api,
        pages: settings.reach.pages,
        tunnel: settings.reach.tunnel,
        key: BASE64_STANDARD.encode(key.point()),
    }
}

fn vm(vm_name: &str, state: &str) -> VmView {
    let view = json!({
        "id": VmId::random(), "name": vm_name, "state": state, "family": FamilyId::random(),
        "member": 0, "parent": null, "fork": null, "epoch": "00000000-0000-0000-0000-000000000000",
        "image": "tiny", "vcpus": 2, "memory": 1 << 20,
        "address": {"ip": "10.0.0.1", "prefix": 24, "mac": [2, 0, 0, 0, 0, 1]},
        "pid": null, "accel": "tcg", "created": 1,
    });
    serde_json::from_value(view).expect("a VM")
}

fn spread(count: u16, need: CloneNeed) -> Wish {
    Wish {
        user: None,
        count,
        need,
        layout: CloneLayout::Spread,
        near: None,
        only: None,
    }
}

fn states(nodes: &[forkyard_types::NodeView]) -> Vec<(&str, NodeState)> {
    nodes
        .iter()
        .map(|node| (node.name.as_str(), node.state))
        .collect()
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < SOON, "still waiting for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn no_cluster_is_founded_in_the_clear_beyond_this_host_unless_that_is_wanted() {
    let server = Server::start().expect("etcd");
    let folder = tempfile::tempdir().expect("a folder");
    // No loopback by its name, though it leads there.
    let open = server
        .endpoint()
        .to_string()
        .replace("127.0.0.1", "0.0.0.0");
    let open = Settings {
        etcd: vec![open.parse().expect("an endpoint")],
        ..settings(&server, "a", &folder)
    };
    let refused = Cluster::start(open.clone()).await;
    assert!(matches!(refused, Err(ClusterError::PlainEtcd { .. })));
    let wanted = Settings {
        plain_etcd: forkyard_cluster::PlainEtcd::Anywhere,
        ..open.clone()
    };
    drop(Cluster::start(wanted).await.expect("founded"));
    // It goes on as the node that it is.
    Cluster::start(open).await.expect("a node");
}

#[tokio::test]
async fn a_cluster_is_founded_once_and_joined_by_invitation() {
    let server = Server::start().expect("etcd");
    let [one, two, three] = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
    let a = Cluster::start(settings(&server, "a", &one))
        .await
        .expect("founded");
    assert!(matches!(a.standing(), Standing::Holding { .. }));
    let stranger = Cluster::start(settings(&server, "b", &two)).await;
    assert!(matches!(stranger, Err(ClusterError::NotInvited { keeper }) if keeper == name("a")));
    let b = join(&a, settings(&server, "b", &two)).await;
    let nodes = b.nodes().await.expect("known");
    assert_eq!(
        states(&nodes),
        [("a", NodeState::Active), ("b", NodeState::Active)]
    );
    assert!(!nodes[0].here && nodes[1].here);
    eventually("b at a", || async {
        a.who(&b.fingerprint()) == Some(name("b"))
    })
    .await;
    // It is let in first, and then tells what it offers.
    eventually("b alive at a", || async { a.client(&name("b")).is_ok() }).await;
    assert!(matches!(
        a.client(&name("x")),
        Err(ClusterError::NoSuchNode { .. })
    ));
    // Only the founder can let others in.
    let more = b.invite(Duration::from_secs(60)).await;
    assert!(matches!(more, Err(ClusterError::NotKeeper { keeper }) if keeper == name("a")));
    // A name is taken once, and an invitation used once.
    let token = a.invite(Duration::from_secs(60)).await.expect("invited");
    let mut third = settings(&server, "b", &three);
    std::fs::create_dir_all(&third.folder).expect("a folder");
    let taken = a.admit(request(&token, &third)).await;
    assert!(matches!(taken, Err(ClusterError::NameTaken { .. })));
    third.name = name("c");
    let forged = JoinRequest {
        secret: "guessed".into(),
        ..request(&token, &third)
    };
    assert!(matches!(a.admit(forged).await, Err(ClusterError::NotKnown)));
    a.admit(request(&token, &third)).await.expect("let in");
    third.name = name("d");
    let again = a.admit(request(&token, &third)).await;
    assert!(matches!(again, Err(ClusterError::NotKnown)));
    // The daemon starts again: the same node, and of the etcd that it was told of.
    drop(b);
    let again = Settings {
        etcd: Vec::new(),
        ..settings(&server, "b", &two)
    };
    let b = Cluster::start(again).await.expect("it knows which");
    assert!(matches!(b.standing(), Standing::Holding { .. }));
}

#[tokio::test]
async fn a_node_without_its_lease_is_lost_to_others_and_fences_itself_first() {
    let mut server = Server::start().expect("etcd");
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let a = Cluster::start(settings(&server, "a", &one))
        .await
        .expect("founded");
    let short = Settings {
        // Longer than a busy machine keeps a node from renewing it.
        lease: Duration::from_secs(8),
        ..settings(&server, "b", &two)
    };
    let b = join(&a, short.clone()).await;
    let p = vm("p", "running");
    b.report(std::slice::from_ref(&p), &BTreeSet::new())
        .await
        .expect("told");
    assert_eq!(a.others_vms().await.expect("read").len(), 1);
    // Dead, as by kill -9: the lease is not renewed.
    drop(b);
    eventually("b's loss", || async {
        let nodes = a.nodes().await.expect("known");
        states(&nodes)[1] == ("b", NodeState::Lost)
    })
    .await;
    let vms = a.others_vms().await.expect("read");
    assert!(vms[0].lost && vms[0].vm.silence.is_some());
    eventually("a to have heard of it", || async {
        matches!(a.client(&name("b")), Err(ClusterError::Lost { .. }))
    })
    .await;
    // Back again, and then cut off from etcd.
    let b = Cluster::start(short).await.expect("again");
    b.wait(|standing| matches!(standing, Standing::Holding { .. }))
        .await;
    eventually("b's return", || async { a.client(&name("b")).is_ok() }).await;
    server.stop().expect("killed");
    b.wait(|standing| standing == Standing::Fenced).await;
    let need = CloneNeed {
        vcpus: 1,
        memory: ByteCount(1),
    };
    let refused = b.reserve(&spread(1, need)).await.expect_err("fenced");
    assert!(matches!(refused, ClusterError::Fenced { .. }), "{refused}");
    assert!(refused.hint().is_some());
    assert!(matches!(
        b.report(&[], &BTreeSet::new()).await,
        Err(ClusterError::Fenced { .. })
    ));
    server.go_on().expect("etcd again");
    eventually("room again", || async {
        b.reserve(&spread(1, need)).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_vm_is_found_by_any_node_and_its_name_is_taken_for_all() {
    let server = Server::start().expect("etcd");
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let a = Cluster::start(settings(&server, "a", &one))
        .await
        .expect("founded");
    let b = join(&a, settings(&server, "b", &two)).await;
    let claim = b.claim(&"p".parse().expect("a name")).await.expect("free");
    assert_eq!(a.find("p").await.expect("asked"), None);
    let taken = a.claim(&"p".parse().expect("a name")).await;
    assert!(matches!(taken, Err(ClusterError::VmNameTaken { node, .. }) if node == name("b")));
    let (p, q) = (vm("p", "running"), vm("q", "stopped"));
    b.own(p.family, "ci".into());
    b.report(&[p.clone(), q.clone()], &BTreeSet::new())
        .await
        .expect("told");
    drop(claim);
    for word in ["p", p.id.as_str()] {
        let found = a.find(word).await.expect("asked").expect("there");
        assert_eq!((found.node, found.vm), (name("b"), p.id));
    }
    for word in ["", "x", "p/", "../nodes"] {
        assert_eq!(a.find(word).await.expect("asked"), None, "{word:?}");
    }
    // What stands still takes no room.
    let nodes = a.nodes().await.expect("known");
    assert_eq!((nodes[1].taken.vcpus, nodes[1].vms), (2, 2));
    let quotas = a.quotas().await.expect("read");
    assert_eq!((quotas[0].user.as_str(), quotas[0].taken), ("ci", 2));
    // A daemon that follows another knows whose families are, and what is gone.
    drop(b);
    let b = Cluster::start(settings(&server, "b", &two))
        .await
        .expect("again");
    b.report(std::slice::from_ref(&p), &BTreeSet::new())
        .await
        .expect("told");
    assert_eq!(b.owner(p.family).as_deref(), Some("ci"));
    assert_eq!(a.find("q").await.expect("asked"), None);
    b.report(&[], &BTreeSet::new()).await.expect("told");
    assert_eq!(a.find("p").await.expect("asked"), None);
    let claim = a.claim(&"p".parse().expect("a name")).await;
    claim.expect("free again");
}

#[tokio::test]
async fn a_vm_that_moved_is_told_of_by_the_node_that_has_it_now() {
    let server = Server::start().expect("etcd");
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let a = Cluster::start(settings(&server, "a", &one))
        .await
        .expect("founded");
    let b = join(&a, settings(&server, "b", &two)).await;
    let (p, none) = (vm("p", "running"), BTreeSet::new());
    let at = async |node: &str| {
        for word in ["p", p.id.as_str()] {
            let found = a.find(word).await.expect("asked").expect("there");
            assert_eq!((found.node, found.vm), (name(node), p.id), "{word}");
        }
    };
    a.report(std::slice::from_ref(&p), &none)
        .await
        .expect("told");
    at("a").await;
    // It goes on there, and this node has not told yet that it has it no longer.
    b.report(std::slice::from_ref(&p), &none)
        .await
        .expect("told");
    at("b").await;
    let mut still = p.clone();
    still.state = VmState::Paused;
    a.report(std::slice::from_ref(&still), &none)
        .await
        .expect("told");
    at("b").await;
    let another = vm("q", "running");
    a.report(std::slice::from_ref(&another), &none)
        .await
        .expect("told");
    at("b").await;
    assert!(a.find("q").await.expect("asked").is_some());
    // Nor does one that follows it and finds the VM leaving.
    b.report(&[], &none).await.expect("told");
    a.report(std::slice::from_ref(&p), &none)
        .await
        .expect("told");
    drop(a);
    let a = Cluster::start(settings(&server, "a", &one))
        .await
        .expect("again");
    b.report(std::slice::from_ref(&p), &none)
        .await
        .expect("told");
    a.report(std::slice::from_ref(&still), &[p.id].into())
        .await
        .expect("told");
    a.report(&[], &none).await.expect("told");
    let found = b.find("p").await.expect("asked").expect("there");
    assert_eq!((found.node, found.vm), (name("b"), p.id));
}

#[tokio::test]
async fn what_is_reserved_is_given_back_when_it_is_dropped() {
    let server = Server::start().expect("etcd");
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let a = Cluster::start(settings(&server, "a", &one))
        .await
        .expect("founded");
    let b = join(&a, settings(&server, "b", &two)).await;
    let need = CloneNeed {
        vcpus: 2,
        memory: ByteCount(1),
    };
    let held = a.reserve(&spread(6, need)).await.expect("room");
    assert_eq!(held.grant().count(), 6);
    assert_eq!(held.grant().places.len(), 2);
    let rest = b.reserve(&spread(6, need)).await.expect("room for two");
    assert_eq!(rest.grant().count(), 2);
    let full = b.reserve(&spread(1, need)).await;
    assert!(matches!(
        full,
        Err(ClusterError::Denied(PlacementDenied::NoRoom { .. }))
    ));
    drop(held);
    eventually("what was dropped", || async {
        b.nodes()
            .await
            .expect("known")
            .iter()
            .map(|node| node.taken.vcpus)
            .sum::<u32>()
            == 4
    })
    .await;
    // Nothing goes to one that drains, until it is active again.
    a.drain(&name("b")).await.expect("drained");
    let wish = |only: &str| Wish {
        user: None,
        count: 1,
        need,
        layout: CloneLayout::Pack,
        near: None,
        only: Some(name(only)),
    };
    let refused = a.reserve(&wish("b")).await;
    assert!(matches!(
        refused,
        Err(ClusterError::Denied(PlacementDenied::Draining { .. }))
    ));
    assert_eq!(
        states(&a.nodes().await.expect("known"))[1],
        ("b", NodeState::Draining)
    );
    a.activate(&name("b")).await.expect("active");
    a.reserve(&wish("b")).await.expect("room");
    assert!(matches!(
        a.drain(&name("x")).await,
        Err(ClusterError::NoSuchNode { .. })
    ));
    a.set_quota("ci", Some(3)).await.expect("set");
    let of_ci = Wish {
        user: Some("ci".into()),
        ..wish("a")
    };
    let _one = a.reserve(&of_ci).await.expect("two vCPUs of three");
    let refused = a.reserve(&of_ci).await;
    assert!(matches!(
        refused,
        Err(ClusterError::Denied(PlacementDenied::Quota { .. }))
    ));
    a.set_quota("ci", None).await.expect("lifted");
    a.reserve(&of_ci).await.expect("no quota");
}

#[tokio::test]
async fn a_node_that_is_removed_learns_of_it_and_its_vms_are_forgotten() {
    let server = Server::start().expect("etcd");
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let a = Cluster::start(settings(&server, "a", &one))
        .await
        .expect("founded");
    let b = join(&a, settings(&server, "b", &two)).await;
    b.report(&[vm("p", "running")], &BTreeSet::new())
        .await
        .expect("told");
    let refused = a.remove(&name("b"), Force::No).await;
    assert!(matches!(
        refused,
        Err(ClusterError::NotEmpty { vms: 1, .. })
    ));
    assert!(!a.was_removed(&name("b")));
    a.remove(&name("b"), Force::Yes).await.expect("removed");
    assert!(matches!(
        a.remove(&name("b"), Force::Yes).await,
        Err(ClusterError::NoSuchNode { .. })
    ));
    assert_eq!(a.find("p").await.expect("asked"), None);
    assert_eq!(a.who(&b.fingerprint()), None);
    assert!(a.was_removed(&name("b")));
    b.wait(|standing| standing == Standing::Removed).await;
    assert!(
        !b.was_removed(&name("a")) && !b.was_removed(&name("b")),
        "it cannot say"
    );
    assert!(matches!(b.may_act(), Err(ClusterError::Removed { .. })));
    // Its next daemon learns it as well, and it can be invited again.
    drop(b);
    let b = Cluster::start(settings(&server, "b", &two))
        .await
        .expect("starts");
    assert_eq!(b.standing(), Standing::Removed);
    drop(b);
    let b = join(&a, settings(&server, "b", &two)).await;
    b.may_act().expect("a node again");
}
