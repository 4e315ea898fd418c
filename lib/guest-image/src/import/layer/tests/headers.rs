//! Headers of a layer, and files with holes.

use super::*;

#[test]
fn extended_headers_are_read_by_their_lengths() {
    // Capabilities 1 and 3: the byte of them is a newline's.
    let mut capability = [0; 20];
    capability[..5].copy_from_slice(&[1, 0, 0, 2, b'\n']);
    let layer = Crafted::new()
        .more(&[
            ("comment", b"two\nlines"),
            ("SCHILY.xattr.security.capability", &capability),
            ("SCHILY.xattr.trusted.x", b"not a guest's"),
        ])
        .file("able", "")
        .more(&[("path", b"new\n22 linkpath=/outside")])
        .file("short", "it")
        .more(&[("uid", b"3000000"), ("mtime", b"1.5")])
        .file("theirs", "")
        .file("next", "");
    let place = Place::new();
    place.apply(&[layer.done()]).expect("unpacked");
    let mut value = [0; 64];
    let able = place.root().join("able");
    let length = rustix::fs::getxattr(&able, "security.capability", &mut value[..]);
    assert_eq!(value[..length.expect("there")], capability);
    rustix::fs::getxattr(&able, "trusted.x", &mut value[..]).expect_err("not kept");
    let named = place.root().join("new\n22 linkpath=/outside");
    assert_eq!(fs::read(named).expect("there"), b"it");
    let about = |name: &str| fs::metadata(place.root().join(name)).expect("there");
    assert_eq!(
        (about("theirs").uid(), about("theirs").mtime_nsec()),
        (3_000_000, 500_000_000)
    );
    assert_eq!(about("next").uid(), 0, "they are of one entry alone");
}

#[test]
fn sparse_files_are_what_they_mean_and_count_with_their_holes() {
    let from = tempfile::tempdir().expect("a folder");
    let file = File::create(from.path().join("sp")).expect("made");
    file.set_len(4 << 20).expect("set");
    for at in 1..30_u64 {
        file.write_all_at(b"here", at << 17).expect("written");
    }
    drop(file);
    for format in [
        "--format=gnu",
        "--format=posix --sparse-version=0.0",
        "--format=posix --sparse-version=0.1",
        "--format=posix --sparse-version=1.0",
    ] {
        let tar = std::process::Command::new("tar")
            .args(format.split(' '))
            .args(["--sparse", "-cf", "-", "sp"])
            .current_dir(from.path())
            .output()
            .expect("ran");
        assert!(tar.stdout.len() < 1 << 20, "it has holes");
        let place = Place::new();
        let room = Budget::new(ByteCount(4 << 20), 10);
        let layers = [tar.stdout];
        place.within(room, &layers).expect(format);
        assert_eq!(place.listed(), ["sp"], "{format}");
        let [had, has] = [from.path().join("sp"), place.root().join("sp")];
        assert!(
            fs::read(had).expect("read") == fs::read(&has).expect("read"),
            "{format}"
        );
        let blocks = fs::metadata(has).expect("there").blocks();
        assert!(blocks < 4096, "{format}: {blocks}");
        let little = Budget::new(ByteCount(2 << 20), 10);
        let refused = Place::new().within(little, &layers);
        assert!(
            matches!(refused, Err(LayerError::TooLarge(_))),
            "{format}: {refused:?}"
        );
    }
}

#[test]
fn headers_without_end_are_not_read_to_their_end() {
    for (kind, one) in [
        (EntryType::XHeader, 1 << 30),
        (EntryType::GNULongName, 1 << 30),
        // Each is short, and there is no end of them.
        (EntryType::XHeader, 4096),
    ] {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(one);
        header.set_cksum();
        let record = format!("{one} SCHILY.xattr.user.a={}\n", "x".repeat(4096 - 26));
        let mut endless = Endless([header.as_bytes(), record.as_bytes()].concat(), 0);
        let place = Place::new();
        let (root, cancel) = (place.root(), Cancel::default());
        let refused = Tree::new(&root, ROOM, &cancel).apply(&mut endless);
        assert!(
            matches!(refused, Err(LayerError::Corrupt { .. })),
            "{refused:?}"
        );
        assert!(endless.1 < 3 << 20, "{} bytes were read", endless.1);
    }
}

/// Reader that repeats the same bytes, and counts those that were read.
struct Endless(Vec<u8>, usize);

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut rest = &self.0[self.1 % self.0.len()..];
        let read = rest.read(buffer)?;
        self.1 += read;
        Ok(read)
    }
}
