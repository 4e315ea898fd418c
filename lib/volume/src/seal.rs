//! Encryption of blocks in the log.
//!
//! AES-256-GCM-SIV (RFC 8452), which stays secure if a nonce is used twice. A block's nonce is its
//! version and its number, so that its sealed content does not depend on the slot: compaction
//! makes the same bytes again. A version that a crash has taken may be given to another content,
//! and a folder that was copied may go on in two places: what a reader of both learns then is
//! whether the contents are equal, and nothing else.
//!
//! Covers the content of blocks. Their numbers and versions, sizes and the names of snapshots are
//! in the log and the checkpoint in the clear, so that recovery needs no key.

use crate::{
    record::BlockData,
    units::{BlockNo, Version, VolumeId},
};
use aes_gcm_siv::{AeadInOut, Aes256GcmSiv, KeyInit, Nonce, Tag};
use std::fmt;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Bytes of the tag behind a sealed block.
pub(crate) const TAG_BYTES: usize = 16;

/// Cipher of one volume, with its key.
pub struct Cipher(Aes256GcmSiv);

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher")
    }
}

/// Block whose content is sealed, or is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed {
    pub volume: VolumeId,
    pub block: BlockNo,
    pub version: Version,
}

impl Sealed {
    /// Five bytes of version, seven of block number: blocks of a volume need four.
    fn nonce(self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..5].copy_from_slice(&self.version.number().to_le_bytes()[..5]);
        nonce[5..].copy_from_slice(&self.block.0.to_le_bytes()[..7]);
        Nonce::from(nonce)
    }
}

impl Cipher {
    /// Cipher for a key that no other volume has.
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self(Aes256GcmSiv::new(key.into()))
    }

    /// Encrypts a block in place, and returns the tag; `None` if the cipher refuses.
    pub(crate) fn seal(&self, at: Sealed, data: &mut BlockData) -> Option<[u8; TAG_BYTES]> {
        let associated = &at.volume.0;
        let data = data.as_mut_slice().into();
        let sealed = self.0.encrypt_inout_detached(&at.nonce(), associated, data);
        sealed.ok().map(Into::into)
    }

    /// Decrypts a block in place; `None` if it is not what was sealed.
    pub(crate) fn open(
        &self,
        at: Sealed,
        data: &mut BlockData,
        tag: [u8; TAG_BYTES],
    ) -> Option<()> {
        let (associated, tag) = (&at.volume.0, Tag::from(tag));
        let data = data.as_mut_slice().into();
        let opened = self
            .0
            .decrypt_inout_detached(&at.nonce(), associated, data, &tag);
        opened.ok()
    }
}
