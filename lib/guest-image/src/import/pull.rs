//! A container image, fetched from its registry into an archive.
//!
//! skopeo speaks to the registry: it knows their protocols, mirrors, proxies and what the host's
//! `/etc/containers` says of them, and checks each part against its digest. It runs as a user without rights, has a
//! folder of its own and the network, and unpacks nothing. What it has written is taken in like an
//! archive that a client has sent.
//!
//! | fails | then |
//! |---|---|
//! | the registry does not answer, or has no such image | skopeo's own words are the error |
//! | the import is given up, the daemon dies | skopeo is killed; the folder goes with the import's |

use super::{Cancel, ImportError, digest::Digest, unpack::unpacked_at_most};
use crate::{
    cache::Workplace,
    error::{BuildError, io_error},
    progress::{BuildEvent, Progress},
    run::{Call, SKOPEO},
};
use forkyard_confine::{Confinement, FetchReach, Lifespan, Network, Who};
use forkyard_types::{ByteCount, ImageReference};
use nix::{fcntl::OFlag, libc};
use std::{
    fs::{self, DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown},
    path::Path,
};

/// Times that it asks again, after failures that may pass.
const RETRIES: &str = "2";

/// Writes the image to `incoming`, an archive of one image for this machine; the digest of what
/// the registry has under the reference.
pub(super) fn fetch(
    (reference, reach): (&ImageReference, FetchReach),
    work: &Workplace,
    incoming: &Path,
    (size, cancel): (Option<ByteCount>, &Cancel),
    progress: Progress<'_>,
) -> Result<Digest, ImportError> {
    let folder = work.dir().join("fetched");
    DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .and_then(|()| chown(&folder, Some(reach.user()), Some(reach.user())))
        .map_err(io_error("make", &folder))?;
    let call = |words: &[&str]| -> Result<Call<'_>, ImportError> {
        let call = SKOPEO
            .call()
            .args(["--override-os", "linux", "--override-arch", "amd64"])
            .arg("--tmpdir")
            .arg(&folder)
            .args(words)
            .confined(Confinement {
                who: Who::Fetcher(reach),
                reads: &[],
                writes: &[&folder],
                largest: unpacked_at_most(size).0,
                network: Network::Host,
                ends: Lifespan::WithStarter,
            })?
            // Settings of its own, which there are none of.
            .env("HOME", &folder)
            .holding(work.lock())
            .until(cancel);
        Ok(call)
    };
    let failed = |error| {
        if let BuildError::Program { tail: said, .. } = error {
            let reference = reference.to_string();
            return ImportError::Registry { reference, said };
        }
        error.into()
    };
    progress(BuildEvent::Step("asking the registry"));
    // Without TLS it is asked by name or address of this host alone.
    let verify = match reference.is_of_this_host() {
        true => "false",
        false => "true",
    };
    let words = ["inspect", "--raw", "--no-creds", "--retry-times", RETRIES];
    let manifest = call(&words)?
        .arg(format!("--tls-verify={verify}"))
        .arg(format!("docker://{reference}"))
        .run(progress)
        .map_err(failed)?;
    let digest =
        Digest::of(manifest.as_slice()).map_err(|source| ImportError::Incoming { source })?;
    // A tag may mean another image by now.
    let pinned = reference.pinned(&digest.to_string());
    let pinned = pinned.unwrap_or_else(|| reference.clone());
    progress(BuildEvent::Step("fetching the image"));
    let archive = folder.join("archive");
    let words = [
        "copy",
        "--quiet",
        "--src-no-creds",
        "--retry-times",
        RETRIES,
    ];
    call(&words)?
        .arg("--dest-oci-accept-uncompressed-layers")
        .arg(format!("--src-tls-verify={verify}"))
        .arg(format!("docker://{pinned}"))
        .arg(format!("oci-archive:{}", archive.display()))
        .run(progress)
        .map_err(failed)?;
    take(&archive, incoming)?;
    fs::remove_dir_all(&folder).map_err(io_error("remove", &folder))?;
    Ok(digest)
}

/// Makes a file that a program was to write root's own, if it is a file.
pub(super) fn take(archive: &Path, incoming: &Path) -> Result<(), ImportError> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(archive)
        .map_err(io_error("read", archive))?;
    let facts = file.metadata().map_err(io_error("read", archive))?;
    if !facts.is_file() {
        let odd = io::Error::from_raw_os_error(libc::EINVAL);
        return Err(io_error("read", archive)(odd).into());
    }
    drop(file);
    // Every process that could have exchanged it has ended.
    fs::rename(archive, incoming)
        .and_then(|()| chown(incoming, Some(0), Some(0)))
        .map_err(io_error("move", archive))?;
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
