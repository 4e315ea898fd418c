//! A guest's serial console: what it writes is kept, as much as is worth
//! keeping, and what is typed is passed on.
//!
//! ```text
//! QEMU <--socket--> reader --> console.log.1, console.log: 512 KiB each at most
//!         ^            `-----> followers
//!         `-- writer <-- typed
//! ```
//!
//! While no client is connected QEMU drops what the guest writes. So a daemon's
//! death costs the words of that while, and no guest, however talkative, waits
//! for the host or fills its disk.

use crate::{
    VmmError, files,
    rotating_log::{self, Names, RotatingLog},
};
use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{broadcast, mpsc},
    task::spawn_blocking,
};

const LOG: Names = Names {
    older: files::CONSOLE_OLDER,
    newer: files::CONSOLE,
};
/// Bytes read at once.
const PIECE: usize = 8 << 10;
/// Pieces a follower may be behind before it misses some.
const BEHIND: usize = 64;
/// Pieces typed and not yet taken.
const TYPED: usize = 16;

/// The console of a machine that runs.
#[derive(Clone, Debug)]
pub struct Console {
    log: Arc<Mutex<Log>>,
    typed: mpsc::Sender<Vec<u8>>,
}

/// Output of a guest so far, and further output as it comes.
#[derive(Debug)]
pub struct ConsoleOutput {
    /// Output that is kept.
    pub so_far: Vec<u8>,
    news: Option<broadcast::Receiver<Arc<[u8]>>>,
}

#[derive(Debug)]
struct Log {
    kept: RotatingLog,
    /// None once nothing follows.
    news: Option<broadcast::Sender<Arc<[u8]>>>,
}

impl Console {
    /// Connects to the console of the machine whose directory this is. One that
    /// cannot be connected to is silent: no VM is worth less for it. Within a
    /// runtime.
    pub fn attach(dir: &Path) -> Self {
        let (news, _) = broadcast::channel(BEHIND);
        let (typed, pieces) = mpsc::channel(TYPED);
        let log = Arc::new(Mutex::new(Log {
            kept: RotatingLog::new(dir, LOG),
            news: Some(news),
        }));
        match connect(&dir.join(files::CONSOLE_SOCKET)) {
            Ok((read, write)) => {
                tokio::spawn(keep(read, log.clone()));
                tokio::spawn(pass_on(pieces, write));
            }
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "no console");
                lock(&log).news = None;
            }
        }
        Self { log, typed }
    }

    /// Returns the output of the guest so far, and a way to receive further
    /// output. Cancel-safe.
    pub async fn follow(&self) -> Result<ConsoleOutput, VmmError> {
        let log = self.log.clone();
        blocking(move || {
            // Held for both: nothing is missed or heard twice.
            let log = lock(&log);
            Ok(ConsoleOutput {
                so_far: kept(log.kept.dir())?,
                news: log.news.as_ref().map(broadcast::Sender::subscribe),
            })
        })
        .await
    }

    /// Types this. Waits while the guest does not read; false if there is
    /// no reader any more. Cancel-safe: all is typed or nothing.
    pub async fn write(&self, bytes: Vec<u8>) -> bool {
        self.typed.send(bytes).await.is_ok()
    }
}

impl ConsoleOutput {
    /// Receives the next output of the guest; none once its machine has ended.
    /// A follower that falls far behind misses the oldest. Cancel-safe.
    pub async fn next(&mut self) -> Option<Arc<[u8]>> {
        let news = self.news.as_mut()?;
        loop {
            match news.recv().await {
                Ok(piece) => return Some(piece),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// Reads the console output that is kept of a machine whose directory this is
/// or was, 1 MiB at most. Blocks for a read of that.
pub fn kept(dir: &Path) -> Result<Vec<u8>, VmmError> {
    rotating_log::kept(dir, LOG)
}

fn connect(socket: &Path) -> io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
    // It listens before QEMU starts: this does not wait.
    let stream = std::os::unix::net::UnixStream::connect(socket)?;
    stream.set_nonblocking(true)?;
    Ok(UnixStream::from_std(stream)?.into_split())
}

/// Reads until QEMU ends. A disk that takes no more costs words, not the guest.
async fn keep(mut from: OwnedReadHalf, log: Arc<Mutex<Log>>) {
    let mut buffer = vec![0; PIECE];
    let mut failed = false;
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let piece: Arc<[u8]> = buffer[..read].into();
        let log = log.clone();
        let kept = spawn_blocking(move || lock(&log).take(piece)).await;
        if let Ok(Err(error)) = kept
            && !std::mem::replace(&mut failed, true)
        {
            tracing::warn!(%error, "a console is not kept");
        }
    }
    lock(&log).news = None;
}

async fn pass_on(mut pieces: mpsc::Receiver<Vec<u8>>, mut to: OwnedWriteHalf) {
    while let Some(piece) = pieces.recv().await {
        if to.write_all(&piece).await.is_err() {
            return;
        }
    }
}

impl Log {
    fn take(&mut self, piece: Arc<[u8]>) -> io::Result<()> {
        let kept = self.kept.append(&piece);
        if let Some(news) = &self.news {
            // There may be no listener.
            let _ = news.send(piece);
        }
        kept
    }
}

/// Does something that blocks where that may be done. If cancelled, it is done
/// all the same.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is being shut down, and with it this future.
            Err(_) => std::future::pending().await,
        },
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rotating_log::HALF;
    use std::{
        fs,
        io::{Read, Write as _},
        os::unix::net::{UnixListener, UnixStream as Peer},
    };

    fn pair() -> (tempfile::TempDir, Console, Peer) {
        let dir = tempfile::tempdir().expect("dir");
        let qemu = UnixListener::bind(dir.path().join(files::CONSOLE_SOCKET)).expect("socket");
        let console = Console::attach(dir.path());
        let (peer, _) = qemu.accept().expect("connected");
        (dir, console, peer)
    }

    #[tokio::test]
    async fn a_guest_that_never_stops_talking_is_kept_to_a_mebibyte_and_its_last_words() {
        let (dir, console, mut guest) = pair();
        let mut heard = console.follow().await.expect("kept");
        let talk = std::thread::spawn(move || {
            for line in 0..300_000 {
                writeln!(guest, "line {line}").expect("never refused");
            }
        });
        while heard.next().await.is_some() {}
        talk.join().expect("talked");
        let kept = kept(dir.path()).expect("kept");
        assert!(kept.len() as u64 <= 2 * HALF && kept.len() as u64 > HALF);
        assert!(kept.ends_with(b"line 299998\nline 299999\n"));
        let files = fs::read_dir(dir.path()).expect("dir").count();
        assert_eq!(files, 3, "two halves and the socket");
    }

    #[tokio::test]
    async fn a_follower_hears_what_was_and_what_comes_and_nothing_twice() {
        let (_dir, console, mut guest) = pair();
        guest.write_all(b"before").expect("taken");
        let mut heard = console.follow().await.expect("kept");
        while heard.so_far.is_empty() {
            heard = console.follow().await.expect("kept");
        }
        guest.write_all(b"after").expect("taken");
        drop(guest);
        let mut all = heard.so_far.clone();
        while let Some(piece) = heard.next().await {
            all.extend_from_slice(&piece);
        }
        assert_eq!(all, b"beforeafter");
    }

    #[tokio::test]
    async fn what_is_typed_arrives_and_a_later_daemon_goes_on_where_the_last_left() {
        let (dir, console, mut guest) = pair();
        assert!(console.write(b"ls\n".to_vec()).await);
        let mut typed = [0; 3];
        let read =
            tokio::task::spawn_blocking(move || guest.read_exact(&mut typed).map(|()| typed));
        assert_eq!(&read.await.expect("ran").expect("read"), b"ls\n");

        fs::write(dir.path().join(files::CONSOLE), "of an earlier daemon ").expect("written");
        fs::remove_file(dir.path().join(files::CONSOLE_SOCKET)).expect("removed");
        let qemu = UnixListener::bind(dir.path().join(files::CONSOLE_SOCKET)).expect("socket");
        let console = Console::attach(dir.path());
        let mut heard = console.follow().await.expect("kept");
        let (mut guest, _) = qemu.accept().expect("connected");
        guest.write_all(b"and of this one").expect("taken");
        drop(guest);
        while heard.next().await.is_some() {}
        let kept = kept(dir.path()).expect("kept");
        assert_eq!(kept, b"of an earlier daemon and of this one");
    }

    #[tokio::test]
    async fn a_machine_without_a_console_is_silent() {
        let dir = tempfile::tempdir().expect("dir");
        let console = Console::attach(dir.path());
        let mut heard = console.follow().await.expect("nothing");
        assert_eq!((heard.so_far.len(), heard.next().await), (0, None));
        assert!(!console.write(vec![1]).await);
    }
}
