//! Wire format: etcd's messages as the gateway writes them in JSON. Numbers of
//! 64 bits are text, bytes are base64, and what is zero or empty is left out.

use crate::EtcdError;
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A state of the whole store: each change makes the next one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(#[serde(with = "text")] pub i64);

/// A lease: keys that are put with it go when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(#[serde(with = "text")] pub i64);

/// A key, its value, and when they came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// The key.
    pub key: String,
    /// Value of the key.
    pub value: Vec<u8>,
    /// Revision at which it was created, the last time.
    pub created: Revision,
    /// Revision at which it was last put.
    pub changed: Revision,
}

/// Selection of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// This one.
    One(String),
    /// All that begin so.
    Prefix(String),
}

/// Keys and their values, all of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// Of this moment.
    pub revision: Revision,
    /// Those there are, in order.
    pub entries: Vec<KeyEntry>,
}

impl Keys {
    /// As etcd has it: the first, and the first that is not meant any more.
    pub(crate) fn bounds(&self) -> Bounds {
        match self {
            Self::One(key) => Bounds {
                key: Bytes(key.clone().into()),
                range_end: None,
            },
            Self::Prefix(prefix) => Bounds {
                // No key is empty: the first is a zero byte.
                key: match prefix.is_empty() {
                    true => Bytes(vec![0]),
                    false => Bytes(prefix.clone().into()),
                },
                range_end: Some(Bytes(after(prefix.as_bytes()))),
            },
        }
    }
}

/// The first key that does not begin so: its last byte one more. A zero byte
/// stands for the end of all keys.
fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end;
        }
    }
    vec![0]
}

/// Bytes as base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = BASE64_STANDARD.decode(text).map_err(de::Error::custom)?;
        Ok(Self(bytes))
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Bounds {
    pub key: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<Bytes>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Put {
    pub key: Bytes,
    pub value: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    pub revision: Revision,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    pub key: Bytes,
    pub value: Bytes,
    pub create_revision: Revision,
    pub mod_revision: Revision,
}

/// Members of an etcd.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Members {
    pub members: Vec<Member>,
}

/// URLs of a member.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Member {
    #[serde(rename = "clientURLs")]
    pub client_urls: Vec<String>,
    #[serde(rename = "peerURLs")]
    pub peer_urls: Vec<String>,
}

impl TryFrom<KeyValue> for KeyEntry {
    type Error = EtcdError;

    fn try_from(it: KeyValue) -> Result<Self, EtcdError> {
        let not_text = |_| EtcdError::Unexpected {
            what: "a key that is no text",
        };
        Ok(Self {
            key: String::from_utf8(it.key.0).map_err(not_text)?,
            value: it.value.0,
            created: it.create_revision,
            changed: it.mod_revision,
        })
    }
}

/// Answer to a range, a put or a removal: each has a part of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Answered {
    pub header: Header,
    pub kvs: Vec<KeyValue>,
}

impl Answered {
    pub fn entries(self) -> Result<Vec<KeyEntry>, EtcdError> {
        self.kvs.into_iter().map(KeyEntry::try_from).collect()
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Granted {
    #[serde(rename = "ID")]
    pub id: LeaseId,
}

/// One line of a stream.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line<T> {
    Result(T),
    Error(Failure),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeptAlive {
    /// Seconds; none left if the lease is gone.
    #[serde(rename = "TTL", with = "text")]
    pub ttl: i64,
}

/// A refusal; in streams the code has another name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Failure {
    #[serde(alias = "grpc_code")]
    pub code: u32,
    pub message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Watched {
    pub header: Header,
    pub canceled: bool,
    pub cancel_reason: String,
    pub compact_revision: Revision,
    pub events: Vec<Changed>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Kind {
    #[default]
    Put,
    Delete,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Changed {
    #[serde(rename = "type")]
    pub kind: Kind,
    pub kv: KeyValue,
}

/// Numbers of 64 bits as text.
pub(crate) mod text {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(number: &i64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(number)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_prefix_means_the_keys_that_begin_so_and_no_others(
            prefix in prop::collection::vec(250u8.., 0..4),
            key in prop::collection::vec(250u8.., 0..6),
        ) {
            let end = after(&prefix);
            let within = key >= prefix && (end == [0] || key < end);
            prop_assert_eq!(within, key.starts_with(&prefix));
        }

        #[test]
        fn whatever_comes_as_an_answer_is_an_answer_or_an_error(text in "\\PC{0,60}") {
            let _ = serde_json::from_str::<Line<Watched>>(&text);
            let _ = serde_json::from_str::<Answered>(&text);
        }
    }

    #[test]
    fn an_answer_of_an_etcd_is_understood() {
        let text = r#"{"header":{"cluster_id":"324952591200643719","revision":"2","raft_term":"2"},
            "kvs":[{"key":"YQ==","create_revision":"2","mod_revision":"3","version":"1","value":"aGFsbG8="}],"count":"1"}"#;
        let answer: Answered = serde_json::from_str(text).expect("understood");
        assert_eq!(answer.header.revision, Revision(2));
        let entries = answer.entries().expect("text");
        assert_eq!(entries.len(), 1);
        assert_eq!(
            (entries[0].key.as_str(), entries[0].value.as_slice()),
            ("a", &b"hallo"[..])
        );
        assert_eq!(
            (entries[0].created, entries[0].changed),
            (Revision(2), Revision(3))
        );
    }
}
