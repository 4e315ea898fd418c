//! The certificate that clients are shown, as its files are now.
//!
//! ```text
//! loaded --files changed, or SIGHUP--> loaded anew --fails--> as before; tried again
//! ```
//!
//! Programs that renew certificates replace two files, one after the other: between them key and
//! certificate do not fit, and the former pair goes on.

use forkyard_tls::{Certificate, TlsError};
use std::{
    error::Error,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::sleep,
};
use tokio_rustls::TlsAcceptor;

/// Listener to loads of a certificate.
pub type Loads = fn(bool);

/// Reason why a certificate is not followed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The files are not loaded.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// SIGHUP is not heard.
    #[error("no signals are heard")]
    Signals(#[source] std::io::Error),
}

/// Between two looks at the files.
const EVERY: Duration = Duration::from_secs(5);

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Files {
    /// File of the certificate, its own first.
    pub certificate: PathBuf,
    /// File of the key.
    pub key: PathBuf,
}

/// Marks by which changed files are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp([(u64, u64, i64, i64); 2]);

impl Files {
    fn load(&self) -> Result<TlsAcceptor, LoadError> {
        let certificate = Certificate::load(&self.certificate, &self.key)?;
        Ok(TlsAcceptor::from(certificate.server()?))
    }

    fn stamp(&self) -> Option<Stamp> {
        let of = |path: &Path| {
            let seen = fs::metadata(path).ok()?;
            Some((seen.ino(), seen.size(), seen.mtime(), seen.mtime_nsec()))
        };
        Some(Stamp([of(&self.certificate)?, of(&self.key)?]))
    }
}

/// Loads the certificate, and goes on to do so for as long as what is returned is read. `loads` is called
/// after each load: with true if it succeeded.
pub fn follow(files: Files, loads: Loads) -> Result<watch::Receiver<TlsAcceptor>, LoadError> {
    let stamp = files.stamp();
    let (now, receiver) = watch::channel(files.load()?);
    loads(true);
    let hangup = signal(SignalKind::hangup()).map_err(LoadError::Signals)?;
    tokio::spawn(reload(files, stamp, now, hangup, loads));
    Ok(receiver)
}

async fn reload(
    files: Files,
    mut loaded: Option<Stamp>,
    now: watch::Sender<TlsAcceptor>,
    mut hangup: tokio::signal::unix::Signal,
    loads: Loads,
) {
    // What failed last is told once.
    let mut failed = None;
    while !now.is_closed() {
        let told = tokio::select! {
            _ = hangup.recv() => true,
            () = sleep(EVERY) => false,
        };
        let stamp = files.stamp();
        if stamp.is_none() || (stamp == loaded && !told) {
            continue;
        }
        match files.load() {
            Ok(acceptor) => {
                (loaded, failed) = (stamp, None);
                now.send_replace(acceptor);
                loads(true);
                tracing::info!(certificate = %files.certificate.display(), "certificate loaded anew");
            }
            Err(error) if told || failed != stamp => {
                failed = stamp;
                loads(false);
                tracing::warn!(
                    error = &error as &dyn Error,
                    "the certificate is not loaded: the former one goes on"
                );
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, raise};
    use tokio::time::timeout;

    #[tokio::test]
    async fn files_that_changed_are_loaded_once_they_fit_each_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = |name: &str| folder.path().join(name);
        for name in ["first", "second"] {
            Certificate::kept_in(&of(name), &["localhost".to_owned()]).expect("made");
        }
        let files = Files {
            certificate: of("cert.pem"),
            key: of("key.pem"),
        };
        let renew = |from: &str, name: &str| {
            fs::copy(of(from).join(name), of(name)).expect("copied");
        };
        renew("first", "cert.pem");
        renew("first", "key.pem");
        let mut now = follow(files, |_| ()).expect("loaded");
        now.borrow_and_update();
        renew("second", "cert.pem");
        raise(Signal::SIGHUP).expect("told");
        let early = timeout(Duration::from_millis(500), now.changed()).await;
        assert!(early.is_err(), "the key is still the first one's");
        renew("second", "key.pem");
        raise(Signal::SIGHUP).expect("told");
        let late = timeout(EVERY * 6, now.changed()).await;
        late.expect("in time").expect("followed");
        // Without a word, too.
        renew("first", "key.pem");
        renew("first", "cert.pem");
        let late = timeout(EVERY * 6, now.changed()).await;
        late.expect("in time").expect("followed");
    }
}
