//! Standard output and error of a QEMU, kept as far as is worth keeping.
//!
//! ```text
//! QEMU --> qemu.pipe --> reader --> qemu.log.1, qemu.log: 512 KiB each at most
//! ```
//!
//! A guest can provoke complaints without end. QEMU holds both ends of the pipe,
//! so that it neither waits nor fails while no daemon reads: what the pipe holds
//! then is for the next one, and what it does not hold is lost.

use crate::{
    VmmError,
    console::blocking,
    files,
    rotating_log::{self, Names, RotatingLog},
};
use nix::{libc, sys::stat::Mode, unistd::mkfifo};
use std::{
    fs::File,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{io::AsyncReadExt, net::unix::pipe, task::JoinHandle};

/// Bytes read at once.
const PIECE: usize = 8 << 10;
/// Within this what a process said before it ended has been read.
const READ: Duration = Duration::from_secs(5);

const LOG: Names = Names {
    older: files::LOG_OLDER,
    newer: files::LOG,
};

/// Output of a process.
#[derive(Debug)]
pub(crate) struct QemuLog {
    dir: PathBuf,
    /// None if it says it into the log itself, as those of earlier daemons do.
    reader: Option<JoinHandle<()>>,
}

impl QemuLog {
    /// Makes the pipe in a folder, and listens to it: the end for the process to
    /// write to comes first. Blocks for a few calls; within a runtime.
    pub(crate) fn lay(dir: &Path) -> Result<(File, Self), VmmError> {
        let path = dir.join(files::LOG_PIPE);
        let made = || {
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            let mut options = File::options();
            let both = options.read(true).write(true);
            both.custom_flags(libc::O_NONBLOCK).open(&path)
        };
        let theirs = made().map_err(VmmError::io("make a pipe at", &path))?;
        Ok((theirs, Self::listen(dir)))
    }

    /// Listens to a living process whose folder this is. Within a runtime.
    pub(crate) fn listen(dir: &Path) -> Self {
        let opened = pipe::OpenOptions::new().open_receiver(dir.join(files::LOG_PIPE));
        let reader = match opened {
            Ok(pipe) => Some(tokio::spawn(keep(pipe, RotatingLog::new(dir, LOG)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "QEMU's words are not kept");
                None
            }
        };
        let dir = dir.to_owned();
        Self { dir, reader }
    }

    /// The last that a process said which has ended, as text.
    pub(crate) async fn last(self) -> String {
        const ENOUGH: usize = 2048;
        if let Some(reader) = self.reader {
            // It ends with the process, unless something else holds the pipe.
            let _ = tokio::time::timeout(READ, reader).await;
        }
        let kept = blocking(move || rotating_log::kept(&self.dir, LOG)).await;
        let kept = kept.unwrap_or_default();
        let end = &kept[kept.len().saturating_sub(ENOUGH)..];
        String::from_utf8_lossy(end).trim().to_owned()
    }
}

/// Reads until no process can write any more.
async fn keep(mut from: pipe::Receiver, mut log: RotatingLog) {
    let mut buffer = vec![0; PIECE];
    let mut failed = false;
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let piece = buffer[..read].to_vec();
        let kept;
        (log, kept) = blocking(move || {
            let kept = log.append(&piece);
            (log, kept)
        })
        .await;
        if let Err(error) = kept
            && !std::mem::replace(&mut failed, true)
        {
            tracing::warn!(dir = %log.dir().display(), %error, "QEMU's words are not kept");
        }
    }
}

#[cfg(test)]
impl QemuLog {
    /// Hears no more, as a daemon that dies.
    async fn stop(self) {
        if let Some(reader) = self.reader {
            reader.abort();
            // Called off, which is no news.
            let _ = reader.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write};

    fn size(dir: &Path, name: &str) -> u64 {
        fs::metadata(dir.join(name)).map_or(0, |file| file.len())
    }

    #[tokio::test]
    async fn output_without_end_is_kept_to_a_mebibyte_and_its_last_words() {
        let dir = tempfile::tempdir().expect("dir");
        let (held, words) = QemuLog::lay(dir.path()).expect("pipe");
        let path = dir.path().join(files::LOG_PIPE);
        let talk = std::thread::spawn(move || {
            // Waits as it should, unlike QEMU's end: all of it arrives.
            let mut pipe = File::options().write(true).open(path).expect("opened");
            for line in 0..300_000 {
                writeln!(pipe, "warning {line}").expect("taken");
            }
        });
        tokio::task::spawn_blocking(|| talk.join().expect("talked"))
            .await
            .expect("joined");
        drop(held);
        let last = words.last().await;
        assert!(last.ends_with("warning 299998\nwarning 299999"), "{last}");
        assert!(last.len() <= 2048, "only the end is quoted");
        for half in [files::LOG, files::LOG_OLDER] {
            let size = size(dir.path(), half);
            assert!((1..=rotating_log::HALF).contains(&size), "{half}: {size}");
        }
    }

    #[tokio::test]
    async fn without_a_daemon_it_neither_waits_nor_fails_and_the_next_one_hears() {
        let dir = tempfile::tempdir().expect("dir");
        let (mut process, words) = QemuLog::lay(dir.path()).expect("pipe");
        words.stop().await;
        process.write_all(b"said to nobody\n").expect("room");
        let full = loop {
            if let Err(error) = process.write(&[b'.'; 4096]) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let words = QemuLog::listen(dir.path());
        drop(process);
        words.last().await;
        let log = fs::read(dir.path().join(files::LOG)).expect("kept");
        assert!(log.starts_with(b"said to nobody\n."));
    }

    #[tokio::test]
    async fn the_log_of_one_that_writes_it_itself_is_quoted() {
        let dir = tempfile::tempdir().expect("dir");
        fs::write(dir.path().join(files::LOG), "as ever\n").expect("log");
        assert_eq!(QemuLog::listen(dir.path()).last().await, "as ever");
    }
}
