use super::*;

fn file(text: &str, mode: u32) -> (tempfile::TempDir, PeersFile) {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("peers.toml");
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
    (folder, PeersFile::new(path))
}

const B: &str = "[peer.b]\nurl = \"https://192.0.2.2:7433\"\ntoken = \"t\"\n";

fn pinned() -> String {
    format!("{B}trust = \"sha256:{}\"\n", "0".repeat(64))
}

#[test]
fn a_peer_is_found_by_its_name_alone() {
    let (_folder, peers) = file(&pinned(), 0o600);
    assert_eq!(peers.find("b").expect("named").name(), "b");
    let error = peers.find("c").expect_err("not named");
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(error.hint.is_some_and(|hint| hint.ends_with(" b")));
}

#[test]
fn a_peer_is_made_once_until_its_file_changes() {
    let (_folder, peers) = file(&pinned(), 0o600);
    let first = peers.find("b").expect("named");
    assert!(Arc::ptr_eq(&first, &peers.find("b").expect("named")));
    // Of the same length, and within the same tick of the file system's clock.
    fs::write(&peers.path, pinned().replace("\"t\"", "\"u\"")).expect("written");
    let second = peers.find("b").expect("named");
    assert!(!Arc::ptr_eq(&first, &second));
    fs::write(&peers.path, "").expect("written");
    peers.find("b").expect_err("it is named no more");
}

#[test]
fn ports_that_guests_are_not_to_reach_are_those_of_the_file() {
    let (_folder, peers) = file(&(pinned() + "pages = \"192.0.2.2:7434\"\n"), 0o600);
    let doors = |peers: &PeersFile| {
        let doors = peers.doors().expect("read");
        let one = <[PeerPorts; 1]>::try_from(doors).expect("one peer");
        let [PeerPorts { host, api, pages }] = one;
        (host, api, pages)
    };
    let pages: SocketAddr = "192.0.2.2:7434".parse().expect("an address");
    let host = || "192.0.2.2".to_owned();
    assert_eq!(doors(&peers), (host(), 7433, Some(pages)));
    let (_folder, peers) = file(&pinned(), 0o600);
    assert_eq!(doors(&peers), (host(), 7433, None));
}

#[test]
fn a_file_that_others_may_read_or_that_says_what_cannot_be_is_refused() {
    for mode in [0o640, 0o604] {
        let (_folder, peers) = file(&pinned(), mode);
        peers.find("b").expect_err("others may read it");
    }
    for text in [
        pinned().replace("peer.b", "peer.here"),
        pinned().replace("https:", "http:"),
        pinned().replace("sha256:0", "sha256:x"),
        pinned() + "tokens = 1\n",
        "[peer.b]\nurl = \"https://192.0.2.2\"\n".into(),
    ] {
        let (_folder, peers) = file(&text, 0o600);
        let error = peers.find("b").expect_err(&text);
        assert_eq!(error.kind, ErrorKind::Host, "{text}");
    }
    let nowhere = PeersFile::new("/nonexistent/peers.toml".into());
    nowhere.find("b").expect_err("not there");
}
