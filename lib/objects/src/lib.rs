//! Substrates in object stores: addresses, names of objects, signed manifests, pieces, and what is
//! collected.
//!
//! ```text
//! STORE/substrates/NAME        a signed manifest: which files, and which pieces each is made of
//! STORE/pieces/ab/abcd…        a piece of a file, named by the BLAKE3 digest of its bytes
//! STORE/leases/ID              a push under way, and the pieces that it relies on
//! STORE/collections/ID         a collection under way
//! ```
//!
//! Files are cut into pieces of the same size, so one that is in two substrates is there once. A
//! manifest is written after all its pieces; what names no manifest and no lease is garbage.
//! [`collect`] says how a push and a collection at the same time keep out of each other's way.
//!
//! Performs no I/O but to read the operator's [settings], and reads no clock. What does, is `forkyard-porter`, which takes [orders](order).

mod address;
pub mod collect;
pub mod layout;
mod manifest;
pub mod order;
mod piece;
pub mod settings;

pub use address::{BadAddress, Root, StoreAddress};
pub use manifest::{LONGEST, Manifest, ManifestError, Sealed};
pub use piece::{Digest, PIECE, Piece, pieces_of};
