//! Tokens of sandboxes, and the secret that they are made of.

use forkyard_types::VmId;
use std::{
    fmt, fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Secret that tokens of sandboxes are made of; kept, so that they hold for the next daemon.
pub struct SandboxKey([u8; 32]);

impl fmt::Debug for SandboxKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl SandboxKey {
    /// The key that is kept in this folder; made if there is none.
    pub fn kept_in(state: &Path) -> io::Result<Self> {
        let path = state.join("e2b.key");
        let read = |path: &Path| -> io::Result<Option<[u8; 32]>> {
            match fs::read(path) {
                Ok(bytes) => Ok(bytes.try_into().ok()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        if let Some(key) = read(&path)? {
            return Ok(Self(key));
        }
        // Absent, or cut off as the last daemon died.
        let drawn: String = (0..4).map(|_| VmId::random().to_string()).collect();
        let key = *blake3::hash(drawn.as_bytes()).as_bytes();
        let new = path.with_extension("new");
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = file.open(&new)?;
        file.write_all(&key)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        Ok(Self(key))
    }

    /// The token for a use of a sandbox.
    pub fn token(&self, purpose: &str, vm: VmId) -> String {
        let text = format!("{purpose}:{vm}");
        blake3::keyed_hash(&self.0, text.as_bytes()).to_string()
    }
}

/// True if a token is the one that is wanted; takes the same time wherever it is wrong.
pub fn is_token(shown: &str, wanted: &str) -> bool {
    blake3::hash(shown.as_bytes()) == blake3::hash(wanted.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_kept_and_tokens_are_of_one_sandbox_and_one_purpose() {
        let folder = tempfile::tempdir().expect("folder");
        let key = SandboxKey::kept_in(folder.path()).expect("made");
        let (a, b) = (VmId::random(), VmId::random());
        let again = SandboxKey::kept_in(folder.path()).expect("kept");
        assert_eq!(key.token("envd", a), again.token("envd", a));
        assert_ne!(key.token("envd", a), key.token("envd", b));
        assert_ne!(key.token("envd", a), key.token("traffic", a));
        assert!(is_token(&key.token("envd", a), &again.token("envd", a)));
        assert!(!is_token("", &key.token("envd", a)));
        fs::write(folder.path().join("e2b.key"), b"cut").expect("written");
        let new = SandboxKey::kept_in(folder.path()).expect("made anew");
        assert_ne!(key.token("envd", a), new.token("envd", a));
    }
}
