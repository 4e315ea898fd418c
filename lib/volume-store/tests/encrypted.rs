//! Volumes whose blocks are encrypted: where their keys are, and what is without them.

use forkyard_volume::{CompactionPolicy, Geometry, Takeover, View, WriterEpoch};
use forkyard_volume_store::{
    Ahead, AtRest, BaseFacts, Blame, Library, Patience, Scratch, Store, StoreError,
};
use std::{
    fs::{self, Permissions},
    io::Cursor,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

const SIZE: u64 = 80 * 4096;
const TOLD: &[u8] = b"a text that is in the clear with a key of this volume. ";
const OWN: AtRest = AtRest::Encrypted { key: None };

fn library(folder: &Path) -> Library {
    let geometry = Geometry::new(5).expect("32 slots");
    Library::with_keys(&folder.join("volumes"), geometry, &folder.join("keys")).expect("a folder")
}

fn told() -> Vec<u8> {
    TOLD.iter().copied().cycle().take(40_000).collect()
}

fn first(store: &Store) -> Result<Vec<u8>, StoreError> {
    let (mut out, mut scratch) = (vec![0; 40_000], Scratch::default());
    store.read(View::Current, 0, &mut out, &mut scratch, Patience::Wait)?;
    Ok(out)
}

fn write(store: &Store) -> WriterEpoch {
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    store.write(epoch, 0, &told()).expect("writes");
    store.flush().expect("flushes");
    epoch
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|it| it.expect("an entry").path());
    let below = |path: PathBuf| match path.is_dir() {
        true => files(&path),
        false => vec![path],
    };
    paths.flat_map(below).collect()
}

/// Tells whether any of the files hold what was written.
fn is_told(folder: &Path) -> bool {
    files(folder).iter().any(|path| {
        let bytes = fs::read(path).expect("reads");
        bytes.windows(TOLD.len()).any(|it| it == TOLD)
    })
}

#[test]
fn no_file_holds_what_was_written_wherever_it_is_copied_to() {
    for at_rest in [OWN, AtRest::Plain] {
        let is_plain = at_rest == AtRest::Plain;
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let [here, there] = [0, 1].map(|at| library(folders[at].path()));
        let store = here.create("v", SIZE, &at_rest).expect("made");
        let epoch = write(&store);
        store.write(epoch, 100, b"written in part").expect("writes");
        store.write(epoch, 0, &told()).expect("writes");
        store.snapshot("monday").expect("kept");
        let over = BaseFacts {
            volume: "v".into(),
            snapshot: "monday".into(),
        };
        let branch = here.branch("b", over).expect("made");
        let written = branch.open_writer(Takeover::Refused).expect("opens");
        branch.write(written, 9 * 4096, TOLD).expect("writes");
        let all = CompactionPolicy {
            dead_percent: 0,
            most: 99,
        };
        assert!(store.tidy(all).expect("tidied").checkpoint);
        let mut stream = Vec::new();
        let sent = store.send("monday", None, &Ahead::All, &mut stream);
        sent.expect("sent");
        let mut stream = Cursor::new(stream);
        there.receive("v", None, &mut stream).expect("received");
        let arrived = there.open("v").expect("there");
        for store in [&store, &branch, &arrived] {
            assert_eq!(store.facts().key.is_some(), !is_plain, "{}", store.name());
        }
        for store in [&store, &arrived] {
            assert!(first(store).expect("reads") == told());
            store.flush().expect("flushes");
        }
        for folder in &folders {
            assert_eq!(is_told(folder.path()), is_plain);
        }
        // What the operator takes out is as it was written.
        let raw = folders[0].path().join("raw");
        store.export(View::Current, &raw).expect("exports");
        assert!(is_told(folders[0].path()));
        drop((store, branch, here));
        // A key for each, and nothing of them in the folders of volumes.
        let keys = files(&folders[0].path().join("keys"));
        assert_eq!(keys.len(), if is_plain { 0 } else { 2 });
        let reopened = library(folders[0].path()).open("v").expect("opens");
        assert!(first(&reopened).expect("reads") == told());
    }
}

#[test]
fn a_volume_without_its_key_is_left_as_it_is_and_opened_with_it_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let own = at.join("operator.key");
    let with_own = AtRest::Encrypted {
        key: Some(own.clone()),
    };
    let first_library = library(at);
    // What is no key makes no volume.
    for (content, mode) in [
        ("", 0o600),
        ("ab", 0o600),
        (&"0x".repeat(32), 0o600),
        (&"a1".repeat(32), 0o644),
    ] {
        fs::write(&own, content).expect("writes");
        fs::set_permissions(&own, Permissions::from_mode(mode)).expect("set");
        let refused = first_library.create("w", SIZE, &with_own);
        let error = refused.expect_err("no key");
        assert!(matches!(error, StoreError::KeyFile { .. }), "{error}");
        assert_eq!(error.blame(), Blame::Caller);
    }
    assert_eq!(first_library.names().expect("a list"), [""; 0]);
    fs::set_permissions(&own, Permissions::from_mode(0o600)).expect("set");
    write(&first_library.create("v", SIZE, &OWN).expect("made"));
    write(&first_library.create("w", SIZE, &with_own).expect("made"));
    drop(first_library);
    let [made] = &files(&at.join("keys"))[..] else {
        panic!("one key is made");
    };
    let mode = fs::metadata(made).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for (name, key) in [("v", made), ("w", &own)] {
        let kept = fs::read(key).expect("reads");
        let before = files(&at.join("volumes").join(name));
        let before: Vec<_> = before
            .iter()
            .map(|it| fs::read(it).expect("reads"))
            .collect();
        let wrongs: [&dyn Fn(); 4] = [
            &|| fs::remove_file(key).expect("removed"),
            &|| fs::write(key, "ff".repeat(32)).expect("writes"),
            &|| fs::write(key, &kept[..40]).expect("writes"),
            &|| fs::set_permissions(key, Permissions::from_mode(0o640)).expect("set"),
        ];
        for wrong in wrongs {
            wrong();
            let error = library(at).open(name).expect_err("no key");
            assert!(matches!(error, StoreError::Key { .. }), "{error}");
            let after = files(&at.join("volumes").join(name));
            let after: Vec<_> = after
                .iter()
                .map(|it| fs::read(it).expect("reads"))
                .collect();
            assert!(before == after, "nothing is changed");
            fs::write(key, &kept).expect("writes");
            fs::set_permissions(key, Permissions::from_mode(0o600)).expect("set");
        }
        let store = library(at).open(name).expect("opens");
        assert!(first(&store).expect("reads") == told());
    }
    // A volume whose key is lost can be removed; a key goes with its volume, and not the operator's.
    fs::rename(&own, at.join("aside")).expect("renamed");
    let last = library(at);
    last.remove("w").expect("removed");
    fs::rename(at.join("aside"), &own).expect("renamed");
    let store = last.open("v").expect("opens");
    store.close_writer(WriterEpoch(1)).expect("closes");
    last.remove("v").expect("removed");
    assert!(!made.exists());
    assert!(own.exists());
    assert_eq!(files(&at.join("volumes")).len(), 0);
}

#[test]
fn a_key_goes_with_a_volume_that_was_never_made_or_half_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let first = library(at);
    first.create("v", SIZE, &OWN).expect("made");
    let import = first.import("w", Path::new("/dev/zero"), None, &OWN);
    import.expect_err("no disk");
    let taken = first.create("v", SIZE, &OWN);
    assert!(matches!(taken, Err(StoreError::Exists(_))), "{taken:?}");
    first.create("u", SIZE, &OWN).expect("made");
    drop(first);
    let keys = || files(&at.join("keys")).len();
    assert_eq!(keys(), 2);
    // A server died as it removed one, and as it made another.
    let volumes = at.join("volumes");
    fs::rename(volumes.join("v"), volumes.join("v.gone")).expect("renamed");
    fs::rename(volumes.join("u"), volumes.join("u.0.new")).expect("renamed");
    let next = library(at);
    assert_eq!(next.names().expect("a list"), [""; 0]);
    assert_eq!(keys(), 0);
}

#[test]
fn an_encrypted_volume_does_not_come_into_one_that_is_not() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [here, there] = [0, 1].map(|at| library(folders[at].path()));
    let stream = |store: &Store, snapshot: &str, since: Option<&str>| {
        store.snapshot(snapshot).expect("kept");
        let mut stream = Vec::new();
        let sent = store.send(snapshot, since, &Ahead::All, &mut stream);
        sent.expect("sent");
        stream
    };
    let plain = here.create("v", SIZE, &AtRest::Plain).expect("made");
    write(&plain);
    let all = stream(&plain, "one", None);
    there
        .receive("v", None, &mut Cursor::new(&all))
        .expect("received");
    // As one would look that was made anew at the other host.
    let text = String::from_utf8_lossy(&all).replacen("}", ",\"encrypted\":true}", 1);
    let header = text.lines().next().expect("a line").to_owned() + "\n";
    let body = all.iter().position(|it| *it == b'\n').expect("a line") + 1;
    let forged = [header.replace("one", "two").as_bytes(), &all[body..]].concat();
    let refused = there.receive("v", None, &mut Cursor::new(forged));
    assert!(
        matches!(refused, Err(StoreError::NotEncrypted(_))),
        "{refused:?}"
    );
}
