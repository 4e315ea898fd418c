//! Disks of the host that have no room left.

use forkyard_disk::DiskError;
use std::{error::Error, io, iter::successors};

/// Advice to the user.
pub const FULL: &str = "the disk is full: `forkyard image rm` or `forkyard rm` makes room";

/// Tells whether an error came about because a disk of the host is full.
pub fn is_full(error: &(dyn Error + 'static)) -> bool {
    let mut causes = successors(Some(error), |cause| (*cause).source());
    causes.any(|cause| {
        let told = cause.downcast_ref::<io::Error>();
        let kind = told.map(io::Error::kind);
        let of_disk = cause.downcast_ref::<DiskError>();
        kind == Some(io::ErrorKind::StorageFull) || of_disk.is_some_and(DiskError::is_full)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PartsError;
    use std::{os::unix::process::ExitStatusExt, path::Path, process::ExitStatus};

    #[test]
    fn a_full_disk_is_seen_below_other_errors_and_in_what_programs_say() {
        let failed = |said: &str| {
            PartsError::Disk(DiskError::QemuImg {
                path: "/x".into(),
                status: ExitStatus::from_raw(256),
                said: said.into(),
            })
        };
        assert!(is_full(&failed("qemu-img: /x: No space left on device")));
        assert!(!is_full(&failed("qemu-img: /x: no such file")));
        let of = |kind: io::ErrorKind| PartsError::io("write", Path::new("/x"))(kind.into());
        assert!(is_full(&of(io::ErrorKind::StorageFull)));
        assert!(!is_full(&of(io::ErrorKind::NotFound)));
    }
}
