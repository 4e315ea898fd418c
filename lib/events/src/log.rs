//! The ring that events are kept in, and positions in it. Reads no clock.

use forkyard_types::{
    Cursor, EventSubject, HostEvent, Lagged, MigrationOver, Occurrence, Since, StreamId, VmChanged,
    VmRemoved, VmSilence,
};
use std::{collections::VecDeque, num::NonZeroUsize, sync::Arc};

/// Most bytes of a text in an event: what fails may say any amount.
const TEXT: usize = 512;
/// Most reasons in an event.
const REASONS: usize = 8;

/// The last events of a stream.
#[derive(Debug)]
pub struct Log {
    stream: StreamId,
    capacity: NonZeroUsize,
    /// Number of events so far.
    count: u64,
    kept: VecDeque<Arc<HostEvent>>,
}

/// Position of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Last event that was read.
    seq: u64,
    /// Not a position of this stream: an unknown number was missed.
    foreign: bool,
}

impl Log {
    /// A stream without events, which keeps the last `capacity` ones.
    pub fn new(stream: StreamId, capacity: NonZeroUsize) -> Self {
        Self {
            stream,
            capacity,
            count: 0,
            kept: VecDeque::new(),
        }
    }

    /// Adds an event, and drops the oldest one if there is no room.
    pub fn append(
        &mut self,
        time_ms: u64,
        subject: EventSubject,
        what: Occurrence,
    ) -> Arc<HostEvent> {
        self.count += 1;
        let event = Arc::new(HostEvent {
            stream: self.stream,
            seq: self.count,
            time_ms,
            kind: what.kind(),
            subject,
            what: bounded(what),
        });
        if self.kept.len() >= self.capacity.get() {
            self.kept.pop_front();
        }
        self.kept.push_back(event.clone());
        event
    }

    /// Returns the position of a reader that has just read the newest event.
    pub fn end(&self) -> Cursor {
        self.cursor(self.count)
    }

    /// Returns the position after which a reader wants events: the end, unless it says.
    pub(crate) fn position(&self, since: Option<Since>) -> Position {
        let (seq, foreign) = match since {
            None => (self.count, false),
            Some(Since::Seq(seq)) => (seq, seq > self.count),
            Some(Since::Cursor(cursor)) => {
                let foreign = cursor.stream != self.stream || cursor.seq > self.count;
                (cursor.seq, foreign)
            }
        };
        Position { seq, foreign }
    }

    /// Returns the event after a position and moves the position behind it. That is `lagged`,
    /// with the position of the last event that is gone, if the next one is gone.
    pub(crate) fn next(&self, at: &mut Position) -> Option<Arc<HostEvent>> {
        let gone = self.count - u64::try_from(self.kept.len()).unwrap_or(self.count);
        let missed = match (at.foreign, at.seq < gone) {
            (true, _) => Some(None),
            (false, true) => Some(Some(gone - at.seq)),
            (false, false) => None,
        };
        if let Some(missed) = missed {
            *at = Position {
                seq: gone,
                foreign: false,
            };
            return Some(Arc::new(self.lagged(gone, missed)));
        }
        let index = usize::try_from(at.seq - gone).ok()?;
        let event = self.kept.get(index)?;
        at.seq = event.seq;
        Some(event.clone())
    }

    pub(crate) fn cursor_of(&self, at: Position) -> Cursor {
        self.cursor(at.seq)
    }

    fn cursor(&self, seq: u64) -> Cursor {
        Cursor {
            stream: self.stream,
            seq,
        }
    }

    fn lagged(&self, seq: u64, missed: Option<u64>) -> HostEvent {
        let what = Occurrence::Lagged(Lagged { missed });
        HostEvent {
            stream: self.stream,
            seq,
            // As old as what follows.
            time_ms: self.kept.front().map_or(0, |oldest| oldest.time_ms),
            kind: what.kind(),
            subject: EventSubject::default(),
            what,
        }
    }
}

/// Cuts texts that are too long.
fn bounded(mut what: Occurrence) -> Occurrence {
    match &mut what {
        Occurrence::VmChanged(VmChanged { failure: text, .. })
        | Occurrence::VmRemoved(VmRemoved { failure: text, .. })
        | Occurrence::MigrationOver(MigrationOver { why: text, .. })
        | Occurrence::VmSilence(VmSilence { why: text }) => text.iter_mut().for_each(cut),
        Occurrence::ForkOver(over) => {
            over.why.truncate(REASONS);
            over.why.iter_mut().for_each(cut);
        }
        Occurrence::VmCreated(_)
        | Occurrence::ForkBegun(_)
        | Occurrence::ForkReached(_)
        | Occurrence::MigrationReached(_)
        | Occurrence::TicketChanged(_)
        | Occurrence::CheckpointMade(_)
        | Occurrence::CheckpointRemoved(_)
        | Occurrence::ImageChanged(_)
        | Occurrence::NodeChanged(_)
        | Occurrence::TransferOver(_)
        | Occurrence::Lagged(_) => {}
    }
    what
}

fn cut(text: &mut String) {
    if text.len() > TEXT {
        text.truncate(text.floor_char_boundary(TEXT));
        text.push('…');
    }
}
