//! View of a QEMU on the host's files: those it needs to run, read-only, and
//! those it was told of, each at the path that it has here.
//!
//! ```text
//! start       programs, libraries, firmware; null, zero, urandom, KVM
//!             the disk's slices down to the base; memory or kernel
//! later       + an overlay, before QEMU is told to open it
//!             - a slice that was folded or is not used after all
//! ```
//!
//! No `/proc`, no user's folder. What is missing here is missing there, for
//! QEMU to complain of.

use crate::{Accel, VmmError, process::ProcessId};
use forkyard_sys_host::jail::{Jail, JailPiece, PROGRAMS, Use, programs};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::{Path, PathBuf},
};

const KVM: &str = "/dev/kvm";

/// Process that goes into a jail, and the parts it needs of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest<'a> {
    /// Path of the program, as it is to be found; and what is loaded into it.
    pub(crate) programs: [Option<&'a Path>; 2],
    /// Accelerator.
    pub(crate) accel: Accel,
    /// Files that it opens by name.
    pub(crate) files: &'a [PathBuf],
}

/// Makes a jail. Blocks for about a millisecond.
pub(crate) fn build(guest: Guest<'_>) -> Result<Jail, VmmError> {
    let (mut pieces, links) = programs().map_err(VmmError::io("show QEMU", "/"))?;
    let own = guest.programs.into_iter().flatten().filter_map(home);
    for path in own.filter(|path| !PROGRAMS.iter().any(|known| path.starts_with(known))) {
        pieces.extend(piece(path, Use::Program)?);
    }
    if guest.accel == Accel::Kvm {
        pieces.extend(piece(Path::new(KVM), Use::Device)?);
    }
    for path in guest.files {
        pieces.extend(piece(path, Use::Data)?);
    }
    Jail::build(pieces, links).map_err(VmmError::io("make a jail of", "/"))
}

/// Puts a file into the jail of a process, if it has one. Blocks for some
/// system calls.
pub(crate) fn add(process: ProcessId, path: &Path) -> Result<(), VmmError> {
    let (Some(jail), Some(piece)) = (of(process)?, piece(path, Use::Data)?) else {
        return Ok(());
    };
    jail.add(piece).map_err(VmmError::io("show QEMU", path))
}

/// Takes files out of the jail of a process, if it has one. Blocks likewise.
pub(crate) fn remove(process: ProcessId, paths: &[PathBuf]) -> Result<(), VmmError> {
    let Some(jail) = of(process)? else {
        return Ok(());
    };
    for path in paths {
        jail.remove(path)
            .map_err(VmmError::io("hide from QEMU", path))?;
    }
    Ok(())
}

/// The jail of a process, unless that was started without one, by a daemon
/// that knew of none. Not to be kept: it would outlast the process, and with it
/// the space of files that have gone.
pub(crate) fn of(process: ProcessId) -> Result<Option<Jail>, VmmError> {
    let found = Jail::of_process(process.pid);
    // In this order: if the process meant is there now, it was before.
    match ProcessId::of(process.pid) {
        Ok(now) if now == process => match found {
            // It has ended, and was not waited for yet: then it is in no jail.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(VmmError::Gone { process })
            }
            found => found.map_err(VmmError::io("find the jail of", process.to_string())),
        },
        Ok(_) | Err(_) => Err(VmmError::Gone { process }),
    }
}

/// A qcow2 file and those below it, as their headers name them; what is no
/// regular file is left out, with what lies below. A file that is not said to be qcow2 is not read:
/// a guest may have written what it begins with, and it may not be there yet. Blocks for reads.
pub(crate) fn chain(top: &Path) -> Result<Vec<PathBuf>, VmmError> {
    let mut chain = Vec::new();
    let mut next = Some(Below {
        path: top.to_owned(),
        is_qcow2: true,
    });
    while let Some(Below { path, is_qcow2 }) = next {
        if chain.contains(&path) || !fs::metadata(&path).is_ok_and(|file| file.is_file()) {
            break;
        }
        next = match is_qcow2 {
            true => backing(&path)
                .map_err(VmmError::io("read", &path))?
                .filter(|below| below.path.is_absolute()),
            false => None,
        };
        chain.push(path);
    }
    Ok(chain)
}

/// Bytes of the largest file that a QEMU has reason to write: a slice of its disk that is
/// written full, with its tables, and what it is told to save. Blocks for a read.
pub(crate) fn largest_file(disk: Option<&Path>) -> Result<u64, VmmError> {
    const SAVED: u64 = 64 << 20;
    let size = |disk: &Path| virtual_size(disk).map_err(VmmError::io("read", disk));
    let size = disk.map(size).transpose()?.unwrap_or(0);
    Ok(size.saturating_add(size / 16).saturating_add(SAVED))
}

/// Bytes of the disk in a qcow2 file, by its header; those of a file that is no qcow2.
fn virtual_size(path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    let mut header = [0; 32];
    match file.read_exact_at(&mut header, 0) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let [.., s0, s1, s2, s3, s4, s5, s6, s7] = header;
    match header.starts_with(&MAGIC) {
        true => Ok(u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7])),
        false => Ok(file.metadata()?.len()),
    }
}

/// First bytes of a qcow2 file.
const MAGIC: [u8; 4] = *b"QFI\xfb";

/// File that a qcow2 file lies over.
#[derive(Debug, PartialEq, Eq)]
struct Below {
    path: PathBuf,
    /// True if the header names qcow2.
    is_qcow2: bool,
}

/// Reads the backing of a qcow2 file from its header; none of a file that is no
/// qcow2.
fn backing(path: &Path) -> io::Result<Option<Below>> {
    /// QEMU believes no longer name.
    const LONGEST: u32 = 1023;
    let file = File::open(path)?;
    let mut header = [0; 20];
    match file.read_exact_at(&mut header, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let [m0, m1, m2, m3, _, _, _, _, offset @ .., s0, s1, s2, s3] = header;
    let (offset, size) = (
        u64::from_be_bytes(offset),
        u32::from_be_bytes([s0, s1, s2, s3]),
    );
    if [m0, m1, m2, m3] != MAGIC || offset == 0 || size > LONGEST {
        return Ok(None);
    }
    let mut name = vec![0; usize::try_from(size).map_err(io::Error::other)?];
    file.read_exact_at(&mut name, offset)?;
    Ok(Some(Below {
        path: OsStr::from_bytes(&name).into(),
        is_qcow2: backing_format(&file, offset)? == b"qcow2",
    }))
}

/// Format of what a qcow2 file lies over, by the extensions of its header, which end before the
/// name; empty if none says it.
fn backing_format(file: &File, end: u64) -> io::Result<Vec<u8>> {
    const FORMAT: u32 = 0xe279_2aca;
    const LONGEST: u64 = 4096;
    let end = end.min(LONGEST);
    let mut at = u64::from(number(file, 100)?);
    while at + 8 <= end {
        let (kind, length) = (number(file, at)?, number(file, at + 4)?);
        let data = at + 8;
        at = data + u64::from(length).next_multiple_of(8);
        if kind == 0 || at > end.next_multiple_of(8) {
            break;
        }
        if kind == FORMAT {
            let mut format = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            file.read_exact_at(&mut format, data)?;
            return Ok(format);
        }
    }
    Ok(Vec::new())
}

fn number(file: &File, at: u64) -> io::Result<u32> {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, at)?;
    Ok(u32::from_be_bytes(bytes))
}

/// Returns the folder that must be there for a program of this path: if it was
/// installed into a folder of its own, all of that.
fn home(program: &Path) -> Option<&Path> {
    let folder = program.is_absolute().then(|| program.parent()).flatten()?;
    match folder.ends_with("bin") {
        true => folder.parent().filter(|prefix| prefix.parent().is_some()),
        false => Some(program),
    }
}

fn piece(path: &Path, r#use: Use) -> Result<Option<JailPiece>, VmmError> {
    JailPiece::if_there(path, r#use).map_err(VmmError::io("show QEMU", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qcow2(path: &Path, backing: &str) {
        qcow2_over(path, backing, "qcow2");
    }

    fn qcow2_over(path: &Path, backing: &str, format: &str) {
        let length = |text: &str| u32::try_from(text.len()).expect("short").to_be_bytes();
        let mut bytes = b"QFI\xfb\0\0\0\x03".to_vec();
        bytes.extend(144_u64.to_be_bytes());
        bytes.extend(length(backing));
        bytes.resize(100, 0);
        bytes.extend(104_u32.to_be_bytes());
        // One that says nothing of it comes first.
        bytes.extend([0x68, 0x03, 0xf8, 0x57, 0, 0, 0, 3, 1, 2, 3, 0, 0, 0, 0, 0]);
        bytes.extend([0xe2, 0x79, 0x2a, 0xca]);
        bytes.extend(length(format));
        bytes.extend(format.as_bytes());
        bytes.resize(144, 0);
        bytes.extend(backing.as_bytes());
        fs::write(path, bytes).expect("written");
    }

    #[test]
    fn a_disk_is_followed_down_to_what_is_no_qcow2_file() {
        let dir = tempfile::tempdir().expect("dir");
        let [top, middle, base] = ["top", "middle", "base"].map(|name| dir.path().join(name));
        qcow2(&top, middle.to_str().expect("text"));
        qcow2_over(&middle, base.to_str().expect("text"), "raw");
        fs::write(&base, "raw").expect("written");
        assert_eq!(chain(&top).expect("read"), [top, middle, base]);
    }

    #[test]
    fn what_a_guest_wrote_to_its_disk_leads_to_no_file_of_the_host() {
        let dir = tempfile::tempdir().expect("dir");
        let [top, disk, secret] = ["top", "disk", "secret"].map(|name| dir.path().join(name));
        fs::write(&secret, "a key").expect("written");
        // As the first bytes of a disk that is served as it is.
        qcow2(&disk, secret.to_str().expect("text"));
        for format in ["raw", ""] {
            qcow2_over(&top, disk.to_str().expect("text"), format);
            let seen = chain(&top).expect("read");
            assert_eq!(seen, [top.clone(), disk.clone()], "{format}");
        }
    }

    #[test]
    fn a_header_that_lies_leads_to_no_device_no_folder_and_not_round_in_circles() {
        let dir = tempfile::tempdir().expect("dir");
        let top = dir.path().join("top");
        for named in ["/dev/null", "/", "relative", "json:{}", "/no/such/file"] {
            qcow2(&top, named);
            assert_eq!(
                chain(&top).expect("read"),
                std::slice::from_ref(&top),
                "{named}"
            );
        }
        qcow2(&top, top.to_str().expect("text"));
        assert_eq!(chain(&top).expect("read"), [top]);
    }

    #[test]
    fn a_file_is_bounded_by_the_disk_and_not_by_what_is_written_of_it() {
        let dir = tempfile::tempdir().expect("dir");
        let disk = dir.path().join("disk");
        qcow2(&disk, "/base");
        let size = 20_u64 << 30;
        File::options()
            .write(true)
            .open(&disk)
            .and_then(|file| file.write_all_at(&size.to_be_bytes(), 24))
            .expect("written");
        let most = largest_file(Some(&disk)).expect("read");
        assert!((size..size * 2).contains(&most), "{most}");
        assert!(largest_file(None).expect("nothing to read") > 0);
    }

    #[test]
    fn who_has_ended_is_gone_also_before_its_parent_asks_how() {
        use std::process::{Command, Stdio};
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("started");
        let process = ProcessId::of(child.id()).expect("it is there");
        assert!(of(process).is_ok_and(|jail| jail.is_none()));
        drop(child.stdin.take());
        let stat = format!("/proc/{}/stat", process.pid);
        while !fs::read_to_string(&stat).expect("a line").contains(") Z ") {
            std::thread::yield_now();
        }
        assert!(matches!(of(process), Err(VmmError::Gone { .. })));
        child.wait().expect("ended");
        assert!(matches!(of(process), Err(VmmError::Gone { .. })));
    }

    #[test]
    fn a_program_of_its_own_folder_brings_that_and_nobody_brings_everything() {
        let home = |path: &'static str| home(Path::new(path));
        assert_eq!(home("/opt/qemu/bin/qemu"), Some(Path::new("/opt/qemu")));
        assert_eq!(home("/srv/qemu"), Some(Path::new("/srv/qemu")));
        assert_eq!(home("/bin/qemu"), None);
        assert_eq!(home("qemu"), None);
    }
}
