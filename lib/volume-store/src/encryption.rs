//! Keys of volumes whose blocks are encrypted.
//!
//! ```text
//! key file --HMAC-SHA256, salt of the volume--> key of its blocks (AES-256-GCM-SIV)
//!                                          `--> check: tells a wrong key from damage
//! FOLDER/NAME/encryption    salt, check, and where the key file is
//! KEYS/NAME-SALT.key        made with the volume, and destroyed with it
//! ```
//!
//! A key file of the operator's may be anywhere, may serve several volumes, and is never removed.
//! A key stays on its host: what goes to another host is encrypted there with a key made there.
//!
//! | fails | then |
//! |---|---|
//! | the key file is missing, others may read it, or it is another's | the volume is not opened, and nothing in it is changed |
//! | the process, as the volume is made or removed | the key goes with the rest of the volume when the next server starts |

use crate::{StoreError, files::Folder};
use forkyard_volume::{Cipher, KEY_BYTES};
use nix::fcntl::OFlag;
use ring::hmac;
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    fs::{self, DirBuilder, OpenOptions},
    io::{ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// File of a volume that says how it is encrypted.
const FILE: &str = "encryption";
/// Cipher of blocks.
const CIPHER: &str = "aes-256-gcm-siv";
/// Most bytes of a key file that are read.
const MOST_TEXT: u64 = 1024;
/// Names of derived values.
const BLOCKS: &[u8] = b"forkyard volume blocks";
const CHECK: &[u8] = b"forkyard volume check";

/// Protection of a volume's contents on its host's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AtRest {
    /// None.
    Plain,
    /// Blocks are encrypted.
    Encrypted {
        /// Key file of the operator's; one of the volume's own, which is made, if absent.
        key: Option<PathBuf>,
    },
}

/// Folder where keys are made.
#[derive(Clone, Debug)]
pub(crate) struct Keys(pub PathBuf);

/// Encryption of a volume, as its folder says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Encryption {
    cipher: String,
    salt: String,
    check: String,
    /// Key file: a name in the folder of keys, or the path of one of the operator's.
    key: PathBuf,
}

/// Content of a key file. Overwritten when it is dropped.
struct Secret(Zeroizing<[u8; KEY_BYTES]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    fn random() -> Result<Self, StoreError> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        random(bytes.as_mut_slice())?;
        Ok(Self(bytes))
    }

    /// Reads a key file of 64 hexadecimal digits that its owner alone may read.
    fn read(path: &Path) -> Result<Self, StoreError> {
        let failed = |why| StoreError::KeyFile {
            path: path.to_owned(),
            why,
        };
        let mut options = OpenOptions::new();
        // A FIFO would be waited for.
        options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let file = match options.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(failed("is missing")),
            Err(error) => return Err(StoreError::io("read", path, error)),
        };
        let about = file
            .metadata()
            .map_err(|e| StoreError::io("read", path, e))?;
        if !about.is_file() {
            return Err(failed("is no regular file"));
        }
        if about.permissions().mode() & 0o077 != 0 {
            return Err(failed("can be read by other users"));
        }
        let mut text = Zeroizing::new(Vec::new());
        file.take(MOST_TEXT)
            .read_to_end(&mut text)
            .map_err(|e| StoreError::io("read", path, e))?;
        let wrong = || failed("does not hold a key, 64 hexadecimal digits");
        let digits = text.trim_ascii();
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        if digits.len() != 2 * KEY_BYTES {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = pair_of_digits(pair).ok_or_else(wrong)?;
        }
        Ok(Self(bytes))
    }

    /// Writes a new file, durably, that its owner alone may read.
    fn write(&self, keys: &Keys, path: &Path) -> Result<(), StoreError> {
        let make = || {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700).create(&keys.0)?;
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path)?;
            let mut line = Zeroizing::new(hex(self.0.as_slice()));
            line.push('\n');
            file.write_all(line.as_bytes())?;
            file.sync_all()
        };
        make().map_err(|e| StoreError::io("make", path, e))?;
        crate::files::sync(&keys.0)?;
        // The folder itself may be new.
        keys.0.parent().map_or(Ok(()), crate::files::sync)
    }

    fn derive(&self, what: &[u8], salt: &str) -> hmac::Tag {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.0.as_slice());
        let mut context = hmac::Context::with_key(&key);
        context.update(what);
        context.update(salt.as_bytes());
        context.sign()
    }

    fn cipher(&self, salt: &str) -> Cipher {
        let derived = self.derive(BLOCKS, salt);
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        key.copy_from_slice(derived.as_ref());
        Cipher::new(&key)
    }

    fn check(&self, salt: &str) -> String {
        hex(&self.derive(CHECK, salt).as_ref()[..16])
    }
}

impl Encryption {
    /// Begins to encrypt a volume that has no name yet: what it says is on disk before its key is,
    /// so that the key is never left alone.
    pub fn begin(
        keys: &Keys,
        fresh: &Path,
        name: &str,
        key: Option<&Path>,
    ) -> Result<(), StoreError> {
        let mut salt = [0; 16];
        random(&mut salt)?;
        let salt = hex(&salt);
        let (secret, place) = match key {
            Some(path) if path.is_absolute() => (Secret::read(path)?, path.to_owned()),
            Some(path) => {
                return Err(StoreError::KeyFile {
                    path: path.to_owned(),
                    why: "is no absolute path",
                });
            }
            None => {
                let file = format!("{name}-{}.key", &salt[..8]);
                (Secret::random()?, PathBuf::from(file))
            }
        };
        let encryption = Self {
            cipher: CIPHER.to_owned(),
            check: secret.check(&salt),
            salt,
            key: place,
        };
        Folder(fresh.to_owned()).store(FILE, &encryption)?;
        match key {
            Some(_) => Ok(()),
            None => secret.write(keys, &encryption.path(keys)),
        }
    }

    /// Reads how a volume is encrypted; `None` of one that is not.
    pub fn of(folder: &Folder) -> Result<Option<Self>, StoreError> {
        folder.load(FILE)
    }

    /// Path of its key file.
    pub fn path(&self, keys: &Keys) -> PathBuf {
        // An absolute path takes the place of the folder's.
        keys.0.join(&self.key)
    }

    /// Reads the key, and makes sure that it is the volume's.
    pub fn unlock(&self, keys: &Keys, volume: &str) -> Result<Cipher, StoreError> {
        let path = self.path(keys);
        let failed = |why| StoreError::Key {
            volume: volume.to_owned(),
            path: path.clone(),
            why,
        };
        if self.cipher != CIPHER {
            return Err(failed("is for a cipher that this program does not know"));
        }
        let secret = match Secret::read(&path) {
            Err(StoreError::KeyFile { why, .. }) => return Err(failed(why)),
            read => read?,
        };
        match secret.check(&self.salt) == self.check {
            true => Ok(secret.cipher(&self.salt)),
            false => Err(failed("holds another key")),
        }
    }

    /// Removes the key of a volume that is being removed, unless the operator gave it. What cannot
    /// be overwritten is removed all the same.
    fn destroy(&self, keys: &Keys) -> Result<(), StoreError> {
        if self.key.is_absolute() {
            return Ok(());
        }
        let path = self.path(keys);
        let failed = |e| StoreError::io("remove", &path, e);
        if let Ok(mut file) = OpenOptions::new().write(true).open(&path) {
            let _ = file.write_all(&[b'0'; 2 * KEY_BYTES]);
            let _ = file.sync_all();
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(failed),
        }
    }
}

impl Keys {
    /// Removes the folder of a volume without a name, and its key first: what is left without a key
    /// is worth nothing.
    pub fn discard(&self, folder: &Path) -> Result<(), StoreError> {
        let encryption = Encryption::of(&Folder(folder.to_owned()));
        if let Ok(Some(encryption)) = encryption {
            encryption.destroy(self)?;
        }
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|e| StoreError::io("remove", folder, e)),
        }
    }
}

/// Fills bytes with the kernel's random numbers.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), StoreError> {
    getrandom::fill(bytes).map_err(|error| {
        let error = std::io::Error::other(error);
        StoreError::io("read", "the kernel's random numbers", error)
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn pair_of_digits(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (high, low) = (digit(*pair.first()?)?, digit(*pair.get(1)?)?);
    u8::try_from(high << 4 | low).ok()
}
