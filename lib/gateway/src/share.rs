//! Tokens for one port of one VM, that expire: signed by the gateway's key, kept nowhere.
//!
//! ```text
//! VM.PORT.EXPIRES.TAG    TAG: BLAKE3, keyed, of what precedes it; base64url
//! ```
//!
//! A VM is named by its id: one made later under the same name is not reached by old tokens.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use forkyard_types::{GuestPort, VmId};
use std::{
    fmt, fs,
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Keys of another use give other tags.
const CONTEXT: &[u8] = b"forkyard share 1\n";
/// Bytes of a key.
const KEY: usize = 32;

/// Key that signs tokens. Gateways that have the same one take each other's.
#[derive(Clone)]
pub struct ShareKey([u8; KEY]);

impl fmt::Debug for ShareKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// A key cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or made.
    #[error("cannot read or make the key {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Others may read it.
    #[error("others than its owner may read the key {}: chmod 600, and make a new one if it may be known", .0.display())]
    Open(PathBuf),
    /// The file is not of the length of a key.
    #[error("{} is no key: it has not {KEY} bytes; remove it, and a new one is made", .0.display())]
    Length(PathBuf),
}

impl ShareKey {
    /// Reads the key in a file, which is made if it does not exist.
    pub fn made_in(path: &Path) -> Result<Self, KeyError> {
        match Self::make(path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => Err(KeyError::File {
                path: path.to_owned(),
                source,
            }),
            Ok(()) | Err(_) => Self::kept_in(path),
        }
    }

    /// Reads the key in a file.
    pub fn kept_in(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::File {
            path: path.to_owned(),
            source,
        };
        let file = fs::File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.mode() & 0o077 != 0 {
            return Err(KeyError::Open(path.to_owned()));
        }
        let mut bytes = Vec::new();
        let most = KEY as u64 + 1;
        let read = file.take(most).read_to_end(&mut bytes);
        read.map_err(failed)?;
        let key = bytes.try_into();
        key.map(Self).map_err(|_| KeyError::Length(path.to_owned()))
    }

    /// The file appears whole: another gateway may be looking for it.
    fn make(path: &Path) -> io::Result<()> {
        if path.exists() {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut bytes = [0; KEY];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let new = path.with_extension(format!("new-{}", std::process::id()));
        let written = || {
            let mut options = fs::OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&new)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::hard_link(&new, path)
        };
        let written = written();
        fs::remove_file(&new)?;
        written
    }
}

/// Permission of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPermission {
    /// The VM.
    pub vm: VmId,
    /// Port of the guest.
    pub port: GuestPort,
    /// Second, since 1970, from which on it does not hold.
    pub expires: u64,
}

/// A token does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The token is not one of this gateway's. Those of `share` are forgotten when they expire.
    #[error("the token has expired, was taken back, or is not of this gateway")]
    Unknown,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
}

impl PortPermission {
    /// The token that allows this.
    pub fn token(&self, key: &ShareKey) -> String {
        let said = format!("{}.{}.{}", self.vm, self.port, self.expires);
        let tag = tag(key, &said);
        format!("{said}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag.as_bytes()))
    }

    /// Reads a token of this key's that holds at `now`, in seconds since 1970.
    pub fn read(token: &str, key: &ShareKey, now: u64) -> Result<Self, ShareError> {
        let (said, shown) = token.rsplit_once('.').ok_or(ShareError::Unknown)?;
        let shown = BASE64_URL_SAFE_NO_PAD
            .decode(shown)
            .ok()
            .and_then(|bytes| <[u8; blake3::OUT_LEN]>::try_from(bytes).ok())
            .ok_or(ShareError::Unknown)?;
        // Compared in constant time.
        if tag(key, said) != blake3::Hash::from_bytes(shown) {
            return Err(ShareError::Unknown);
        }
        let share = Self::parse(said).ok_or(ShareError::Unknown)?;
        match now < share.expires {
            true => Ok(share),
            false => Err(ShareError::Expired),
        }
    }

    fn parse(said: &str) -> Option<Self> {
        let mut parts = said.split('.');
        let share = Self {
            vm: parts.next()?.parse().ok()?,
            port: parts.next()?.parse().ok()?,
            expires: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(share)
    }
}

fn tag(key: &ShareKey, said: &str) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    hasher.update(CONTEXT).update(said.as_bytes());
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn share(expires: u64) -> PortPermission {
        PortPermission {
            vm: VmId::random(),
            port: "8080".parse().expect("a port"),
            expires,
        }
    }

    #[test]
    fn a_token_holds_for_what_it_says_until_it_expires_and_for_no_other_key() {
        let (key, other) = (ShareKey([1; KEY]), ShareKey([2; KEY]));
        let share = share(100);
        let token = share.token(&key);
        assert_eq!(PortPermission::read(&token, &key, 99), Ok(share.clone()));
        assert_eq!(
            PortPermission::read(&token, &key, 100),
            Err(ShareError::Expired)
        );
        assert_eq!(
            PortPermission::read(&token, &other, 99),
            Err(ShareError::Unknown)
        );
        let later = token.replacen(".100.", ".999.", 1);
        assert_eq!(
            PortPermission::read(&later, &key, 99),
            Err(ShareError::Unknown)
        );
    }

    proptest! {
        #[test]
        fn a_token_of_which_anything_is_changed_does_not_hold(at in 0..100usize, by in 1..=255u8) {
            let key = ShareKey([1; KEY]);
            let mut token = share(100).token(&key).into_bytes();
            let at = at % token.len();
            token[at] = token[at].wrapping_add(by);
            let read = String::from_utf8(token).ok().map(|it| PortPermission::read(&it, &key, 1));
            prop_assert!(read.is_none_or(|it| it.is_err()));
        }
    }

    #[test]
    fn a_key_is_made_once_and_refused_if_others_may_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        assert!(matches!(
            ShareKey::kept_in(&path),
            Err(KeyError::File { .. })
        ));
        let made = ShareKey::made_in(&path).expect("made");
        assert_eq!(made.0, ShareKey::made_in(&path).expect("read").0);
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1);
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o640);
        fs::set_permissions(&path, open).expect("set");
        assert!(matches!(ShareKey::kept_in(&path), Err(KeyError::Open(_))));
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "short").expect("written");
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&path, own).expect("set");
        assert!(matches!(ShareKey::kept_in(&path), Err(KeyError::Length(_))));
    }
}
