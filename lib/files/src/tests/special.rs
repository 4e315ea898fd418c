//! FIFOs, devices and files of the kernel's.

use super::{dir, packed, unpacked};
use crate::{FilesError, Noted, TarWriter, WantedMembers, pack};
use std::{ffi::OsStr, fs, path::Path, sync::mpsc, thread, time::Duration};

/// Long enough for a busy machine: nothing here takes a second.
const LIMIT: Duration = Duration::from_secs(30);

/// Fails a test of what hangs.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    result.recv_timeout(LIMIT).expect("it ends")
}

fn refused(from: &str) -> FilesError {
    let from = from.to_owned();
    ends(move || {
        let mut notes = |_| {};
        let mut writer = TarWriter::new(std::io::sink());
        let noted = Noted::Apart(&mut notes);
        pack(Path::new(&from), b"x", &mut writer, noted).expect_err("refused")
    })
}

#[test]
fn a_fifo_that_nothing_reads_is_refused_rather_than_waited_for() {
    let dir = dir();
    let from = dir.path().join("from");
    fs::write(&from, "said").expect("written");
    let (stream, _) = packed(&from, "from");
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("made");
    let error = ends(move || {
        unpacked(&stream, &fifo, WantedMembers::Named(OsStr::new("from"))).expect_err("refused")
    });
    assert!(
        matches!(error, FilesError::Place { why, .. } if why.contains("nothing reads")),
        "{error}"
    );
}

#[test]
fn what_cannot_be_read_is_an_error_if_it_is_all_that_was_asked_for() {
    // Its first page is not mapped.
    let error = refused("/proc/self/mem");
    assert!(matches!(error, FilesError::Read { .. }), "{error}");
    for (path, why) in [
        ("/proc/kmsg", "more may come"),
        ("/proc/kcore", "its size says nothing"),
    ] {
        // Not every container has them, nor lets them be read.
        if fs::File::open(path).is_ok() {
            let FilesError::Read { source, .. } = refused(path) else {
                panic!("{path} is read");
            };
            assert!(source.to_string().contains(why), "{path}: {source}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_replaced_is_written_into() {
    let dir = dir();
    let from = dir.path().join("from");
    // It takes a name of 15 bytes, and nothing can be made beside it.
    let comm = format!("/proc/self/task/{}/comm", nix::unistd::gettid());
    fs::write(&from, "copied").expect("written");
    let (stream, _) = packed(&from, "from");
    let wanted = WantedMembers::Named(OsStr::new("from"));
    let done = unpacked(&stream, Path::new(&comm), wanted).expect("written");
    assert_eq!((done.files, done.bytes), (1, 6));
    assert_eq!(fs::read_to_string(&comm).expect("there"), "copied\n");
    // A folder's content does not go there.
    let (stream, _) = packed(dir.path(), "from");
    unpacked(&stream, Path::new(&comm), wanted).expect_err("refused");
}
