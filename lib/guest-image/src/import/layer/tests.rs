use super::*;
use proptest::prelude::*;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

/// A layer as a hostile tool might write it: the crate's own care is passed by.
pub(crate) struct Crafted(Builder<Vec<u8>>);

impl Crafted {
    pub(crate) fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    pub(crate) fn add(&mut self, kind: EntryType, path: &str, link: &str, content: &[u8]) {
        self.with(kind, path, link, content, |_| {});
    }

    pub(crate) fn file(mut self, path: &str, content: &str) -> Self {
        self.add(EntryType::Regular, path, "", content.as_bytes());
        self
    }

    pub(crate) fn folder(mut self, path: &str) -> Self {
        self.with(EntryType::Directory, path, "", b"", |header| {
            header.set_mode(0o755)
        });
        self
    }

    /// Adds an extended header with these records for the next entry.
    fn more(mut self, records: &[(&str, &[u8])]) -> Self {
        let mut text = Vec::new();
        for (name, value) in records {
            let rest = name.len() + value.len() + 3;
            let digits = |length: usize| length.to_string().len();
            let length = rest + digits(rest + digits(rest));
            text.extend(format!("{length} {name}=").as_bytes());
            text.extend(*value);
            text.push(b'\n');
        }
        self.add(EntryType::XHeader, "more", "", &text);
        self
    }

    fn link(mut self, kind: EntryType, path: &str, to: &str) -> Self {
        self.add(kind, path, to, b"");
        self
    }

    fn with(
        &mut self,
        kind: EntryType,
        path: &str,
        link: &str,
        content: &[u8],
        change: impl FnOnce(&mut Header),
    ) {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o640);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000);
        header.set_size(content.len() as u64);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        change(&mut header);
        header.set_cksum();
        self.0.append(&header, content).expect("appended");
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0.into_inner().expect("whole")
    }
}

const ROOM: Budget = Budget {
    bytes: 1 << 20,
    entries: 1000,
    names: NAMES,
    folders: NAMES,
    limits: (ByteCount(1 << 20), 1000),
};

/// A folder with a tree in it, and something beside it to be spared.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("root")).expect("made");
        fs::write(dir.path().join("outside"), "spared").expect("written");
        Self { dir }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn apply(&self, layers: &[Vec<u8>]) -> Result<(), LayerError> {
        self.within(ROOM, layers)
    }

    fn within(&self, budget: Budget, layers: &[Vec<u8>]) -> Result<(), LayerError> {
        let (root, cancel) = (self.root(), Cancel::default());
        let mut tree = Tree::new(&root, budget, &cancel);
        for layer in layers {
            assert_eq!(
                tree.apply(&layer[..])?,
                Digest::of(&layer[..]).expect("read")
            );
        }
        tree.finish()
    }

    /// Every path in the tree.
    fn listed(&self) -> Vec<String> {
        let (mut found, mut folders) = (Vec::new(), vec![self.root()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("listed") {
                let path = entry.expect("listed").path();
                if path.symlink_metadata().expect("there").is_dir() {
                    folders.push(path.clone());
                }
                let path = path.strip_prefix(self.root()).expect("inside");
                found.push(path.display().to_string());
            }
        }
        found.sort();
        found
    }

    fn hostile(&self, layer: Crafted) {
        let refused = self.apply(&[layer.done()]);
        assert!(
            matches!(refused, Err(LayerError::Hostile { .. })),
            "{refused:?}"
        );
        self.nothing_outside();
    }

    fn nothing_outside(&self) {
        let names: Vec<_> = fs::read_dir(self.dir.path())
            .expect("listed")
            .map(|entry| entry.expect("listed").file_name())
            .collect();
        assert_eq!(names.len(), 2, "{names:?}");
        let outside = fs::read_to_string(self.dir.path().join("outside"));
        assert_eq!(outside.expect("there"), "spared");
    }
}

mod headers;

#[test]
fn owners_modes_times_and_links_are_kept() {
    let place = Place::new();
    let mut layer = Crafted::new().folder("bin/");
    layer.with(EntryType::Regular, "./bin/su", "", b"#!", |header| {
        header.set_uid(12);
        header.set_gid(34);
        header.set_mode(0o4755);
    });
    let layer = layer
        .link(EntryType::Link, "bin/sudo", "bin/su")
        .link(EntryType::Symlink, "sbin", "bin")
        .link(EntryType::Fifo, "fifo", "")
        .link(EntryType::Char, "dev/null", "");
    place.apply(&[layer.done()]).expect("unpacked");
    let su = fs::metadata(place.root().join("sbin/su")).expect("there");
    assert_eq!((su.uid(), su.gid(), su.mode() & 0o7777), (12, 34, 0o4755));
    assert_eq!((su.nlink(), su.mtime()), (2, 1_000_000));
    let bin = fs::metadata(place.root().join("bin")).expect("there");
    assert_eq!((bin.mode() & 0o7777, bin.mtime()), (0o755, 1_000_000));
    let fifo = fs::metadata(place.root().join("fifo")).expect("there");
    assert!(fifo.file_type().is_fifo());
    assert_eq!(
        place.listed(),
        ["bin", "bin/su", "bin/sudo", "fifo", "sbin"]
    );
}

#[test]
fn later_layers_win_whatever_was_there() {
    let place = Place::new();
    let lower = Crafted::new()
        .folder("a")
        .file("a/below", "old")
        .file("b", "old")
        .link(EntryType::Link, "twin", "b")
        .link(EntryType::Symlink, "c", "a")
        .folder("kept")
        .file("kept/below", "old");
    let upper = Crafted::new()
        .file("a", "new")
        .folder("b")
        .folder("c")
        .folder("kept");
    place
        .apply(&[lower.done(), upper.done()])
        .expect("unpacked");
    assert_eq!(
        place.listed(),
        ["a", "b", "c", "kept", "kept/below", "twin"]
    );
    let twin = fs::read_to_string(place.root().join("twin")).expect("there");
    assert_eq!(twin, "old", "a hard link is not written through");
    let c = place.root().join("c").symlink_metadata().expect("there");
    assert!(c.is_dir(), "a folder takes the place of a link to one");
}

#[test]
fn whiteouts_hide_what_lies_below_and_nothing_of_their_own_layer() {
    let lower = || {
        let tree = Crafted::new()
            .folder("d")
            .folder("d/sub")
            .file("d/sub/x", "");
        tree.file("d/one", "")
            .file("d/two", "")
            .file("e", "")
            .done()
    };
    let cases: [(&[&str], &[&str]); 6] = [
        (&["d/.wh.one", ".wh.e"], &["d", "d/sub", "d/sub/x", "d/two"]),
        (&[".wh.d"], &["e"]),
        (&["d/.wh..wh..opq"], &["d", "e"]),
        // Its own, whichever comes first.
        (&["d/.wh..wh..opq", "d/new"], &["d", "d/new", "e"]),
        (
            &["d/sub/new", "d/.wh..wh..opq"],
            &["d", "d/sub", "d/sub/new", "e"],
        ),
        (
            &["e", ".wh.e", ".wh.gone", ".wh..wh.plnk"],
            &["d", "d/one", "d/sub", "d/sub/x", "d/two", "e"],
        ),
    ];
    for (entries, left) in cases {
        let place = Place::new();
        let upper = entries
            .iter()
            .fold(Crafted::new(), |layer, path| layer.file(path, ""));
        place.apply(&[lower(), upper.done()]).expect("unpacked");
        assert_eq!(place.listed(), left, "{entries:?}");
    }
}

#[test]
fn whiteouts_lead_nowhere_else() {
    for name in [".wh.", ".wh..", ".wh...", "a/../.wh.b"] {
        let place = Place::new();
        place.hostile(Crafted::new().file(name, ""));
    }
    let place = Place::new();
    let layer = Crafted::new().link(EntryType::Symlink, "way", "..");
    let layer = layer.file("way/.wh.outside", "");
    place.apply(&[layer.done()]).expect("unpacked");
    place.nothing_outside();
}

#[test]
fn no_path_and_no_link_leads_outside() {
    for path in ["../escaped", "a/../../escaped", "/../escaped", ".."] {
        Place::new().hostile(Crafted::new().file(path, "evil"));
    }
    let outside = Place::new();
    let absolute = outside.dir.path().display().to_string();
    for target in ["..", "../..", "/", &absolute] {
        let place = Place::new();
        let layer = Crafted::new()
            .link(EntryType::Symlink, "way", target)
            .file("way/outside", "evil")
            .folder("way/made");
        place.apply(&[layer.done()]).expect("it stays inside");
        place.nothing_outside();
        outside.nothing_outside();
    }
    // Written in place of the link, not through it.
    let place = Place::new();
    let target = place.dir.path().join("outside").display().to_string();
    let layer = Crafted::new()
        .link(EntryType::Symlink, "way", &target)
        .file("way", "evil");
    place.apply(&[layer.done()]).expect("unpacked");
    place.nothing_outside();
}

#[test]
fn hard_links_are_to_files_of_the_image() {
    let place = Place::new();
    let outside = place.dir.path().join("outside").display().to_string();
    for target in ["../outside", &outside, "none", "folder"] {
        let layer = Crafted::new().folder("folder");
        place.hostile(layer.link(EntryType::Link, "twin", target));
    }
    let layer = Crafted::new().link(EntryType::Symlink, "way", "..");
    place.hostile(layer.link(EntryType::Link, "twin", "way/outside"));
    // To itself: it stays as it is.
    let layer = Crafted::new().file("a", "kept");
    let layer = layer.link(EntryType::Link, "a", "a");
    place.apply(&[layer.done()]).expect("unpacked");
    assert_eq!(
        fs::read_to_string(place.root().join("a")).expect("there"),
        "kept"
    );
}

#[test]
fn devices_and_what_has_no_meaning_are_refused() {
    for kind in [EntryType::Char, EntryType::Block] {
        Place::new().hostile(Crafted::new().link(kind, "etc/disk", ""));
    }
    let unknown = Crafted::new().link(EntryType::new(b'Z'), "etc/disk", "");
    let refused = Place::new().apply(&[unknown.done()]);
    assert!(
        matches!(refused, Err(LayerError::Corrupt { .. })),
        "{refused:?}"
    );
    let mut layer = Crafted::new();
    layer.with(EntryType::Regular, "a", "", b"", |header| {
        header.set_uid(u32::MAX.into())
    });
    Place::new().hostile(layer);
}

#[test]
fn more_than_there_is_room_for_is_refused() {
    let large = || Crafted::new().file("a", &"x".repeat(70_000)).done();
    let small = Budget::new(ByteCount(100_000), 10);
    Place::new().within(small, &[large()]).expect("it fits");
    let twice = Place::new().within(small, &[large(), large()]);
    assert!(matches!(twice, Err(LayerError::TooLarge(_))), "{twice:?}");
    let many = (0..11).fold(Crafted::new(), |layer, n| layer.file(&n.to_string(), ""));
    let many = Place::new().within(small, &[many.done()]);
    assert!(matches!(many, Err(LayerError::TooMany(10))), "{many:?}");
    let few = Budget {
        names: 1000,
        ..Budget::new(ByteCount(100_000), 1000)
    };
    let named = (0..20).fold(Crafted::new(), |layer, n| layer.file(&format!("{n}"), ""));
    let names = Place::new().within(few, &[named.done()]);
    assert!(
        matches!(names, Err(LayerError::TooManyNames(_))),
        "{names:?}"
    );
}

#[test]
fn a_bomb_is_not_unpacked() {
    let endless = io::Read::take(io::repeat(0), 1 << 30);
    let mut packed = Crafted::new().done();
    packed.truncate(0);
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_size(1 << 30);
    header.set_path("bomb").expect("a path");
    header.set_cksum();
    packed.extend(header.as_bytes());
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).expect("ready");
    io::copy(&mut (&packed[..]).chain(endless), &mut encoder).expect("packed");
    let bomb = encoder.finish().expect("packed");
    assert!(bomb.len() < 200_000, "{}", bomb.len());
    let place = Place::new();
    let (root, cancel) = (place.root(), Cancel::default());
    let mut tree = Tree::new(&root, ROOM, &cancel);
    let refused = tree.apply(&bomb[..]);
    assert!(
        matches!(refused, Err(LayerError::TooLarge(_))),
        "{refused:?}"
    );
    assert_eq!(place.listed(), [""; 0]);
}

#[test]
fn compressed_layers_have_the_digest_of_what_they_unpack_to() {
    let layer = Crafted::new().file("a", "content").done();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    io::Write::write_all(&mut gzip, &layer).expect("packed");
    let gzip = gzip.finish().expect("packed");
    let zstd = zstd::encode_all(&layer[..], 1).expect("packed");
    for packed in [&gzip, &zstd] {
        let place = Place::new();
        let (root, cancel) = (place.root(), Cancel::default());
        let digest = Tree::new(&root, ROOM, &cancel).apply(&packed[..]);
        assert_eq!(
            digest.expect("unpacked"),
            Digest::of(&layer[..]).expect("read")
        );
        assert_eq!(place.listed(), ["a"]);
        // Cut off, it is not whole.
        let half = &packed[..packed.len() / 2];
        let refused = Tree::new(&root, ROOM, &cancel).apply(half);
        assert!(
            matches!(refused, Err(LayerError::Corrupt { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn a_layer_that_is_no_longer_wanted_ends() {
    let place = Place::new();
    let (root, cancel) = (place.root(), Cancel::default());
    cancel.set();
    let layer = Crafted::new().file("a", "").done();
    let given_up = Tree::new(&root, ROOM, &cancel).apply(&layer[..]);
    assert!(
        matches!(given_up, Err(LayerError::Cancelled)),
        "{given_up:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_the_names_nothing_outside_changes(
        entries in prop::collection::vec(
            (
                prop::sample::select(vec![
                    EntryType::Regular, EntryType::Directory, EntryType::Symlink, EntryType::Link,
                ]),
                "(\\.\\.|a|b|/|\\.wh\\.a|outside)(/(\\.\\.|a|b|outside|\\.wh\\.\\.wh\\.\\.opq)){0,3}",
                "(\\.\\.|a|b|/|outside)(/(\\.\\.|a|b|outside)){0,3}",
            ),
            0..12,
        ),
    ) {
        let place = Place::new();
        let mut layer = Crafted::new();
        for (kind, path, link) in &entries {
            layer.with(*kind, path, link, b"", |header| header.set_mode(0o755));
        }
        let _ = place.apply(&[layer.done()]);
        place.nothing_outside();
    }
}
