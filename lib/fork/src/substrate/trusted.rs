//! Keys of other hosts whose substrates are trusted here, kept in a file of the state folder.

use super::SubstrateError;
use crate::{Host, HostError};
use forkyard_substrate::sign::PublicKey;
use forkyard_types::TrustedKeys;
use forkyard_vm::lock;
use std::{
    fs,
    io::{self, Write},
    sync::Mutex,
};

/// File of the keys, one a line.
const TRUSTED: &str = "substrate.trusted";
/// Held while the file is read, changed and written anew.
static CHANGE: Mutex<()> = Mutex::new(());
/// Most keys.
const MOST: usize = 1024;

impl Host {
    /// The keys that are trusted beside this host's own.
    pub fn trusted_keys(&self) -> Result<TrustedKeys, HostError> {
        let keys = self.read_trusted()?;
        Ok(TrustedKeys {
            keys: keys.iter().map(PublicKey::to_string).collect(),
        })
    }

    /// Trusts a key from now on.
    pub fn trust_key(&self, key: &str) -> Result<TrustedKeys, HostError> {
        let key = parse(key)?;
        let _one = lock(&CHANGE);
        let mut keys = self.read_trusted()?;
        if !keys.contains(&key) {
            keys.push(key);
        }
        if keys.len() > MOST {
            let why = format!("{MOST} keys are trusted: forget one first");
            return Err(HostError::Conflict(why));
        }
        self.write_trusted(&keys)?;
        self.trusted_keys()
    }

    /// Trusts a key no longer. Substrates that were pulled stay.
    pub fn forget_key(&self, key: &str) -> Result<TrustedKeys, HostError> {
        let key = parse(key)?;
        let _one = lock(&CHANGE);
        let mut keys = self.read_trusted()?;
        let before = keys.len();
        keys.retain(|it| *it != key);
        if keys.len() == before {
            let key = key.to_string();
            return Err(SubstrateError::UnknownKey { key }.into());
        }
        self.write_trusted(&keys)?;
        self.trusted_keys()
    }

    /// Tells whether what a key has signed is taken.
    pub(super) fn trusts(&self, key: PublicKey) -> Result<bool, HostError> {
        let own = self.signer()?.public().map_err(SubstrateError::from)?;
        Ok(key == own || self.read_trusted()?.contains(&key))
    }

    fn read_trusted(&self) -> Result<Vec<PublicKey>, HostError> {
        let path = self.parts.folders.state.join(TRUSTED);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(HostError::io("read", &path)(error)),
        };
        let keys: Result<_, _> = text.lines().map(|line| line.trim().parse()).collect();
        keys.map_err(|error| {
            HostError::Broken(format!(
                "{} has a line that is no key ({error}): remove that line",
                path.display()
            ))
        })
    }

    fn write_trusted(&self, keys: &[PublicKey]) -> Result<(), HostError> {
        let path = self.parts.folders.state.join(TRUSTED);
        let failed = || HostError::io("write", &path);
        if keys.is_empty() {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed()(error)),
                Ok(()) | Err(_) => Ok(()),
            };
        }
        let mut passing =
            tempfile::NamedTempFile::new_in(&self.parts.folders.state).map_err(failed())?;
        for key in keys {
            writeln!(passing, "{key}").map_err(failed())?;
        }
        passing.as_file().sync_all().map_err(failed())?;
        match passing.persist(&path) {
            // A key that was taken back is not to be there again after a power cut.
            Ok(_) => fs::File::open(&self.parts.folders.state)
                .and_then(|folder| folder.sync_all())
                .map_err(failed()),
            Err(error) => Err(failed()(error.error)),
        }
    }
}

fn parse(text: &str) -> Result<PublicKey, HostError> {
    text.trim()
        .parse()
        .map_err(|error| HostError::Invalid(format!("key: {error}")))
}
