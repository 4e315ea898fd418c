use super::*;
use rustls::{ClientConnection, ServerConnection};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::PermissionsExt,
};
use tempfile::TempDir;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A node by this name, vouched for by this authority.
fn node(authority: &Authority, name: &str) -> NodeIdentity {
    let folder = tempfile::tempdir().expect("a folder");
    let key = NodeIdentity::key(folder.path()).expect("drawn");
    assert_eq!(NodeIdentity::key(folder.path()).expect("kept"), key);
    let (signed, fingerprint) = authority.sign(&key, name, HERE).expect("signed");
    NodeIdentity::keep(folder.path(), &signed, authority.certificate()).expect("kept");
    let kept = NodeIdentity::kept_in(folder.path()).expect("usable");
    let kept = kept.expect("there");
    assert_eq!(kept.fingerprint(), fingerprint);
    kept
}

fn authority() -> (TempDir, Authority) {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::found(folder.path()).expect("made");
    (folder, authority)
}

/// A handshake without a network: the client the server sees, if each takes the other.
fn meet(
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    name: &str,
) -> Result<Option<Fingerprint>, rustls::Error> {
    let mut server = ServerConnection::new(server).expect("server");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = ClientConnection::new(client, name).expect("client");
    while client.is_handshaking() || server.is_handshaking() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).expect("memory");
        server.read_tls(&mut wire.as_slice()).expect("memory");
        server.process_new_packets()?;
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).expect("memory");
        }
        let mut wire = wire.as_slice();
        while !wire.is_empty() {
            client.read_tls(&mut wire).expect("memory");
            client.process_new_packets()?;
        }
    }
    let seen = server.peer_certificates().and_then(<[_]>::first);
    Ok(seen.map(Fingerprint::of))
}

#[test]
fn nodes_of_a_cluster_know_each_other_by_name() {
    let (_folder, authority) = authority();
    let (a, b) = (node(&authority, "a"), node(&authority, "b"));
    let (server, client) = (b.server().expect("usable"), a.client().expect("usable"));
    let seen = meet(server.clone(), client.clone(), "b").expect("a node");
    assert_eq!(seen, Some(a.fingerprint()));
    meet(server.clone(), client.clone(), "127.0.0.1").expect("its address");
    meet(server, client, "c").expect_err("b is not c");
}

#[test]
fn a_node_of_another_cluster_is_nobody() {
    let ((_one, ours), (_two, theirs)) = (authority(), authority());
    let (a, b, stranger) = (node(&ours, "a"), node(&ours, "b"), node(&theirs, "a"));
    let (server, client) = (b.server().expect("usable"), a.client().expect("usable"));
    meet(server, stranger.client().expect("usable"), "b").expect_err("unknown client");
    meet(stranger.server().expect("usable"), client, "a").expect_err("unknown server");
}

#[test]
fn who_shows_no_certificate_is_seen_to_have_none() {
    let (_folder, authority) = authority();
    let b = node(&authority, "b");
    let pinned = Trust::Pinned(b.fingerprint()).client().expect("usable");
    let seen = meet(b.server().expect("usable"), pinned, "b");
    assert_eq!(seen.expect("a token may follow"), None);
}

#[test]
fn an_authority_is_found_again_and_its_key_is_nobody_elses_to_read() {
    let (folder, authority) = authority();
    let again = Authority::kept_in(folder.path()).expect("read");
    let again = again.expect("there");
    assert_eq!(again.certificate(), authority.certificate());
    let (a, b) = (node(&authority, "a"), node(&again, "b"));
    meet(
        b.server().expect("usable"),
        a.client().expect("usable"),
        "b",
    )
    .expect("one authority");
    let key = fs::metadata(folder.path().join("authority-key.pem")).expect("there");
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    Authority::forget(folder.path()).expect("forgotten");
    Authority::forget(folder.path()).expect("nothing to forget");
    assert!(Authority::kept_in(folder.path()).expect("read").is_none());
    let nowhere = tempfile::tempdir().expect("a folder");
    assert!(Authority::kept_in(nowhere.path()).expect("read").is_none());
    assert!(
        NodeIdentity::kept_in(nowhere.path())
            .expect("read")
            .is_none()
    );
}

#[test]
fn what_is_no_point_of_the_curve_is_no_key() {
    for bytes in [Vec::new(), vec![4; 64], vec![4; 66], vec![2; 65]] {
        assert!(matches!(NodeKey::new(bytes), Err(TlsError::NoNodeKey)));
    }
}
