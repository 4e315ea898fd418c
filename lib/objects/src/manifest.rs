//! Signed manifests.
//!
//! ```text
//! forkyard pieces 1
//! KEY SIGNATURE
//! {"name": …, "description": …, "files": {"memory.0": [{"digest": …, "bytes": …}, …], …}}
//! ```
//!
//! One object, so that signature and text are always of each other. The signature is of the first
//! line and the text: it is worth nothing where something else is signed. The name is part of what
//! is signed, so a store cannot give one substrate for another.

use crate::{PIECE, Piece};
use forkyard_substrate::sign::{PublicKey, SignError, Signature, Signer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const HEAD: &str = "forkyard pieces 1\n";
/// Most bytes of a manifest: that of a TiB takes a third of it.
pub const LONGEST: u64 = 64 << 20;
/// Most files of one.
const FILES: usize = 64;
/// Longest name of a file.
const NAME: usize = 64;

/// Description of a substrate in a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Name of the substrate.
    pub name: String,
    /// Description in the words of those that push and pull.
    pub description: serde_json::Value,
    /// Pieces of each file, in order.
    pub files: BTreeMap<String, Vec<Piece>>,
}

/// Manifest that a key has signed. What its text says is another matter.
#[derive(Clone, Debug)]
pub struct Sealed {
    /// The key.
    pub key: PublicKey,
    /// Manifest that it has signed.
    pub manifest: Manifest,
}

/// Reason why an object is no manifest of a substrate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// Something else, or one of another version.
    #[error("it is no manifest that this version knows")]
    Form,
    /// Not signed by the key that it names.
    #[error("its signature is not that of the key that it names, or it was changed")]
    Forged,
    /// Signed, and unreadable.
    #[error("it cannot be parsed")]
    Parse(#[source] serde_json::Error),
    /// Signed as another substrate's.
    #[error("it is that of {0:?}")]
    Name(String),
    /// A file or a piece in it cannot be one.
    #[error("file {0:?} in it cannot be one")]
    File(String),
}

impl ManifestError {
    /// Tells whether it is not what its key has signed.
    pub fn is_forged(&self) -> bool {
        matches!(self, Self::Forged)
    }
}

impl Manifest {
    /// Signs it: the object as it is stored.
    pub fn seal(&self, signer: &Signer) -> Result<String, SignError> {
        // Maps with texts as keys, and numbers: there is nothing that JSON could not say.
        let text = serde_json::to_string(self).unwrap_or_default();
        let signature = signer.sign(&signed(&text))?;
        Ok(format!("{HEAD}{} {signature}\n{text}", signer.public()?))
    }

    /// Every piece that it names.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        self.files.values().flatten().copied()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.pieces().map(|piece| u64::from(piece.bytes)).sum()
    }

    /// Refuses files whose names lead elsewhere, and pieces of sizes that there are not.
    fn check(self) -> Result<Self, ManifestError> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        for (name, pieces) in &self.files {
            let named = (1..=NAME).contains(&name.len())
                && !name.starts_with('.')
                && name.bytes().all(known);
            let last = pieces.len().saturating_sub(1);
            let whole = |(at, piece): (usize, &Piece)| match at == last {
                true => (1..=PIECE).contains(&piece.bytes),
                false => piece.bytes == PIECE,
            };
            if !named || !pieces.iter().enumerate().all(whole) {
                return Err(ManifestError::File(name.clone()));
            }
        }
        match self.files.len() > FILES {
            true => Err(ManifestError::Form),
            false => Ok(self),
        }
    }
}

impl Sealed {
    /// Reads an object, which may be anything, as the manifest of the substrate `name`.
    pub fn open(name: &str, object: &[u8]) -> Result<Self, ManifestError> {
        let object = std::str::from_utf8(object).map_err(|_| ManifestError::Form)?;
        let rest = object.strip_prefix(HEAD).ok_or(ManifestError::Form)?;
        let (line, text) = rest.split_once('\n').ok_or(ManifestError::Form)?;
        let (key, signature) = line.split_once(' ').ok_or(ManifestError::Form)?;
        let key: PublicKey = key.parse().map_err(|_| ManifestError::Form)?;
        let signature: Signature = signature.parse().map_err(|_| ManifestError::Form)?;
        key.check(&signed(text), &signature)
            .map_err(|_| ManifestError::Forged)?;
        let manifest: Manifest = serde_json::from_str(text).map_err(ManifestError::Parse)?;
        match manifest.name == name {
            true => Ok(Self {
                key,
                manifest: manifest.check()?,
            }),
            false => Err(ManifestError::Name(manifest.name)),
        }
    }
}

fn signed(text: &str) -> Vec<u8> {
    [HEAD.as_bytes(), text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn signer() -> Signer {
        Signer::read(&Signer::draw().expect("drawn")).expect("a key")
    }

    fn manifest() -> Manifest {
        let piece = Piece::of(b"page").expect("a piece");
        Manifest {
            name: "web".into(),
            description: serde_json::json!({"memory": 1}),
            files: [("memory.0".to_owned(), vec![piece])].into(),
        }
    }

    #[test]
    fn a_manifest_is_its_signers_and_no_others() {
        let (signer, other) = (signer(), signer());
        let object = manifest().seal(&signer).expect("sealed");
        let sealed = Sealed::open("web", object.as_bytes()).expect("opened");
        assert_eq!(sealed.manifest, manifest());
        assert_eq!(sealed.key, signer.public().expect("a key"));
        // Said to be another's.
        let [own, others] = [&signer, &other].map(|it| it.public().expect("a key").to_string());
        let stolen = object.replace(&own, &others);
        assert!(matches!(
            Sealed::open("web", stolen.as_bytes()),
            Err(ManifestError::Forged)
        ));
        // Under another's name.
        assert!(matches!(
            Sealed::open("db", object.as_bytes()),
            Err(ManifestError::Name(name)) if name == "web"
        ));
    }

    #[test]
    fn files_that_lead_elsewhere_and_pieces_of_odd_sizes_are_refused_though_signed() {
        let signer = signer();
        let piece = Piece::of(b"page").expect("a piece");
        let small = Piece { bytes: 0, ..piece };
        let large = Piece {
            bytes: PIECE + 1,
            ..piece
        };
        for (name, pieces) in [
            ("../x", vec![piece]),
            ("/x", vec![piece]),
            (".x", vec![piece]),
            ("", vec![piece]),
            ("x", vec![small]),
            ("x", vec![large]),
            ("x", vec![piece, piece]),
        ] {
            let mut bad = manifest();
            bad.files = [(name.to_owned(), pieces)].into();
            let object = bad.seal(&signer).expect("sealed");
            let opened = Sealed::open("web", object.as_bytes());
            assert!(
                matches!(opened, Err(ManifestError::File(_))),
                "{name:?} {opened:?}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn what_was_changed_or_cut_short_is_refused(at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<bool>()) {
            let signer = signer();
            let mut object = manifest().seal(&signer).expect("sealed").into_bytes();
            let at = at.index(object.len());
            match cut {
                true => object.truncate(at),
                false => object[at] ^= 1 << bit,
            }
            // A letter of its key may be a large one as well: it is the same key.
            if let Ok(opened) = Sealed::open("web", &object) {
                prop_assert_eq!(opened.manifest, manifest());
                prop_assert_eq!(opened.key, signer.public().expect("a key"));
            }
        }
    }
}
