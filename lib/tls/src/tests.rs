use super::*;
use rustls::{ClientConnection, ServerConnection};
use std::{fs, os::unix::fs::PermissionsExt, path::Path};

fn kept(folder: &Path) -> Certificate {
    Certificate::kept_in(folder, &["127.0.0.1".into(), "localhost".into()]).expect("made")
}

/// A handshake without a network; the client's judgement of the server.
fn meet(server: Certificate, trust: &Trust, name: &str) -> Result<(), rustls::Error> {
    let mut server = ServerConnection::new(server.server().expect("usable")).expect("server");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = ClientConnection::new(trust.client().expect("usable"), name).expect("client");
    while client.is_handshaking() {
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
    Ok(())
}

#[test]
fn a_certificate_is_made_once_and_its_key_is_nobody_elses_to_read() {
    let folder = tempfile::tempdir().expect("folder");
    let first = kept(folder.path()).fingerprint();
    assert_eq!(kept(folder.path()).fingerprint(), first);
    let key = fs::metadata(folder.path().join("key.pem")).expect("there");
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_pinned_certificate_is_accepted_under_any_name_and_another_is_not() {
    let (ours, other) = (
        tempfile::tempdir().expect("folder"),
        tempfile::tempdir().expect("folder"),
    );
    let pin = Trust::Pinned(kept(ours.path()).fingerprint());
    meet(kept(ours.path()), &pin, "10.1.2.3").expect("it is the one");
    meet(kept(other.path()), &pin, "10.1.2.3").expect_err("it is another");
}

#[test]
fn a_certificate_that_is_itself_the_authority_must_bear_the_name() {
    let folder = tempfile::tempdir().expect("folder");
    let own = || kept(folder.path());
    own();
    let trust = Trust::Authorities(folder.path().join("cert.pem"));
    meet(own(), &trust, "127.0.0.1").expect("its name");
    meet(own(), &trust, "localhost").expect("its name");
    meet(own(), &trust, "10.1.2.3").expect_err("not its name");
    let other = tempfile::tempdir().expect("folder");
    meet(kept(other.path()), &trust, "localhost").expect_err("another certificate");
}

#[test]
fn files_that_hold_something_else_are_refused() {
    let folder = tempfile::tempdir().expect("folder");
    kept(folder.path());
    let (certificate, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    let crossed = Certificate::load(&key, &certificate);
    assert!(matches!(crossed, Err(TlsError::NoCertificate { .. })));
    assert!(matches!(
        Certificate::load(&certificate, &certificate),
        Err(TlsError::Pem { .. })
    ));
    let other = tempfile::tempdir().expect("folder");
    kept(other.path());
    let mixed = Certificate::load(&certificate, &other.path().join("key.pem")).expect("read");
    assert!(matches!(mixed.server(), Err(TlsError::Unusable(_))));
}

#[test]
fn a_fingerprint_survives_its_text_and_openssls_spelling() {
    let folder = tempfile::tempdir().expect("folder");
    let own = kept(folder.path()).fingerprint();
    let text = own.to_string();
    assert_eq!(text.parse(), Ok(own));
    let digits: Vec<_> = text.as_bytes()["sha256:".len()..].chunks(2).collect();
    let digits: Vec<_> = digits
        .iter()
        .map(|pair| String::from_utf8_lossy(pair).to_uppercase())
        .collect();
    assert_eq!(format!("sha256:{}", digits.join(":")).parse(), Ok(own));
    for wrong in [
        "",
        "sha256:",
        &text[..text.len() - 1],
        &text[1..],
        &format!("{text}0"),
    ] {
        assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
    }
}
