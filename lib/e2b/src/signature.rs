//! Signed addresses of files: its holder may read or write that file without the sandbox's
//! token.

use base64::{Engine as _, prelude::BASE64_STANDARD_NO_PAD};
use sha2::{Digest, Sha256};

/// Operation that a signature allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// To read the file.
    Read,
    /// To write it.
    Write,
}

/// The signature for a path, with the sandbox's token; it holds until `expires`, in seconds since
/// 1970.
pub fn sign(
    operation: Operation,
    path: &str,
    user: &str,
    token: &str,
    expires: Option<u64>,
) -> String {
    let operation = match operation {
        Operation::Read => "read",
        Operation::Write => "write",
    };
    let mut text = format!("{path}:{operation}:{user}:{token}");
    if let Some(expires) = expires {
        text += &format!(":{expires}");
    }
    let digest = Sha256::digest(text.as_bytes());
    format!("v1_{}", BASE64_STANDARD_NO_PAD.encode(digest))
}

/// True if `shown` is the signature `wanted` and holds at `now`. The time that it takes does not
/// depend on how much of it is right.
pub fn is_signed(shown: &str, wanted: &str, expires: Option<u64>, now: u64) -> bool {
    let same = shown.len() == wanted.len()
        && shown
            .bytes()
            .zip(wanted.bytes())
            .fold(0, |differ, (a, b)| differ | (a ^ b))
            == 0;
    same && expires.is_none_or(|expires| now <= expires)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_the_sdk() {
        // By e2b.sandbox.signature.get_signature of e2b 2.63.0.
        let plain = sign(Operation::Read, "/etc/hosts", "root", "secret", None);
        assert_eq!(plain, "v1_xUK16ncx2f+HG4s+44wS8aGsE0P0nzq+Va+DP6jvvOE");
        let until = sign(Operation::Write, "/a b", "", "secret", Some(1_700_000_000));
        assert_eq!(until, "v1_KUeDhSXBIl2YBkBV/sTBH70KqgYiCruKF73nZ3RtWak");
    }

    #[test]
    fn a_signature_holds_until_its_time_and_for_nothing_else() {
        let expires = Some(100);
        let wanted = sign(Operation::Read, "/a", "", "t", expires);
        assert!(is_signed(&wanted, &wanted, expires, 100));
        assert!(!is_signed(&wanted, &wanted, expires, 101));
        let other = sign(Operation::Write, "/a", "", "t", expires);
        assert!(!is_signed(&other, &wanted, expires, 1));
        assert!(!is_signed("v1_", &wanted, expires, 1));
    }
}
