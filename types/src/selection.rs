//! Selection of events: positions in a stream, and the query of `GET /v1/events`.

use crate::{EventKind, FamilyId, InvalidId, StreamId};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt, str::FromStr};

/// A position in a stream of events: `STREAM-SEQ` as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The stream.
    pub stream: StreamId,
    /// Last event that was read.
    pub seq: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stream, self.seq)
    }
}

/// Position after which a reader wants events: a cursor, or a number in the present stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Since {
    /// After this event of this stream.
    Cursor(Cursor),
    /// After the event of this number; 0 is before the first.
    Seq(u64),
}

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cursor(cursor) => cursor.fmt(f),
            Self::Seq(seq) => seq.fmt(f),
        }
    }
}

impl FromStr for Since {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let digits = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse().ok(),
            false => None,
        };
        let cursor = |(stream, seq): (&str, &str)| {
            Some(Self::Cursor(Cursor {
                stream: stream.parse().ok()?,
                seq: digits(seq)?,
            }))
        };
        let seq = || digits(text).map(Self::Seq);
        let since = text.split_once('-').map_or_else(seq, cursor);
        since.ok_or_else(|| InvalidId {
            text: text.into(),
            what: "a position in a stream of events: a number, or STREAM-NUMBER",
        })
    }
}

impl TryFrom<String> for Since {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        text.parse()
    }
}

impl From<Since> for String {
    fn from(since: Since) -> Self {
        since.to_string()
    }
}

/// Kinds of events, with commas between them as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EventKinds(pub BTreeSet<EventKind>);

impl TryFrom<String> for EventKinds {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        let words = text.split(',').filter(|word| !word.is_empty());
        words.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl From<EventKinds> for String {
    fn from(kinds: EventKinds) -> Self {
        let words: Vec<_> = kinds.0.into_iter().map(EventKind::as_str).collect();
        words.join(",")
    }
}

/// `GET /v1/events`: selection of events.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsRequest {
    /// Kinds wanted, with commas between them: `vm,fork`; all if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", param(value_type = String, required = false))]
    pub kind: EventKinds,
    /// VM wanted, by name or id: its own events, and those of its forks and tickets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// Family wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<FamilyId>,
    /// Events after this position, as far as they are kept: an id of this stream, or a number;
    /// 0 for all that are kept. If absent, the header `Last-Event-ID`, or else from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(value_type = Option<String>))]
    pub since: Option<Since>,
    /// False: end after the events that are there.
    #[serde(default = "follow")]
    #[cfg_attr(feature = "schema", param(required = false))]
    pub follow: bool,
}

fn follow() -> bool {
    true
}

impl Default for EventsRequest {
    fn default() -> Self {
        Self {
            kind: EventKinds::default(),
            vm: None,
            family: None,
            since: None,
            follow: follow(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_its_text_and_a_number_is_of_the_present_stream() {
        let cursor = Cursor {
            stream: StreamId::random(),
            seq: 41,
        };
        assert_eq!(cursor.to_string().parse(), Ok(Since::Cursor(cursor)));
        assert_eq!("41".parse(), Ok(Since::Seq(41)));
        for bad in ["", "-", "x", "-1", "+1", "1-2", "99999999999999999999"] {
            assert!(bad.parse::<Since>().is_err(), "{bad}");
        }
    }
}
