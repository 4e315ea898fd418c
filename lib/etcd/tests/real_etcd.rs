//! The client beside a real etcd.

use forkyard_etcd::{
    Compare, Endpoint, Etcd, EtcdError, EventBatch, KeyEvent, Keys, Op, OpResult, Revision, Txn,
    server::Server,
};
use std::time::Duration;

fn put(key: &str, value: &str) -> Op {
    Op::Put(key.into(), value.into(), None)
}

fn keys(found: &[forkyard_etcd::KeyEntry]) -> Vec<&str> {
    found.iter().map(|entry| entry.key.as_str()).collect()
}

#[tokio::test]
async fn members_tell_where_clients_and_other_members_reach_them() {
    let server = Server::start().expect("etcd");
    let etcd = server.client();
    let members = etcd.members().await.expect("asked");
    let (host, port) = etcd.endpoints()[0].place();
    assert!(members.contains(&(host.to_owned(), port)), "{members:?}");
    let of_members = members.iter().filter(|(_, other)| *other != port);
    assert_eq!(of_members.count(), 1, "{members:?}");
}

#[tokio::test]
async fn what_is_put_is_found_until_it_is_removed() {
    let server = Server::start().expect("etcd");
    let etcd = server.client();
    assert_eq!(etcd.get("/a").await.expect("asked"), None);
    let first = etcd.put("/a", "1", None).await.expect("put");
    let second = etcd.put("/b/x", [0, 255], None).await.expect("put");
    etcd.put("/b/y", "", None).await.expect("put");
    etcd.put("/c", "3", None).await.expect("put");
    assert!(first < second);
    let under = etcd
        .range(&Keys::Prefix("/b/".into()))
        .await
        .expect("asked");
    assert_eq!(keys(&under.entries), ["/b/x", "/b/y"]);
    assert_eq!(under.entries[0].value, [0, 255]);
    assert_eq!(under.entries[0].changed, second);
    etcd.delete(&Keys::Prefix("/b/".into()))
        .await
        .expect("removed");
    let all = etcd
        .range(&Keys::Prefix(String::new()))
        .await
        .expect("asked");
    assert_eq!(keys(&all.entries), ["/a", "/c"]);
}

#[tokio::test]
async fn of_two_who_create_a_key_one_does() {
    let server = Server::start().expect("etcd");
    let etcd = server.client();
    let create = |value: &str| {
        etcd.txn(Txn {
            when: vec![Compare::Absent(Keys::One("/one".into()))],
            then: vec![put("/one", value)],
            otherwise: vec![Op::Get(Keys::One("/one".into()))],
        })
    };
    let (a, b) = tokio::join!(create("a"), create("b"));
    let (a, b) = (a.expect("asked"), b.expect("asked"));
    let (winner, won, lost) = match a.held {
        true => ("a", a, b),
        false => ("b", b, a),
    };
    assert!(won.held && !lost.held);
    assert_eq!(won.answers, [OpResult::Done]);
    assert_eq!(lost.found()[0][0].value, winner.as_bytes());
    // Of a prefix all must be absent.
    for (prefix, held) in [("/on", false), ("/one/", true)] {
        let absent = etcd.txn(Txn {
            when: vec![Compare::Absent(Keys::Prefix(prefix.into()))],
            ..Txn::default()
        });
        assert_eq!(absent.await.expect("asked").held, held, "{prefix}");
    }
    let seen = won.revision;
    let change = |at| {
        etcd.txn(Txn {
            when: vec![
                Compare::Unchanged("/one".into(), at),
                Compare::Present("/one".into()),
            ],
            then: vec![Op::Delete(Keys::One("/one".into()))],
            otherwise: Vec::new(),
        })
    };
    let stale = change(Revision(seen.0 - 1)).await.expect("asked");
    assert!(!stale.held);
    assert!(change(seen).await.expect("asked").held);
    assert!(!change(seen).await.expect("asked").held);
}

#[tokio::test]
async fn a_key_goes_with_its_lease_and_lives_while_it_is_kept() {
    let server = Server::start().expect("etcd");
    let etcd = server.client();
    let lease = etcd.grant(Duration::from_secs(600)).await.expect("granted");
    etcd.put("/mine", "x", Some(lease)).await.expect("put");
    etcd.keep_alive(lease).await.expect("kept");
    assert!(etcd.get("/mine").await.expect("asked").is_some());
    etcd.revoke(lease).await.expect("ended");
    assert_eq!(etcd.get("/mine").await.expect("asked"), None);
    assert!(matches!(
        etcd.keep_alive(lease).await,
        Err(EtcdError::LeaseGone)
    ));
    assert!(matches!(
        etcd.revoke(lease).await,
        Err(EtcdError::LeaseGone)
    ));
    assert!(matches!(
        etcd.put("/mine", "x", Some(lease)).await,
        Err(EtcdError::LeaseGone)
    ));
    // One that is not kept alive ends by itself, and not before it is used here.
    let short = etcd.grant(Duration::from_secs(5)).await.expect("granted");
    let put = etcd.put("/short", "x", Some(short)).await.expect("put");
    let keys = Keys::One("/short".into());
    let mut watch = etcd
        .watch(&keys, Revision(put.0 + 1))
        .await
        .expect("watched");
    let batch = watch.next().await.expect("told");
    assert_eq!(batch.events, [KeyEvent::Deleted("/short".into())]);
}

#[tokio::test]
async fn a_watch_tells_everything_once_from_where_it_begins() {
    let server = Server::start().expect("etcd");
    let etcd = server.client();
    let first = etcd.put("/w/1", "a", None).await.expect("put");
    etcd.put("/other", "b", None).await.expect("put");
    let both = Txn {
        then: vec![put("/w/2", "c"), put("/w/3", "d")],
        ..Txn::default()
    };
    etcd.txn(both).await.expect("done");
    let prefix = Keys::Prefix("/w/".into());
    let mut watch = etcd.watch(&prefix, first).await.expect("watched");
    let mut told = Vec::new();
    let key = |event: KeyEvent| match event {
        KeyEvent::Put(entry) => entry.key,
        KeyEvent::Deleted(key) => format!("-{key}"),
    };
    let mut take = |batch: EventBatch| told.extend(batch.events.into_iter().map(key));
    take(watch.next().await.expect("what was before"));
    etcd.delete(&Keys::One("/w/1".into()))
        .await
        .expect("removed");
    while take_until(&mut watch, &mut take).await != "-/w/1" {}
    assert_eq!(told, ["/w/1", "/w/2", "/w/3", "-/w/1"]);
}

async fn take_until(
    watch: &mut forkyard_etcd::KeyWatch,
    take: &mut impl FnMut(EventBatch),
) -> String {
    let batch = watch.next().await.expect("told");
    let last = match batch.events.last() {
        Some(KeyEvent::Deleted(key)) => format!("-{key}"),
        Some(KeyEvent::Put(_)) | None => String::new(),
    };
    take(batch);
    last
}

#[tokio::test]
async fn an_endpoint_that_is_dead_is_passed_over_and_none_at_all_is_said() {
    let mut server = Server::start().expect("etcd");
    let nobody: Endpoint = "http://127.0.0.1:1".parse().expect("an endpoint");
    let etcd = Etcd::new(vec![nobody, server.endpoint()], None);
    etcd.put("/a", "1", None).await.expect("at the second");
    let mut watch = etcd
        .watch(&Keys::One("/a".into()), Revision(0))
        .await
        .expect("watched");
    server.stop().expect("killed");
    watch.next().await.expect_err("it broke off");
    let error = etcd.get("/a").await.expect_err("nobody");
    assert!(matches!(error, EtcdError::Unreachable { .. }), "{error}");
    assert!(!error.is_unknown() && error.hint().is_some());
    server.go_on().expect("etcd again");
    let found = etcd.get("/a").await.expect("asked").expect("kept");
    assert_eq!(found.value, b"1");
    let none = Etcd::new(Vec::new(), None).get("/a").await;
    assert!(matches!(none, Err(EtcdError::NoEndpoint)));
}
