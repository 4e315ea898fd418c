//! Identifiers. Each is drawn at random, so that no two daemons, restores or
//! clones of clones can ever choose the same one, and none is ever reused.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use uuid::Uuid;

/// Text that is no identifier of the kind wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}")]
pub struct InvalidId {
    /// Text that was given.
    pub text: String,
    /// Form that was expected.
    pub what: &'static str,
}

/// Letters of a short id: lower case, no vowels that spell words, no 0/o or 1/l.
const LETTERS: &[u8; 32] = b"23456789abcdefghijkmnpqrstuvwxyz";
/// Length of a short id: 55 bits, and still short enough that a network
/// interface can carry it behind a prefix (15 bytes in all).
const SHORT: usize = 11;

fn draw_short() -> [u8; SHORT] {
    let random = Uuid::new_v4().as_u128().to_le_bytes();
    let mut text = [0; SHORT];
    for (letter, byte) in text.iter_mut().zip(random) {
        *letter = LETTERS[usize::from(byte % 32)];
    }
    text
}

macro_rules! short_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[cfg_attr(feature = "schema", schema(value_type = String, pattern = "^[2-9a-km-z]{11}$"))]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name([u8; SHORT]);

        impl $name {
            /// Draws a new one.
            pub fn random() -> Self {
                Self(draw_short())
            }

            /// Returns the text.
            pub fn as_str(&self) -> &str {
                std::str::from_utf8(&self.0).unwrap_or_default()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                match <[u8; SHORT]>::try_from(text.as_bytes()) {
                    Ok(letters) if letters.iter().all(|l| LETTERS.contains(l)) => Ok(Self(letters)),
                    Ok(_) | Err(_) => Err(InvalidId { text: text.into(), what: $what }),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.as_str().to_owned()
            }
        }
    };
}

short_id!(
    /// One virtual machine, from its creation to its end.
    VmId, "a VM id"
);
short_id!(
    /// A VM that was booted, and every clone that descends from it.
    FamilyId, "a family id"
);
short_id!(
    /// A reservation of clones.
    TicketId, "a ticket"
);
short_id!(
    /// One fork: one stop of one parent, and the clones made of it.
    ForkId, "a fork id"
);
short_id!(
    /// Events of a host from one start of its daemon to the next.
    StreamId, "a stream of events"
);
short_id!(
    /// A token that lets its owner use the API over the network.
    TokenId, "a token id"
);
short_id!(
    /// A token that admits to one port of one VM.
    ShareId, "an id of a token for a port"
);

/// One immutable page image.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = String, format = Uuid))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ImageId(pub Uuid);

impl ImageId {
    /// Draws a new one.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl ImageId {
    /// Names the image that is this one, with so many pages: zero where this one has ended.
    pub fn resized(self, pages: crate::PageCount) -> Self {
        Self(Uuid::from_u128(
            self.0.as_u128().wrapping_add(u128::from(pages.0)),
        ))
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

impl FromStr for ImageId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        Uuid::parse_str(text).map(Self).map_err(|_| InvalidId {
            text: text.into(),
            what: "an image id",
        })
    }
}

/// One life of a VM's memory: fresh at boot and at every restore, for clones
/// of clones too. Drawn, never read from a clock.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = String, format = Uuid))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub Uuid);

impl Epoch {
    /// Draws a new one.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Epoch {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        Uuid::parse_str(text).map(Self).map_err(|_| InvalidId {
            text: text.into(),
            what: "an epoch",
        })
    }
}

/// One request of a guest's program: asking again under the same id, after an
/// answer was lost, asks for nothing new.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub Uuid);

impl RequestId {
    /// Draws a new one.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for RequestId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        Uuid::parse_str(text).map(Self).map_err(|_| InvalidId {
            text: text.into(),
            what: "a request id",
        })
    }
}

/// Place of a VM in its family: 0 for the one that booted, then 1, 2, …, in
/// the order in which clones were promised. Never reused within a family; the
/// VM's address and MAC follow from it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Member(pub u16);

/// Name that a user gives a VM; a host name as of RFC 1123, so that the guest
/// can carry it: 1 to 63 lower-case letters, digits and inner hyphens.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = String, pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"))]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VmName(String);

impl VmName {
    /// Characters of the longest.
    pub const MAX: usize = 63;

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for VmName {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let fits = (1..=Self::MAX).contains(&text.len())
            && text.bytes().all(inner)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidId {
                text: text.into(),
                what: "a VM name: 1 to 63 lower-case letters, digits and inner hyphens",
            })
        }
    }
}

impl TryFrom<String> for VmName {
    type Error = InvalidId;
    fn try_from(text: String) -> Result<Self, InvalidId> {
        text.parse()
    }
}

impl From<VmName> for String {
    fn from(name: VmName) -> String {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text() {
        let id = VmId::random();
        assert_eq!(id.to_string().parse::<VmId>(), Ok(id));
        let image = ImageId::random();
        assert_eq!(image.to_string().parse::<ImageId>(), Ok(image));
    }

    #[test]
    fn text_of_the_wrong_length_or_letters_is_no_id() {
        for text in [
            "",
            "2222222222",
            "222222222222",
            "2222222222L",
            "22222../222",
        ] {
            assert!(text.parse::<VmId>().is_err(), "{text}");
        }
    }

    #[test]
    fn two_draws_differ() {
        assert_ne!(VmId::random(), VmId::random());
    }

    #[test]
    fn only_host_names_are_vm_names() {
        for good in ["p", "p-3", "a0", &"x".repeat(63)] {
            assert!(good.parse::<VmName>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "-p",
            "p-",
            "P",
            "a b",
            "a.b",
            "a/b",
            "ü",
            &"x".repeat(64),
        ] {
            assert!(bad.parse::<VmName>().is_err(), "{bad}");
        }
    }
}
