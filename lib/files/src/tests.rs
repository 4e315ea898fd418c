mod special;

use crate::{
    CopyTarget, Entry, EntryKind, FilesError, Noted, Reader, TarWriter, Unpacked, WantedMembers,
    pack, unpack,
};
use std::{
    ffi::OsStr,
    fs::{self, File},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::Path,
    process::Command,
};

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn packed(from: &Path, top: &str) -> (Vec<u8>, Vec<String>) {
    let (mut stream, mut notes) = (Vec::new(), Vec::new());
    let mut note = |text| notes.push(text);
    let mut writer = TarWriter::new(&mut stream);
    pack(from, top.as_bytes(), &mut writer, Noted::Apart(&mut note)).expect("packed");
    writer.finish().expect("whole");
    (stream, notes)
}

fn unpacked(stream: &[u8], path: &Path, wanted: WantedMembers<'_>) -> Result<Unpacked, FilesError> {
    let target = CopyTarget { path, wanted };
    unpack(Reader::new(stream), target, &mut |_| {})
}

/// A stream of a sender that keeps to no rule.
fn hostile(entries: &[(&str, EntryKind)]) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut writer = TarWriter::new(&mut stream);
    for (path, kind) in entries {
        let entry = Entry {
            path: path.as_bytes().to_vec(),
            kind: kind.clone(),
            mode: 0o6777,
            uid: 0,
            gid: 0,
            mtime: (1, 5),
            attributes: Vec::new(),
        };
        let data = writer.header(&entry).expect("written");
        let data = vec![b'x'; usize::try_from(data).expect("small")];
        writer.data(&data).expect("written");
        writer.pad(data.len() as u64).expect("written");
    }
    writer.finish().expect("whole");
    stream
}

fn file(size: u64) -> EntryKind {
    EntryKind::File {
        size,
        extents: None,
    }
}

#[test]
fn a_tree_arrives_with_its_holes_links_times_modes_and_odd_names() {
    let (here, there) = (dir(), dir());
    let from = here.path().join("from");
    fs::create_dir_all(from.join("deep/deeper")).expect("made");
    fs::write(from.join("deep/file"), vec![7; 300_001]).expect("written");
    fs::write(from.join("empty"), "").expect("written");
    symlink("deep/file", from.join("link")).expect("linked");
    fs::hard_link(from.join("deep/file"), from.join("same")).expect("linked");
    let odd: [&[u8]; 5] = [b"a:b", b"[x]", b"new\nline", b"-rf", b"\xff\xfe\x01"];
    for name in odd {
        fs::write(from.join(OsStr::from_bytes(name)), name).expect("written");
    }
    let long = "n".repeat(250);
    fs::write(from.join(&long), "long").expect("written");
    let holes = File::create(from.join("holes")).expect("made");
    holes.set_len(300 << 20).expect("set");
    holes.write_all_at(b"here", 100 << 20).expect("written");
    fs::set_permissions(from.join("empty"), fs::Permissions::from_mode(0o4751)).expect("set");
    let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    File::open(from.join("deep/file"))
        .and_then(|f| f.set_modified(then))
        .expect("set");
    File::open(from.join("deep"))
        .and_then(|f| f.set_modified(then))
        .expect("set");
    fs::set_permissions(from.join("deep"), fs::Permissions::from_mode(0o555)).expect("set");

    let (stream, notes) = packed(&from, "from");
    assert!(
        notes.is_empty() && stream.len() < 1 << 20,
        "{notes:?}, {} bytes",
        stream.len()
    );
    let done = unpacked(
        &stream,
        there.path(),
        WantedMembers::Named(OsStr::new("from")),
    )
    .expect("unpacked");
    let to = there.path().join("from");
    assert_eq!(
        fs::read(to.join("deep/file")).expect("there"),
        vec![7; 300_001]
    );
    let about = |name: &str| to.join(name).symlink_metadata().expect("there");
    // The first one met is the file, the other a link to it.
    assert_eq!(about("same").ino(), about("deep/file").ino());
    assert_eq!(
        fs::read_link(to.join("link")).expect("a link"),
        Path::new("deep/file")
    );
    for name in odd {
        assert_eq!(
            fs::read(to.join(OsStr::from_bytes(name))).expect("there"),
            name
        );
    }
    assert_eq!(fs::read(to.join(&long)).expect("there"), b"long");
    assert_eq!(about("empty").mode() & 0o7777, 0o751, "no set-id bit");
    assert_eq!(about("deep").mode() & 0o7777, 0o555);
    for name in ["deep", "deep/file"] {
        assert_eq!(
            (about(name).mtime(), about(name).mtime_nsec()),
            (1_000_000_000, 123_456_789)
        );
    }
    assert_eq!(about("holes").len(), 300 << 20);
    assert!(
        about("holes").blocks() < 1000,
        "{} blocks",
        about("holes").blocks()
    );
    let mut read = [0; 4];
    File::open(to.join("holes"))
        .and_then(|f| f.read_exact_at(&mut read, 100 << 20))
        .expect("read");
    assert_eq!(&read, b"here");
    assert!(done.files >= 11, "{done:?}");
}

#[test]
fn gnu_tar_reads_what_is_packed_and_packs_what_is_read() {
    let (here, there, back) = (dir(), dir(), dir());
    let from = here.path().join("t");
    fs::create_dir(&from).expect("made");
    let holes = File::create(from.join("holes")).expect("made");
    holes.set_len(10 << 20).expect("set");
    // More of them than a header has room for.
    for at in 1..40_u64 {
        holes.write_all_at(b"here", at << 17).expect("written");
    }
    fs::write(from.join("n".repeat(180)), "long").expect("written");
    let (stream, _) = packed(&from, "t");
    fs::write(here.path().join("tar"), stream).expect("written");
    let tar = |words: &[&str], at: &Path| {
        let done = Command::new("tar")
            .args(words)
            .current_dir(at)
            .output()
            .expect("ran");
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        done.stdout
    };
    tar(
        &["-xf", &here.path().join("tar").display().to_string()],
        there.path(),
    );
    let same = |at: &Path| {
        fs::read(at.join("t/holes")).expect("there") == fs::read(from.join("holes")).expect("there")
    };
    assert!(same(there.path()));
    for format in [
        &["--format=posix", "--sparse"][..],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=gnu", "--sparse"],
        &["--format=gnu"],
    ] {
        let stream = tar(&[format, &["-cf", "-", "t"]].concat(), there.path());
        unpacked(&stream, back.path(), WantedMembers::Any).expect("unpacked");
        assert!(same(back.path()));
        assert_eq!(
            fs::read(back.path().join("t").join("n".repeat(180))).expect("there"),
            b"long"
        );
        fs::remove_dir_all(back.path().join("t")).expect("removed");
    }
}

#[test]
fn files_of_proc_have_their_content_and_sockets_are_left_out_and_told() {
    let (here, there) = (dir(), dir());
    let (stream, _) = packed(Path::new("/proc/cpuinfo"), "c");
    unpacked(
        &stream,
        &there.path().join("c"),
        WantedMembers::Named(OsStr::new("c")),
    )
    .expect("unpacked");
    assert!(fs::read(there.path().join("c")).expect("there").len() > 100);
    // Larger than what is read at once, and of no known size.
    let (stream, _) = packed(Path::new("/proc/kallsyms"), "k");
    unpacked(&stream, there.path(), WantedMembers::Any).expect("unpacked");
    assert!(fs::metadata(there.path().join("k")).expect("there").len() > 128 << 10);

    let _listens = UnixListener::bind(here.path().join("socket")).expect("bound");
    fs::write(here.path().join("file"), "kept").expect("written");
    let (stream, notes) = packed(here.path(), ".");
    assert!(notes.len() == 1 && notes[0].contains("socket"), "{notes:?}");
    unpacked(&stream, there.path(), WantedMembers::Contents).expect("unpacked");
    assert_eq!(fs::read(there.path().join("file")).expect("there"), b"kept");
    assert!(!there.path().join("socket").exists());
}

#[test]
fn a_file_that_changes_while_it_is_read_is_as_long_as_it_was_said_to_be() {
    let here = dir();
    let path = here.path().join("log");
    fs::write(&path, vec![b'a'; 1 << 20]).expect("written");
    /// Changes the file once some of it was taken.
    struct Meddler<'a>(&'a Path, u64, Vec<u8>);
    impl std::io::Write for Meddler<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.2.len() > 64 << 10 {
                File::options().write(true).open(self.0)?.set_len(self.1)?;
            }
            self.2.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    for (length, told) in [(2 << 20, 0), (10, 1)] {
        fs::write(&path, vec![b'a'; 1 << 20]).expect("written");
        let mut meddler = Meddler(&path, length, Vec::new());
        let mut notes = Vec::new();
        let mut note = |text| notes.push(text);
        let mut writer = TarWriter::new(&mut meddler);
        pack(&path, b"log", &mut writer, Noted::Apart(&mut note)).expect("packed");
        writer.finish().expect("whole");
        assert_eq!(notes.len(), told, "{notes:?}");
        let mut reader = Reader::new(&meddler.2[..]);
        let entry = reader
            .next_entry()
            .expect("a tar stream")
            .expect("a member");
        assert_eq!(entry.kind, file(1 << 20));
        assert!(reader.next_entry().expect("whole").is_none());
    }
}

#[test]
fn destinations_are_as_docker_has_them() {
    let (here, there) = (dir(), dir());
    fs::create_dir(here.path().join("d")).expect("made");
    fs::write(here.path().join("d/f"), "f").expect("written");
    let folder = packed(&here.path().join("d"), "d").0;
    let contents = packed(&here.path().join("d"), ".").0;
    let one = packed(&here.path().join("d/f"), "f").0;
    let to = |name: &str| there.path().join(name);
    let named = |name| WantedMembers::Named(OsStr::new(name));
    // What is not there gets the name, what is there takes it in.
    unpacked(&folder, &to("new"), named("d")).expect("made");
    unpacked(&folder, &to("new"), named("d")).expect("into");
    unpacked(&folder, &to("new/"), named("d")).expect("merged");
    unpacked(&contents, &to("new"), WantedMembers::Contents).expect("merged");
    unpacked(&contents, &to("other"), WantedMembers::Contents).expect("made");
    unpacked(&one, &to("other/g"), named("f")).expect("made");
    unpacked(&one, &to("other/g"), named("f")).expect("replaced");
    for name in ["new/f", "new/d/f", "other/f", "other/g"] {
        assert_eq!(fs::read(to(name)).expect(name), b"f");
    }
    for (stream, path, name) in [
        (&one, "nothing/", "f"),
        (&folder, "other/g", "d"),
        (&one, "other/g/", "f"),
        (&one, "no/where", "f"),
    ] {
        let refused = unpacked(
            stream,
            Path::new(&format!("{}/{path}", there.path().display())),
            named(name),
        );
        assert!(
            matches!(
                refused,
                Err(FilesError::Place { .. } | FilesError::Write { .. })
            ),
            "{path}: {refused:?}"
        );
    }
    // Where a link leads is replaced, and the link stays.
    symlink("g", to("other/l")).expect("linked");
    unpacked(&one, &to("other/l"), named("f")).expect("replaced");
    assert!(to("other/l").is_symlink());
    symlink("nowhere", to("other/m")).expect("linked");
    assert!(matches!(
        unpacked(&one, &to("other/m"), named("f")),
        Err(FilesError::Place { .. })
    ));
}

#[test]
fn a_hostile_sender_writes_what_was_asked_for_where_it_was_asked_for_alone() {
    let outside = dir();
    let into = outside.path().join("into");
    let key = WantedMembers::Named(OsStr::new("key"));
    fs::create_dir(&into).expect("made");
    fs::write(outside.path().join("victim"), "mine").expect("written");
    let refused: [&[(&str, EntryKind)]; 9] = [
        &[("key", EntryKind::Link(b"../victim".to_vec()))],
        &[("key", EntryKind::Same(b"../victim".to_vec()))],
        &[("other", file(4))],
        &[("key", file(4)), ("other", file(4))],
        &[("key", EntryKind::Folder), ("key/../../escaped", file(4))],
        &[
            ("key", EntryKind::Folder),
            ("key/way", EntryKind::Link(b"../..".to_vec())),
            ("key/way/escaped", file(4)),
        ],
        &[
            ("key", EntryKind::Folder),
            ("key/h", EntryKind::Same(b"key/../../victim".to_vec())),
        ],
        &[
            ("key", EntryKind::Folder),
            ("key/way", EntryKind::Link(b"../..".to_vec())),
            ("key/h", EntryKind::Same(b"key/way/victim".to_vec())),
        ],
        &[("../key", file(4))],
    ];
    for entries in refused {
        let told = unpacked(&hostile(entries), &into, key);
        assert!(told.is_err(), "{entries:?}");
        // But for a file that was asked for and came whole before.
        let _ = fs::remove_file(into.join("key"));
        assert_eq!(
            fs::read_dir(&into).expect("there").count(),
            0,
            "{entries:?} left something"
        );
        assert_eq!(
            fs::read_dir(outside.path()).expect("there").count(),
            2,
            "{entries:?}"
        );
    }
    // A link that was sent is replaced by the file of its name, never written through.
    let twice = [
        ("key", EntryKind::Folder),
        ("key/a", EntryKind::Link(b"../../victim".to_vec())),
        ("key/a", file(4)),
    ];
    unpacked(&hostile(&twice), &into, key).expect("unpacked");
    assert!(!into.join("key/a").is_symlink());
    assert_eq!(
        fs::read(outside.path().join("victim")).expect("there"),
        b"mine"
    );
    let mode = fs::metadata(into.join("key/a")).expect("there").mode();
    assert_eq!(mode & 0o7777, 0o777, "as it was sent");
    // Into a folder of links of ours: none is followed.
    symlink(outside.path(), into.join("key/ours")).expect("linked");
    let through = [
        ("key", EntryKind::Folder),
        ("key/ours", EntryKind::Folder),
        ("key/ours/escaped", file(4)),
    ];
    assert!(unpacked(&hostile(&through), &into, key).is_err());
    assert!(!outside.path().join("escaped").exists());
}

#[test]
fn what_is_no_file_is_written_into_and_stays_what_it_is() {
    let dir = dir();
    let from = dir.path().join("from");
    fs::write(&from, "said").expect("written");
    // As one that has a hole.
    File::options()
        .write(true)
        .open(&from)
        .and_then(|file| file.set_len(100_000))
        .expect("longer");
    let (stream, _) = packed(&from, "from");
    let wanted = WantedMembers::Named(OsStr::new("from"));
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("made");
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read(fifo).expect("read")
    });
    unpacked(&stream, &fifo, wanted).expect("written");
    let read = reader.join().expect("read");
    assert_eq!((&read[..4], read.len()), (&b"said"[..], 100_000));
    assert!(!fs::symlink_metadata(&fifo).expect("there").is_file());
    // As /dev/stdout leads to what is open.
    let open = File::create(dir.path().join("open")).expect("made");
    let inode = open.metadata().expect("there").ino();
    let link = dir.path().join("link");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    symlink(path, &link).expect("made");
    unpacked(&stream, &link, wanted).expect("written");
    let now = fs::metadata(dir.path().join("open")).expect("there");
    assert_eq!((now.ino(), now.len()), (inode, 100_000));
    // Nor does one go that lies where a folder's content goes.
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("below")).expect("made");
    fs::rename(&fifo, tree.join("below/fifo")).expect("moved");
    let over = dir.path().join("over");
    fs::create_dir_all(over.join("below")).expect("made");
    fs::write(over.join("below/fifo"), "x").expect("written");
    let (stream, _) = packed(&over, ".");
    unpacked(&stream, &tree, WantedMembers::Contents).expect_err("refused");
    let there = fs::symlink_metadata(tree.join("below/fifo")).expect("there");
    assert!(!there.is_file());
    let left = fs::read_dir(tree.join("below")).expect("listed").count();
    assert_eq!(left, 1);
    let socket = dir.path().join("socket");
    let _listener = UnixListener::bind(&socket).expect("bound");
    let (stream, _) = packed(&from, "from");
    let refused = unpacked(&stream, &socket, wanted).expect_err("refused");
    assert!(refused.to_string().contains("it is a socket"), "{refused}");
}

#[test]
fn a_stream_cut_anywhere_is_told_and_leaves_nothing_half_done() {
    let here = dir();
    let from = here.path().join("from");
    fs::create_dir(&from).expect("made");
    fs::write(from.join("f"), vec![1; 3000]).expect("written");
    let (stream, _) = packed(&from, "from");
    let into = here.path().join("into");
    fs::create_dir(&into).expect("made");
    let end = stream.len() - 2 * 512;
    for cut in (0..=end).step_by(97) {
        let told = unpacked(&stream[..cut], &into, WantedMembers::Any);
        assert!(told.is_err(), "cut at {cut}");
        assert_eq!(
            fs::read_dir(&into).expect("there").count(),
            0,
            "cut at {cut}"
        );
    }
}

#[test]
fn records_are_read_by_their_lengths_and_nonsense_is_refused() {
    let mut entry = Entry {
        path: b"a\n22 linkpath=x".to_vec(),
        kind: file(0),
        mode: 0o644,
        uid: 3_000_000,
        gid: 0,
        mtime: (-2, 250_000_000),
        attributes: Vec::new(),
    };
    entry.path.extend_from_slice("é".repeat(60).as_bytes());
    let mut stream = Vec::new();
    let mut writer = TarWriter::new(&mut stream);
    writer.header(&entry).expect("written");
    writer.finish().expect("whole");
    let mut reader = Reader::new(&stream[..]);
    assert_eq!(reader.next_entry().expect("read"), Some(entry));
    for bad in [&[0xff; 512][..], &[b'x'; 2048], &stream[512..]] {
        assert!(Reader::new(bad).next_entry().is_err());
    }
    // The end must be there, unless it may be missing.
    let cut = &stream[..stream.len() - 1024];
    let mut reader = Reader::new(cut).open_ended();
    assert!(reader.next_entry().expect("read").is_some());
    assert!(reader.next_entry().expect("whole").is_none());
    let mut reader = Reader::new(cut);
    assert!(reader.next_entry().expect("read").is_some());
    assert!(matches!(reader.next_entry(), Err(FilesError::Short)));
    // No length is believed before it is bounded.
    let mut large = stream.clone();
    large[124..136].copy_from_slice(b"77777777777\0");
    large[148..156].fill(b' ');
    let sum: u32 = large[..512].iter().map(|byte| u32::from(*byte)).sum();
    large[148..155].copy_from_slice(format!("{sum:07o}").as_bytes());
    large[155] = 0;
    assert!(matches!(
        Reader::new(&large[..]).next_entry(),
        Err(FilesError::Format(_))
    ));
}
