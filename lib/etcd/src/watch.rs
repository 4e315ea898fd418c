//! Changes of keys, as they happen.

use crate::{
    Endpoint, EtcdError, KeyEntry, Revision,
    client::refusal,
    wire::{Changed, Kind, Line, Watched},
};
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// Bytes of one line.
const LINE: usize = 16 << 20;

/// Something that happened to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyEvent {
    /// The key has this value from now on.
    Put(KeyEntry),
    /// The key is gone: removed, or its lease has ended.
    Deleted(String),
}

/// Changes that happened together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBatch {
    /// At this revision, the last of those it tells of.
    pub revision: Revision,
    /// Changes.
    pub events: Vec<KeyEvent>,
}

/// A stream of changes. Dropped, it is hung up on.
#[derive(Debug)]
pub struct KeyWatch {
    endpoint: Endpoint,
    body: Incoming,
    pending: Vec<u8>,
}

impl KeyWatch {
    pub(crate) fn new(endpoint: Endpoint, body: Incoming) -> Self {
        Self {
            endpoint,
            body,
            pending: Vec::new(),
        }
    }

    /// The next changes. After an error the watch is of no more use: look at
    /// the keys again, and watch from there. Cancel-safe.
    pub async fn next(&mut self) -> Result<EventBatch, EtcdError> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                match batch(serde_json::from_slice(&line)?)? {
                    Some(batch) => return Ok(batch),
                    None => continue,
                }
            }
            if self.pending.len() > LINE {
                return Err(EtcdError::Unexpected {
                    what: "it is too long",
                });
            }
            let frame = self.body.frame().await.ok_or(EtcdError::WatchEnded)?;
            let frame = frame.map_err(|source| EtcdError::Broke {
                endpoint: self.endpoint.clone(),
                source,
            })?;
            if let Ok(data) = frame.into_data() {
                self.pending.extend_from_slice(&data);
            }
        }
    }
}

/// Parses a line, if it tells of changes at all.
fn batch(line: Line<Watched>) -> Result<Option<EventBatch>, EtcdError> {
    let watched = match line {
        Line::Result(watched) => watched,
        Line::Error(failure) => return Err(refusal(failure)),
    };
    if watched.compact_revision != Revision(0) {
        return Err(EtcdError::Compacted {
            kept: watched.compact_revision,
        });
    }
    if watched.canceled {
        return Err(EtcdError::Refused {
            code: 0,
            message: watched.cancel_reason,
        });
    }
    if watched.events.is_empty() {
        return Ok(None);
    }
    let event = |Changed { kind, kv }| {
        let entry = KeyEntry::try_from(kv)?;
        Ok(match kind {
            Kind::Put => KeyEvent::Put(entry),
            Kind::Delete => KeyEvent::Deleted(entry.key),
        })
    };
    let events: Result<_, EtcdError> = watched.events.into_iter().map(event).collect();
    Ok(Some(EventBatch {
        revision: watched.header.revision,
        events: events?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> Result<Option<EventBatch>, EtcdError> {
        batch(serde_json::from_str(line).expect("a line"))
    }

    #[test]
    fn lines_of_an_etcd_are_understood() {
        let created = r#"{"result":{"header":{"revision":"2"},"created":true}}"#;
        assert_eq!(told(created).expect("no error"), None);
        let changed = r#"{"result":{"header":{"revision":"7"},"events":[
            {"kv":{"key":"YQ==","create_revision":"2","mod_revision":"7","value":"eA=="}},
            {"type":"DELETE","kv":{"key":"Yg==","mod_revision":"7"}}]}}"#;
        let batch = told(changed).expect("no error").expect("changes");
        assert_eq!(batch.revision, Revision(7));
        assert!(matches!(&batch.events[0], KeyEvent::Put(entry) if entry.value == b"x"));
        assert_eq!(batch.events[1], KeyEvent::Deleted("b".into()));
    }

    #[test]
    fn the_end_of_a_watch_says_why() {
        let compacted = r#"{"result":{"canceled":true,"compact_revision":"9"}}"#;
        assert!(matches!(
            told(compacted),
            Err(EtcdError::Compacted { kept: Revision(9) })
        ));
        let failed = r#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#;
        assert!(matches!(
            told(failed),
            Err(EtcdError::Refused { code: 14, .. })
        ));
    }
}
