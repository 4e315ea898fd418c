//! Output of a command that is kept, and the position of each reader in it.

use forkyard_agent_link::{Session, Stream, ToHost};
use forkyard_types::{ExitStatus, KeptCommand, NotStarted};
use std::collections::{BTreeMap, VecDeque};

/// The last output of a command.
#[derive(Debug, Default)]
pub struct Log {
    chunks: VecDeque<(Stream, Vec<u8>)>,
    /// Number of the oldest chunk that is kept.
    pub first: u64,
    pub bytes: usize,
    pub lost: u64,
}

impl Log {
    /// True if the oldest chunk has to go before so many bytes can be kept.
    pub fn is_full(&self, more: usize) -> bool {
        !self.chunks.is_empty() && self.bytes + more > KeptCommand::OUTPUT
    }

    /// Drops the oldest output, of which so much has to go. A part of a chunk keeps its number.
    pub fn drop_some(&mut self, more: usize) {
        let over = (self.bytes + more).saturating_sub(KeptCommand::OUTPUT);
        if let Some((_, data)) = self.chunks.front_mut()
            && data.len() > over
        {
            data.drain(..over);
            self.bytes -= over;
            self.lost += u64::try_from(over).unwrap_or(u64::MAX);
            return;
        }
        self.drop_oldest();
    }

    fn drop_oldest(&mut self) {
        if let Some((_, data)) = self.chunks.pop_front() {
            self.first += 1;
            self.bytes -= data.len();
            self.lost += u64::try_from(data.len()).unwrap_or(u64::MAX);
        }
    }

    /// Appends to the last chunk where that is small: a line at a time would be thousands of them.
    pub fn push(&mut self, stream: Stream, data: &[u8], may_join: bool) {
        self.bytes += data.len();
        match self.chunks.back_mut() {
            Some((last, text))
                if may_join && *last == stream && text.len() + data.len() <= JOINED =>
            {
                text.extend_from_slice(data);
            }
            _ => self.chunks.push_back((stream, data.to_vec())),
        }
    }

    pub fn end(&self) -> u64 {
        self.first + u64::try_from(self.chunks.len()).unwrap_or(u64::MAX)
    }

    pub fn get(&self, number: u64) -> Option<&(Stream, Vec<u8>)> {
        let at = number.checked_sub(self.first)?;
        self.chunks.get(usize::try_from(at).ok()?)
    }
}

/// Bytes up to which output is joined to the chunk before.
const JOINED: usize = 4 << 10;

/// A host that is attached.
#[derive(Debug)]
pub struct Reader {
    /// Told apart from an earlier one of the same session by this.
    pub id: u64,
    /// Number of the chunk that it is sent next; none: it wants no output.
    pub next: Option<u64>,
    pub room: u32,
}

#[derive(Debug, Default)]
pub struct Said {
    pub log: Log,
    pub readers: BTreeMap<Session, Reader>,
    pub outcome: Option<Result<ExitStatus, NotStarted>>,
}

impl Said {
    /// True if a reader has still to be sent the oldest chunk.
    pub fn is_awaited(&self) -> bool {
        let first = Some(self.log.first);
        self.readers.values().any(|reader| reader.next == first)
    }

    pub fn has(&self, session: Session, id: u64) -> bool {
        self.readers
            .get(&session)
            .is_some_and(|reader| reader.id == id)
    }

    /// The next message for a reader, if there is one.
    pub fn message(&mut self, session: Session) -> Option<ToHost> {
        let reader = self.readers.get_mut(&session)?;
        if let Some(next) = reader.next.as_mut()
            && *next < self.log.end()
        {
            let room = reader.room.checked_sub(1)?;
            *next = self.log.first.max(*next);
            let (stream, data) = self.log.get(*next)?.clone();
            (*next, reader.room) = (*next + 1, room);
            return Some(ToHost::ExecOutput {
                session,
                stream,
                data,
            });
        }
        let outcome = self.outcome.clone()?;
        self.readers.remove(&session);
        Some(ToHost::ExecEnd { session, outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_the_last_output_in_its_order_and_counts_what_is_lost() {
        let mut log = Log::default();
        let text = vec![b'x'; JOINED];
        for _ in 0..100 {
            while log.is_full(text.len()) {
                log.drop_some(text.len());
            }
            log.push(Stream::Out, &text, true);
        }
        assert_eq!(log.bytes, KeptCommand::OUTPUT);
        let mut one = Log::default();
        let long: Vec<u8> = (0..=250).cycle().take(KeptCommand::OUTPUT).collect();
        one.push(Stream::Out, &long, true);
        one.drop_some(3);
        one.push(Stream::Out, b"end", true);
        assert_eq!((one.bytes, one.lost), (KeptCommand::OUTPUT, 3));
        assert!(one.get(0).is_some_and(|(_, kept)| kept[..] == long[3..]));
        assert_eq!(log.lost, 100 * 4096 - 131_072);
        assert!(log.get(log.first).is_some() && log.get(log.end()).is_none());
    }

    #[test]
    fn small_output_of_one_stream_is_one_chunk() {
        let mut log = Log::default();
        for (stream, text) in [(Stream::Out, "a"), (Stream::Out, "b"), (Stream::Err, "c")] {
            log.push(stream, text.as_bytes(), true);
        }
        log.push(Stream::Err, b"d", false);
        let texts: Vec<_> = log.chunks.iter().map(|(_, text)| text.clone()).collect();
        assert_eq!(texts, [b"ab".to_vec(), b"c".to_vec(), b"d".to_vec()]);
    }

    #[test]
    fn a_reader_is_sent_all_that_is_kept_within_its_room_and_then_the_end() {
        let session = Session(7);
        let mut said = Said::default();
        said.log.push(Stream::Out, b"a", false);
        said.log.push(Stream::Out, b"b", false);
        let (id, next, room) = (1, Some(0), 1);
        said.readers.insert(session, Reader { id, next, room });
        assert!(said.is_awaited());
        assert!(
            matches!(said.message(session), Some(ToHost::ExecOutput { data, .. }) if data == b"a")
        );
        said.outcome = Some(Ok(ExitStatus::Code(3)));
        assert_eq!(said.message(session), None, "no room");
        assert!(!said.is_awaited(), "it has the oldest");
        said.readers.get_mut(&session).expect("attached").room = 1;
        assert!(
            matches!(said.message(session), Some(ToHost::ExecOutput { data, .. }) if data == b"b")
        );
        let outcome = Ok(ExitStatus::Code(3));
        assert_eq!(
            said.message(session),
            Some(ToHost::ExecEnd { session, outcome })
        );
        assert_eq!(said.message(session), None);
    }
}
