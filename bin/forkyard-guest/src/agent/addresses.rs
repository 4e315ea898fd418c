//! Page frames that the memory of a program is in, as the kernel tells in
//! `/proc/PID/pagemap`: that takes rights which programs need not have.

use super::calls::refusal;
use forkyard_agent_link::{Frames, MOST_FRAMES, joined};
use forkyard_types::{ApiError, ErrorKind, PAGE_SIZE};
use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::{fs::FileExt, net::UnixStream},
    path::{Path, PathBuf},
};

/// Folder in which processes are found by their numbers.
pub const PROCESSES: &str = "/proc";

/// Longest memory that is looked through in one call.
const MOST_BYTES: u64 = 1 << 40;
/// Ranges that are held at once; more than any memory worth marking is in.
const MOST_HELD: usize = 1 << 20;

/// Bytes the kernel gives for one page.
const ENTRY: usize = size_of::<u64>();
/// Entries read by one system call.
const BATCH: usize = 1024;
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// The folder of the peer: as the kernel tells, not as it says.
pub fn folder_of_peer(processes: &Path, stream: &UnixStream) -> io::Result<PathBuf> {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    match getsockopt(stream, PeerCredentials)?.pid() {
        // One that cannot be seen from here.
        0 => Err(io::ErrorKind::NotFound.into()),
        pid => Ok(processes.join(pid.to_string())),
    }
}

/// The frames of those pages that these bytes of a process lie in, in whole or
/// in part, and that are in memory now.
pub fn frames(process: &Path, address: u64, bytes: u64) -> Result<Vec<Frames>, ApiError> {
    let page = PAGE_SIZE as u64;
    let end = address.checked_add(bytes).filter(|_| bytes <= MOST_BYTES);
    let Some(end) = end else {
        return Err(refusal(ErrorKind::Invalid, "so much memory has no process"));
    };
    let pages = address / page..end.div_ceil(page);
    let pages = match bytes {
        0 => 0..0,
        _ => pages,
    };
    let failed = |error: io::Error| {
        let why = format!("the kernel does not tell where that memory is: {error}");
        refusal(ErrorKind::Guest, &why)
    };
    let map = File::open(process.join("pagemap")).map_err(failed)?;
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut batch = pages.start;
    while batch < pages.end {
        let mut raw = [0; BATCH * ENTRY];
        let want = usize::try_from(pages.end - batch).map_or(BATCH, |left| left.min(BATCH));
        map.read_exact_at(&mut raw[..want * ENTRY], batch * ENTRY as u64)
            .map_err(failed)?;
        for entry in raw[..want * ENTRY].as_chunks::<ENTRY>().0 {
            let entry = u64::from_ne_bytes(*entry);
            let frame = entry & FRAME;
            if entry & PRESENT == 0 {
                continue;
            }
            if frame == 0 {
                return Err(failed(io::ErrorKind::PermissionDenied.into()));
            }
            match found.last_mut() {
                Some(last) if last.end == frame => last.end += 1,
                Some(_) | None => found.push(frame..frame + 1),
            }
        }
        if found.len() > MOST_HELD {
            found = joined(found);
            if found.len() > MOST_HELD / 2 {
                return Err(scattered());
            }
        }
        batch += want as u64;
    }
    let found = joined(found);
    match found.len() <= MOST_FRAMES {
        true => Ok(found.into_iter().map(as_frames).collect()),
        false => Err(scattered()),
    }
}

fn as_frames(range: Range<u64>) -> Frames {
    Frames {
        first: range.start,
        count: range.end - range.start,
    }
}

fn scattered() -> ApiError {
    let why = format!("that memory lies in more than {MOST_FRAMES} places: mark less of it");
    refusal(ErrorKind::Exhausted, &why)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    /// A process whose pages from `first` on are in these frames; 0: in none.
    pub fn process(pid: u32, first: u64, frames: &[u64]) -> TempDir {
        let processes = tempfile::tempdir().expect("folder");
        let folder = processes.path().join(pid.to_string());
        fs::create_dir(&folder).expect("made");
        let file = File::create(folder.join("pagemap")).expect("made");
        for (n, frame) in (first..).zip(frames) {
            // Other bits are set, too, in what the kernel tells.
            let entry = match frame {
                0 => 1_u64 << 62 | 77,
                frame => PRESENT | 1 << 61 | 1 << 55 | frame,
            };
            file.write_all_at(&entry.to_ne_bytes(), n * 8)
                .expect("written");
        }
        processes
    }

    fn found(frames: &[u64], address: u64, bytes: u64) -> Result<Vec<(u64, u64)>, ErrorKind> {
        let processes = process(5, 16, frames);
        let found = super::frames(&processes.path().join("5"), address, bytes);
        let plain = |found: Vec<Frames>| found.iter().map(|f| (f.first, f.count)).collect();
        found.map(plain).map_err(|error| error.kind)
    }

    #[test]
    fn frames_of_every_page_touched_and_of_no_other_are_found_in_order() {
        let frames = [90, 91, 0, 40, 41, 39, 7];
        assert_eq!(
            found(&frames, 16 << 12, 6 << 12),
            Ok(vec![(39, 3), (90, 2)])
        );
        assert_eq!(found(&frames, (17 << 12) - 1, 2), Ok(vec![(90, 2)]));
        assert_eq!(found(&frames, 17 << 12, 4096), Ok(vec![(91, 1)]));
        assert_eq!(found(&frames, 18 << 12, 4096), Ok(vec![]), "swapped");
        assert_eq!(found(&frames, 16 << 12, 0), Ok(vec![]));
    }

    #[test]
    fn frames_beyond_one_batch_are_found() {
        let frames: Vec<u64> = (1..=2500).collect();
        assert_eq!(found(&frames, 16 << 12, 2500 << 12), Ok(vec![(1, 2500)]));
    }

    #[test]
    fn memory_that_is_too_scattered_too_long_or_none_is_refused() {
        let scattered: Vec<u64> = (1..=MOST_FRAMES as u64 + 1).map(|n| 2 * n).collect();
        let bytes = scattered.len() as u64 * 4096;
        let refused = found(&scattered, 16 << 12, bytes);
        assert_eq!(refused, Err(ErrorKind::Exhausted));
        let fits = found(&scattered, 16 << 12, bytes - 4096);
        assert_eq!(fits.map(|found| found.len()), Ok(MOST_FRAMES));
        assert_eq!(found(&[1], u64::MAX, 2), Err(ErrorKind::Invalid));
        assert_eq!(found(&[1], 0, MOST_BYTES + 1), Err(ErrorKind::Invalid));
        assert_eq!(found(&[1], 17 << 12, 1), Err(ErrorKind::Guest));
    }

    #[test]
    fn frames_that_the_kernel_hides_are_not_taken_for_frame_0() {
        let processes = process(5, 0, &[]);
        let map = processes.path().join("5/pagemap");
        fs::write(map, PRESENT.to_ne_bytes()).expect("written");
        let refused = super::frames(&processes.path().join("5"), 0, 1);
        assert_eq!(refused.expect_err("hidden").kind, ErrorKind::Guest);
    }
}
