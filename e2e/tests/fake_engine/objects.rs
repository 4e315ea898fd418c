//! Substrates in object stores: a folder, and a server that speaks S3.

use crate::{
    s3::{BUCKET, S3, SECRET, write_settings_of},
    substrates::{activate, substrates},
};
use forkyard_e2e::{Host, eventually};
use forkyard_types::{
    BackupState, Collected, PushResponse, StoredSubstrate, SubstrateInspect, SubstrateView,
};
use nix::mount::{MsFlags, mount, umount};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
};

/// A host with `s`, and `t` that lies over it; both remember what programs wrote.
fn with_two(host: &Host) {
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", "poke 7 3");
    dock(host, "p", "s");
    activate(host, &["s", "--as", "q"]);
    host.sh("q", "poke 9 4");
    dock(host, "q", "t");
}

fn dock(host: &Host, vm: &str, name: &str) {
    host.ok(["substrate", "dock", vm, "--name", name, "--kind", "public"]);
}

fn push(host: &Host, name: &str, store: &str) -> PushResponse {
    host.json(["substrate", "push", name, store])
}

fn list(host: &Host, store: &str) -> Vec<StoredSubstrate> {
    host.json(["substrate", "ls", store])
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => all.extend(files(&path)),
            path => all.push(path),
        }
    }
    all.sort();
    all
}

fn pieces(objects: &Path) -> Vec<PathBuf> {
    files(&objects.join("pieces"))
}

/// Nothing of a pull is left.
fn is_clean(host: &Host) {
    assert!(substrates(host).is_empty());
    let left = files(&host.folder().join("state/substrates"));
    assert!(left.is_empty(), "{left:?}");
}

/// All that holds for any store. `objects` is where its objects are.
fn carried(host: &Host, other: &Host, store: &str, objects: &Path, key: &str) {
    let first = push(host, "s", store);
    assert_eq!(first.shared.0, 0);
    let second = push(host, "t", store);
    // What it lies over is there.
    assert_eq!(second.shared, first.sent);
    assert!(second.sent.0 > 0);
    assert_eq!(push(host, "t", store).sent.0, 0);
    let all = list(host, store);
    let names: Vec<_> = all.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["s", "t"]);
    assert!(all.iter().all(|it| it.trusted && it.facts.is_some()));

    let (s, t) = (format!("{store}/s"), format!("{store}/t"));
    assert!(list(other, store).iter().all(|it| !it.trusted));
    let said = other.fails(["substrate", "pull", &t]);
    assert!(said.contains(key), "{said}");
    other.fails(["substrate", "pull", &t, "--trust", &"0".repeat(64)]);
    other.fails(["substrate", "pull", &t, "--unsigned"]);
    other.fails(["substrate", "pull", &format!("{store}/u")]);
    is_clean(other);
    other.ok(["substrate", "trust", key]);
    assert!(list(other, store).iter().all(|it| it.trusted));
    other.ok(["substrate", "pull", &t]);
    other.fails(["substrate", "pull", &t]);
    activate(other, &["t", "--as", "y"]);
    assert_eq!(other.sh("y", "peek 7; peek 9"), "3\n4");
    other.ok(["rm", "y"]);
    other.ok(["substrate", "rm", "t"]);
    is_clean(other);

    // A piece that is damaged, cut short or gone; and a push mends it.
    let of_s: Vec<_> = pieces(objects);
    let whole: Vec<_> = of_s
        .iter()
        .map(|path| fs::read(path).expect("read"))
        .collect();
    for (word, damage) in [("damaged", 0), ("damaged", 1), ("missing", 2)] {
        for (path, whole) in of_s.iter().zip(&whole) {
            match damage {
                0 => {
                    let mut changed = whole.clone();
                    changed[whole.len() / 2] ^= 1;
                    fs::write(path, changed).expect("written");
                }
                1 => fs::write(path, &whole[1..]).expect("written"),
                _ => fs::remove_file(path).expect("removed"),
            }
        }
        let said = other.fails(["substrate", "pull", &s]);
        assert!(said.contains(word) && said.contains("--verify"), "{said}");
        is_clean(other);
        host.ok(["substrate", "push", "s", store, "--verify"]);
        host.ok(["substrate", "push", "t", store, "--verify"]);
        other.ok(["substrate", "pull", &s]);
        other.ok(["substrate", "rm", "s"]);
    }

    // A manifest that was changed, or is another's; neither is replaced by a push.
    let manifest = |name: &str| objects.join("substrates").join(name);
    let [own, others] = ["s", "t"].map(|name| fs::read(manifest(name)).expect("read"));
    let mut changed = own.clone();
    let at = own.len() - 9;
    changed[at] ^= 1;
    for bad in [&changed[..], &own[..at], &others[..], b""] {
        fs::write(manifest("s"), bad).expect("written");
        other.fails(["substrate", "pull", &s]);
        is_clean(other);
        assert!(list(other, store)[0].problem.is_some());
        host.fails(["substrate", "push", "s", store]);
    }
    fs::write(manifest("s"), own).expect("written");

    // Of both, what both need stays.
    let before = pieces(objects).len();
    let gone: Collected = host.json(["substrate", "rm", "s", "--store", store]);
    assert_eq!(
        before - pieces(objects).len(),
        usize::try_from(gone.pieces).expect("fits")
    );
    other.ok(["substrate", "pull", &t, "--name", "u"]);
    other.ok(["substrate", "rm", "u"]);
    other.ok(["substrate", "trust", key, "--forget"]);
    host.fails(["substrate", "rm", "s", "--store", store]);
    host.ok(["substrate", "rm", "t", "--store", store]);
    assert!(
        files(objects)
            .iter()
            .all(|it| !it.starts_with(objects.join("pieces")))
    );
}

#[test]
fn substrates_go_through_stores_and_nothing_that_was_damaged_or_forged_comes_back() {
    let s3 = S3::new();
    let settings = tempfile::tempdir().expect("a folder");
    let of = |name: &str| settings.path().join(name);
    let host = Host::fake().telling("FORKYARD_OBJECT_STORES", &of("a").display().to_string());
    let other = Host::fake().telling("FORKYARD_OBJECT_STORES", &of("b").display().to_string());
    s3.serve(&host, &of("a"));
    s3.serve(&other, &of("b"));
    with_two(&host);
    // With no VM its daemon would end between commands.
    host.ok(["run", "tiny", "--name", "z"]);
    // The guest image that they lie over.
    other.ok(["run", "tiny", "--name", "x"]);
    let key = host.ok(["substrate", "key"]).trim().to_owned();

    let folder = tempfile::tempdir().expect("a folder");
    // Another user's, as a folder of a file server is.
    chown(folder.path(), Some(1), Some(1)).expect("given away");
    let store = format!("file://{}", folder.path().display());
    carried(&host, &other, &store, folder.path(), &key);
    // Memory of guests is no other user's to read.
    push(&host, "s", &store);
    let pushed = pieces(folder.path());
    assert!(!pushed.is_empty());
    for piece in pushed {
        let mode = piece.metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", piece.display());
    }
    let store = format!("s3://{BUCKET}/team");
    carried(&host, &other, &store, &s3.objects().join("team"), &key);

    // A store that goes away half-way: what was sent is no substrate, and goes with the next collection.
    s3.go_after(9);
    let said = host.fails(["substrate", "push", "s", &store]);
    assert!(said.contains(&store), "{said}");
    s3.come_back();
    assert!(list(&host, &store).is_empty());
    // Its lease could not be given up: what it names stays, and goes with it.
    let objects = s3.objects().join("team");
    let sent = pieces(&objects).len();
    host.ok(["substrate", "collect", &store]);
    assert_eq!(pieces(&objects).len(), sent);
    assert!(sent > 0);
    let leases = files(&objects.join("leases"));
    assert_eq!(leases.len(), 1, "{leases:?}");
    fs::remove_file(&leases[0]).expect("removed");
    host.ok(["substrate", "collect", &store]);
    assert!(pieces(&objects).is_empty());
    push(&host, "s", &store);
    let (from, trust) = (format!("{store}/s"), ["--trust", &key]);
    let pull = ["substrate", "pull", &from, trust[0], trust[1]];
    s3.go_after(3);
    other.fails(pull);
    s3.come_back();
    is_clean(&other);
    // A disk that is full.
    let full = other.folder().join("state/substrates");
    fs::create_dir_all(&full).expect("made");
    let place = full.clone();
    other.within(move || {
        let size = Some("size=16k");
        mount(Some("full"), &place, Some("tmpfs"), MsFlags::empty(), size).expect("mounted")
    });
    let said = other.fails(pull);
    assert!(said.contains("No space left"), "{said}");
    let place = full.clone();
    let left = other.within(move || {
        let left = files(&place);
        umount(&place).expect("unmounted");
        left
    });
    assert!(left.is_empty(), "{left:?}");
    // What carries is killed, or the daemon is; a store that is silent holds nothing up.
    s3.hang_after(3);
    let pulling = other.start(pull, "");
    eventually("the store says nothing", || s3.has_hung());
    other.ok(["substrate", "ls"]);
    other.kill_9("forkyard-porter");
    pulling.wait().exited(1);
    is_clean(&other);
    s3.hang_after(3);
    let pulling = other.start(pull, "");
    eventually("the store says nothing", || s3.has_hung());
    other.kill_9("forkyardd");
    pulling.wait();
    eventually("no porter is left", || {
        other.processes("forkyard-porter").is_empty()
    });
    s3.come_back();
    is_clean(&other);
    other.ok(pull);

    // Keys are in no log, and those that are wrong are refused.
    for host in [&host, &other] {
        let run = files(&host.folder().join("run")).into_iter();
        let logs = run.filter(|it| it.extension().is_some_and(|it| it == "log"));
        let state = files(&host.folder().join("state")).into_iter();
        let state = state.filter(|it| !it.starts_with(host.folder().join("state/substrates")));
        for path in logs.chain(state) {
            let text = fs::read(&path).unwrap_or_default();
            let found = text.windows(SECRET.len()).any(|it| it == SECRET.as_bytes());
            assert!(!found, "{}", path.display());
        }
    }
    let right = fs::read_to_string(of("a")).expect("read");
    fs::write(of("a"), right.replace(SECRET, "wrong-sesame")).expect("written");
    let said = host.fails(["substrate", "ls", &store]);
    assert!(!said.contains("sesame"), "{said}");
    fs::write(of("a"), right).expect("written");
    host.fails(["substrate", "push", "s", "s3://key:secret@images"]);

    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "t", "s"]);
    host.end();
    other.ok(["rm", "--all"]);
    other.ok(["substrate", "rm", "s"]);
    other.end();
}

#[test]
fn a_pool_is_backed_up_in_the_background_and_outlives_its_host() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("mount");
    let store = format!("file://{}", place.display());
    let host = Host::fake().telling("FORKYARD_SUBSTRATE_BACKUP", &store);
    // Nothing waits for a store that is not there.
    with_two(&host);
    let backup = |name: &str| {
        let seen: SubstrateInspect = host.json(["substrate", "inspect", name]);
        seen.backup.expect("it is backed up")
    };
    eventually("both have failed", || {
        ["s", "t"]
            .iter()
            .all(|it| backup(it).state == BackupState::Failing)
    });
    assert!(backup("s").problem.expect("why").contains("mount"));
    let said = host.start(["doctor"], "").wait().text();
    assert!(said.contains("substrate s is not backed up"), "{said}");
    let metrics = host.get("/metrics");
    let line = "forkyard_substrate_backups{state=\"failing\"} 2";
    assert!(metrics.contains(line), "{metrics}");
    fs::create_dir(&place).expect("made");
    eventually("both are there", || {
        ["s", "t"]
            .iter()
            .all(|it| backup(it).state == BackupState::Done)
    });
    host.kill_9("forkyardd");
    assert_eq!(backup("t").state, BackupState::Done, "it is recorded");
    let key = host.ok(["substrate", "key"]).trim().to_owned();
    host.ok(["substrate", "rm", "t", "s"]);
    host.end();

    let other = Host::fake();
    other.ok(["run", "tiny", "--name", "x"]);
    let from = format!("{store}/t");
    let pulled: SubstrateView = other.json(["substrate", "pull", &from, "--trust", &key]);
    assert_eq!(pulled.name.as_str(), "t");
    activate(&other, &["t", "--as", "y"]);
    assert_eq!(other.sh("y", "peek 7; peek 9"), "3\n4");
    other.ok(["rm", "--all"]);
    other.ok(["substrate", "rm", "t"]);
    other.end();
}

#[test]
fn a_server_of_a_private_authority_is_trusted_by_that_alone() {
    let s3 = S3::new();
    let folder = tempfile::tempdir().expect("a folder");
    let of = |name: &str| folder.path().join(name);
    let settings = of("settings");
    let host = Host::fake().telling("FORKYARD_OBJECT_STORES", &settings.display().to_string());
    let (at, certificate) = s3.serve_privately(&host, &of("own"));
    // Another's, which says of itself that it is for the same address.
    S3::new().serve_privately(&host, &of("other"));
    with_two(&host);
    host.ok(["run", "tiny", "--name", "z"]);
    let store = format!("s3://{BUCKET}/team");
    let url = format!("https://{at}");
    let trusting = |path: &Path| {
        let more = format!("ca_file = '{}'\n", path.display());
        write_settings_of(&settings, &url, SECRET, &more);
    };
    let other = of("other").join("cert.pem");
    write_settings_of(&settings, &url, SECRET, "");
    host.fails(["substrate", "push", "s", &store]);
    trusting(&other);
    host.fails(["substrate", "push", "s", &store]);
    for (path, why) in [(of("none"), "none"), (settings.clone(), "no certificate")] {
        trusting(&path);
        let said = host.fails(["substrate", "push", "s", &store]);
        assert!(said.contains("ca_file") && said.contains(why), "{said}");
    }
    assert!(files(&s3.objects()).is_empty());
    trusting(&certificate);
    assert!(push(&host, "s", &store).sent.0 > 0);
    host.ok(["substrate", "rm", "--store", &store, "s"]);
    host.ok(["rm", "--all"]);
    for name in ["t", "s"] {
        host.ok(["substrate", "rm", name]);
    }
    host.end();
}
