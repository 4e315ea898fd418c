//! Lines by which a server fetches blocks from the server of another host.
//!
//! ```text
//! lacks blocks                                              has the snapshot
//!   {"order":{"most":N}}              ------------------>
//!                                     <------------------   [[first,count],…], the hottest first
//!   {"blocks":[[first,count],…]}      ------------------>
//!                                     <------------------   frames of a stream, with its end
//! ```
//!
//! Questions are lines of JSON, and are answered in order. Several are under way at a time. One
//! for no blocks is asked now and then where there is nothing to ask for: either end takes a line
//! that is silent for [`SILENCE`] for broken. Managers of both hosts carry the bytes.

use forkyard_replicate::{BlockRun, Purpose};
use forkyard_volume::BlockNo;
use forkyard_volume_store::{Asking, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::Duration,
};

/// Longest question, in bytes.
const MAX_QUESTION: u64 = 64 << 10;
/// Time after which a line without a word is broken.
const SILENCE: Duration = Duration::from_secs(10);
/// Time between two words where there is nothing to say.
const IDLE: Duration = Duration::from_millis(500);
/// Blocks of one question, and questions under way. A fill has 4 MiB under way at most, as much as a
/// link of 200 Mbit/s and 160 ms holds; readers ask for what they wait for, at once.
const FILL: (usize, usize) = (256, 4);
const DEMAND: (usize, usize) = (64, 64);
/// Blocks whose order is asked for.
const ORDERED: usize = 16 << 10;
/// Bytes of an answer that are written together.
const PIECE: usize = 256 << 10;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Question {
    /// Runs of blocks that were read or written most.
    Order {
        /// Blocks of them all.
        most: usize,
    },
    /// Contents of blocks: first ones and counts.
    Blocks(Vec<(u64, u64)>),
}

fn run((first, count): (u64, u64)) -> BlockRun {
    BlockRun {
        first: BlockNo(first),
        count,
    }
}

fn pair(run: &BlockRun) -> (u64, u64) {
    (run.first.0, run.count)
}

fn say(mut stream: &UnixStream, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Answers questions for blocks of a snapshot until the other host leaves.
pub(crate) fn answer(
    stream: &UnixStream,
    reader: &mut BufReader<&UnixStream>,
    (store, snapshot): (&Store, &str),
    asks: (Option<&str>, Purpose),
) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    loop {
        let mut line = Vec::new();
        reader
            .by_ref()
            .take(MAX_QUESTION)
            .read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        match serde_json::from_slice(&line)? {
            Question::Order { most } => {
                let order: Vec<_> = store.hottest(most.min(ORDERED)).iter().map(pair).collect();
                say(stream, &order)?;
            }
            Question::Blocks(blocks) => {
                let blocks: Vec<_> = blocks.into_iter().map(run).collect();
                let mut out = BufWriter::with_capacity(PIECE, stream);
                // The other end sees that the answer has no end.
                let sent = store.send_blocks(snapshot, &blocks, asks, &mut out);
                sent.map_err(io::Error::other)?;
                out.flush()?;
            }
        }
    }
}

/// Asks for blocks until none are lacking, or the other host leaves.
pub(crate) fn ask(
    stream: &UnixStream,
    reader: &mut BufReader<&UnixStream>,
    (store, asking): (&Store, Asking),
    purpose: Purpose,
) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    if purpose == Purpose::Fill {
        say(stream, &Question::Order { most: ORDERED })?;
        let mut order = String::new();
        reader
            .by_ref()
            .take(MAX_QUESTION * 16)
            .read_line(&mut order)?;
        let order: Vec<(u64, u64)> = serde_json::from_str(&order)?;
        asking.hottest(&order.into_iter().map(run).collect::<Vec<_>>());
    }
    let (most, under_way) = match purpose {
        Purpose::Demand => DEMAND,
        Purpose::Fill => FILL,
    };
    let (questions, asked) = sync_channel::<Vec<BlockRun>>(under_way);
    thread::scope(|scope| {
        let asking = &asking;
        let taken = scope.spawn(move || {
            let taken = take_answers(&asked, reader, asking);
            // The thread that asks is told, too.
            let _ = stream.shutdown(Shutdown::Both);
            taken
        });
        let asked = loop {
            let next = match asking.next(most, IDLE) {
                Ok(next) => next,
                // All is here, or nothing is wanted any more.
                Err(_) => break Ok(()),
            };
            // Nothing is left to ask for: it may be all here.
            let is_idle = next.is_empty() && purpose == Purpose::Fill;
            if is_idle && store.survey().is_err() {
                break Ok(());
            }
            if let Err(error) = say(stream, &Question::Blocks(next.iter().map(pair).collect())) {
                break Err(error);
            }
            if questions.send(next).is_err() {
                break Ok(());
            }
        };
        drop(questions);
        let taken = taken.join().unwrap_or(Ok(()));
        taken.map_err(io::Error::other).and(asked)
    })
}

fn take_answers(
    asked: &Receiver<Vec<BlockRun>>,
    reader: &mut impl Read,
    asking: &Asking,
) -> Result<(), StoreError> {
    for question in asked {
        asking.take(&question, reader)?;
    }
    Ok(())
}
