//! `cp`: files and folders between here and a guest, as a tar stream that the
//! guest's agent reads or writes.
//!
//! A new folder takes its name once it is whole, and so does each file; copying that
//! fails leaves nothing half done. A guest is not believed: what it sends is what was
//! asked for, below the destination, and files, folders and links alone.

mod stream;

use crate::{
    args::{Copy, Format},
    output,
};
use anyhow::{Context, bail};
use forkyard_api_client::{Client, UploadError, of_files};
use forkyard_files::{FilesError, Modes, Noted, Target, Wanted, Writer, pack, unpack};
use forkyard_types::FilesWritten;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
};
use stream::{Incoming, Leaving, Outgoing};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    task::{JoinHandle, spawn_blocking},
};

/// Bytes of a tar stream in one piece.
const PIECE: usize = 256 << 10;
/// Pieces on their way.
const UNDER_WAY: usize = 4;
/// Umask, where it cannot be told.
const UMASK: u32 = 0o022;

/// One end of a copy.
#[derive(Clone, Debug)]
pub enum End {
    /// A path here.
    Here(PathBuf),
    /// A path in a guest.
    There {
        /// VM: name or id.
        vm: String,
        /// Absolute, or from the folder that commands start in.
        path: String,
    },
}

impl FromStr for End {
    type Err = String;

    /// `VM:PATH`, or a path; one that has a colon begins with `./` or `/`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((vm, _)) if vm.contains('/') => Ok(Self::Here(text.into())),
            Some(("", _) | (_, "")) => Err("wanted VM:PATH, or a path".to_owned()),
            Some((vm, path)) => Ok(Self::There {
                vm: vm.to_owned(),
                path: path.to_owned(),
            }),
            None => Ok(Self::Here(text.into())),
        }
    }
}

/// Copies, and tells how much.
pub async fn copy(client: &Client, format: Format, wanted: Copy) -> anyhow::Result<ExitCode> {
    let bar = ProgressBar::no_length().with_style(ProgressStyle::with_template(
        "{spinner} {bytes} at {bytes_per_sec}",
    )?);
    // Nothing is drawn where standard error is no terminal.
    bar.set_draw_target(ProgressDrawTarget::stderr());
    let copied = match (wanted.from, wanted.to) {
        (End::There { vm, path }, End::Here(to)) => fetch(client, &vm, &path, to, &bar).await,
        (End::Here(from), End::There { vm, path }) => send(client, from, &vm, &path, &bar).await,
        (End::Here(_), End::Here(_)) | (End::There { .. }, End::There { .. }) => {
            bail!("one of the two must be in a VM, as VM:PATH, and the other here")
        }
    };
    bar.finish_and_clear();
    let copied = copied?;
    match format {
        Format::Json => output::json(&copied)?,
        Format::Text => {
            for note in &copied.notes {
                tell!("forkyard: {}", output::line(note));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies what is here into a VM, and does not report how much.
pub async fn send_quietly(
    client: &Client,
    from: PathBuf,
    vm: &str,
    path: &str,
) -> anyhow::Result<()> {
    let sent = send(client, from, vm, path, &ProgressBar::hidden()).await;
    sent.map(drop)
}

/// Copies from a VM.
async fn fetch(
    client: &Client,
    vm: &str,
    path: &str,
    to: PathBuf,
    bar: &ProgressBar,
) -> anyhow::Result<FilesWritten> {
    let from = of_files(vm, "archive", &[("path", path)]);
    let mut coming = client.disk(&from).await?;
    let (pieces, arriving) = mpsc::channel(UNDER_WAY);
    let name = name_of(Path::new(path)).map(OsStr::to_owned);
    let unpacking = spawn_blocking(move || {
        let wanted = name.as_deref().map_or(Wanted::Contents, Wanted::Named);
        let mut notes = Vec::new();
        let target = Target { path: &to, wanted };
        let modes = Modes::masked(umask());
        // Bounded by the reader.
        let mut note = |text| notes.push(text);
        let unpacked = unpack(Incoming::new(arriving), target, modes, &mut note)?;
        Ok(FilesWritten {
            files: unpacked.files,
            bytes: unpacked.bytes,
            notes,
        })
    });
    let mut ended = Ended::watched()?;
    let broken = loop {
        let next = tokio::select! {
            next = coming.next() => next,
            () = ended.told() => {
                // What is not whole goes.
                drop(pieces);
                let _ = unpacking.await?;
                bail!("interrupted: what was not whole has been removed");
            }
        };
        match next {
            Ok(Some(piece)) => {
                bar.inc(piece.len() as u64);
                // Gone if it failed, which it says itself.
                if pieces.send(piece.to_vec()).await.is_err() {
                    break None;
                }
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    drop(pieces);
    match (unpacking.await?, broken) {
        (Ok(copied), _) => Ok(copied),
        (Err(FilesError::Sender(why)), _) => bail!("{vm} gave up: {}", output::line(&why)),
        (Err(FilesError::Short), Some(error)) => Err(error).context("the copy broke off"),
        (Err(error @ FilesError::Unasked { .. }), _) => {
            Err(error).with_context(|| format!("what {vm} sent is refused"))
        }
        (Err(error), _) => Err(error).with_context(|| format!("cannot copy {path} of {vm}")),
    }
}

/// Signals that end a copy.
struct Ended([Signal; 3]);

impl Ended {
    fn watched() -> anyhow::Result<Self> {
        let of = |kind| signal(kind).context("cannot handle signals");
        let (interrupt, terminate) = (of(SignalKind::interrupt())?, of(SignalKind::terminate())?);
        Ok(Self([interrupt, terminate, of(SignalKind::hangup())?]))
    }

    /// Waits for one of them. Cancel-safe.
    async fn told(&mut self) {
        let [interrupt, terminate, hang_up] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    }
}

/// A folder's content as a tar stream, and what packs it: notes of what was left out.
pub fn packed(from: PathBuf) -> (Leaving, JoinHandle<Result<Vec<String>, FilesError>>) {
    let (pieces, leaving) = mpsc::channel(UNDER_WAY);
    let packing = spawn_blocking(move || {
        let mut notes = Vec::new();
        let mut note = |text| notes.push(text);
        let mut writer = Writer::new(Outgoing::new(pieces, PIECE));
        pack(&from, b".", &mut writer, Noted::Apart(&mut note))?;
        writer.finish()?;
        Ok(notes)
    });
    (Leaving::new(leaving), packing)
}

/// Copies into a VM.
async fn send(
    client: &Client,
    from: PathBuf,
    vm: &str,
    path: &str,
    bar: &ProgressBar,
) -> anyhow::Result<FilesWritten> {
    fs::symlink_metadata(&from).with_context(|| format!("cannot read {}", from.display()))?;
    let to = of_files(vm, "archive", &[("path", path)]);
    let (pieces, leaving) = mpsc::channel(UNDER_WAY);
    let packing = spawn_blocking(move || {
        let top = name_of(&from).map_or(&b"."[..], |name| name.as_bytes());
        let mut notes = Vec::new();
        let mut note = |text| notes.push(text);
        let mut writer = Writer::new(Outgoing::new(pieces, PIECE));
        pack(&from, top, &mut writer, Noted::Apart(&mut note))?;
        writer.finish()?;
        Ok::<_, FilesError>(notes)
    });
    let sent = client
        .upload::<FilesWritten>(&to, None, Leaving::new(leaving), |bytes| bar.inc(bytes))
        .await;
    match (packing.await?, sent) {
        (Ok(mut notes), Ok(written)) => {
            notes.extend(written.notes);
            Ok(FilesWritten { notes, ..written })
        }
        // The guest took no more, and says why.
        (Ok(_) | Err(FilesError::Stream(_)), Err(UploadError::Client(error))) => Err(error.into()),
        (Err(error), _) => Err(error.into()),
        (Ok(_), Err(error)) => Err(error.into()),
    }
}

/// Name that a copy has unless it is given another; none for a folder's content alone.
fn name_of(path: &Path) -> Option<&OsStr> {
    let bytes = path.as_os_str().as_bytes();
    path.file_name().filter(|_| !bytes.ends_with(b"/."))
}

/// Permission bits that new files of this process lack.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .unwrap_or(UMASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_ends_in_a_dot_or_is_the_root_means_what_is_in_it() {
        for (path, name) in [
            ("a/b", Some("b")),
            ("a/b/", Some("b")),
            ("a/.", None),
            (".", None),
            ("..", None),
            ("/", None),
            ("a/..", None),
        ] {
            assert_eq!(name_of(Path::new(path)), name.map(OsStr::new), "{path}");
        }
    }
}
