//! Events of a host, as they happen.

use crate::{Client, ClientError, escaped};
use bytes::Bytes;
use forkyard_types::{EventsRequest, HostEvent, Since};
use http_body_util::BodyExt;
use hyper::{Method, body::Incoming};

/// Events as they happen. Dropped, the stream is closed.
#[derive(Debug)]
pub struct EventStream {
    body: Incoming,
    client: Client,
    blocks: Blocks,
}

impl Client {
    /// Reads events of the daemon's host.
    pub async fn host_events(&self, request: EventsRequest) -> Result<EventStream, ClientError> {
        let mut path = format!("/v1/events?follow={}", request.follow);
        let kind = String::from(request.kind);
        let words = [
            ("kind", (!kind.is_empty()).then_some(kind)),
            ("vm", request.vm),
            ("family", request.family.map(|family| family.to_string())),
            ("since", request.since.map(|since| since.to_string())),
        ];
        for (name, word) in words {
            if let Some(word) = word {
                path += &format!("&{name}={}", escaped(&word));
            }
        }
        let answer = self.open(Method::GET, &path, Bytes::new()).await?;
        Ok(EventStream {
            body: answer.into_body(),
            client: self.clone(),
            blocks: Blocks::default(),
        })
    }
}

impl EventStream {
    /// Returns the next event; none at the end of the stream: of a daemon that ends, or of what
    /// was asked for. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<HostEvent>, ClientError> {
        loop {
            if let Some(data) = self.blocks.next() {
                return Ok(Some(serde_json::from_slice(&data)?));
            }
            let body = &mut self.body;
            let frame = async { Ok(body.frame().await.transpose()?) };
            match self.client.attend(frame).await? {
                Some(frame) => self.blocks.feed(&frame.into_data().unwrap_or_default()),
                None => return Ok(None),
            }
        }
    }

    /// Returns the position to resume from, once the daemon has told one.
    pub fn position(&self) -> Option<Since> {
        self.blocks.id.as_deref()?.parse().ok()
    }
}

/// Reader of server-sent events: bytes in, data of each event out.
#[derive(Debug, Default)]
struct Blocks {
    pending: Vec<u8>,
    data: Option<Vec<u8>>,
    /// That of the last block.
    id: Option<String>,
    next_id: Option<String>,
}

impl Blocks {
    fn feed(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Returns the data of the next event that is there as a whole.
    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let end = self.pending.iter().position(|byte| *byte == b'\n')?;
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                self.id = self.next_id.take().or(self.id.take());
                if let Some(data) = self.data.take() {
                    return Some(data);
                }
                continue;
            }
            let colon = line.iter().position(|byte| *byte == b':');
            let (name, value) = line.split_at(colon.unwrap_or(line.len()));
            let value = value.strip_prefix(b":").unwrap_or(value);
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match name {
                b"data" => match &mut self.data {
                    Some(data) => {
                        data.push(b'\n');
                        data.extend_from_slice(value);
                    }
                    None => self.data = Some(value.to_vec()),
                },
                b"id" => self.next_id = String::from_utf8(value.to_vec()).ok(),
                // Comments, and fields of no use here.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_they_are_cut() {
        let text =
            b": still\nretry: 1000\nid: a-1\n\nid: a-2\ndata: {\"x\":\ndata: 1}\n\nid: a-3\r\ndata:2\r\n\r\ndata: 3\n";
        for piece in 1..text.len() {
            let mut blocks = Blocks::default();
            let mut read = Vec::new();
            for bytes in text.chunks(piece) {
                blocks.feed(bytes);
                while let Some(data) = blocks.next() {
                    let data = String::from_utf8(data).expect("text");
                    read.push((blocks.id.clone().expect("an id"), data));
                }
            }
            let wanted = [("a-2", "{\"x\":\n1}"), ("a-3", "2")];
            let wanted = wanted.map(|(id, data)| (id.to_owned(), data.to_owned()));
            assert_eq!(read, wanted, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_sign_of_life_tells_the_position() {
        let mut blocks = Blocks::default();
        blocks.feed(b": still\nid: a-7\n\n");
        assert_eq!((blocks.next(), blocks.id.as_deref()), (None, Some("a-7")));
    }
}
