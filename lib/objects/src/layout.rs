//! Names of objects in a store.

use crate::Digest;

/// Signed manifests, by the names of their substrates.
pub const SUBSTRATES: &str = "substrates";
/// Pieces, by the first two digits of their digests.
pub const PIECES: &str = "pieces";
/// Pushes under way.
pub const LEASES: &str = "leases";
/// Collections under way.
pub const COLLECTIONS: &str = "collections";

/// Name of a substrate's manifest.
pub fn manifest(name: &str) -> String {
    format!("{SUBSTRATES}/{name}")
}

/// Name of a piece.
pub fn piece(digest: Digest) -> String {
    let text = digest.to_string();
    format!("{PIECES}/{}/{text}", &text[..2])
}

/// The piece of a name; none if it is no piece's.
pub fn piece_of(name: &str) -> Option<Digest> {
    let digest = name.rsplit('/').next()?.parse().ok()?;
    (piece(digest) == name).then_some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_piece_is_its_digests() {
        let digest = Digest::of(b"x");
        let name = piece(digest);
        assert_eq!(piece_of(&name), Some(digest));
        for other in [
            digest.to_string(),
            format!("x/{name}"),
            format!("{PIECES}/{digest}"),
            format!("{PIECES}/zz/{digest}"),
        ] {
            assert_eq!(piece_of(&other), None, "{other}");
        }
    }
}
