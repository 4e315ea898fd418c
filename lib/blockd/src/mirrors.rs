//! Lines by which a volume is kept at another host, flush by flush.
//!
//! ```text
//! at home here                                     holds a copy
//!                               <----------------  {"holding":[snapshots]}
//!   stream of a snapshot        ---------------->
//!                               <----------------  {"held":snapshot}, once it is durable
//!   empty line, now and then    ---------------->
//!                               <----------------  empty line
//! ```
//!
//! Anything else that the other host says ends the line; `promoted` fences the writer here.

use forkyard_volume_store::{Blame, Library, PATIENCE, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

/// Longest word of the other host, in bytes.
const MAX_WORD: u64 = 256 << 10;
/// Time after which a line without a word is broken.
const SILENCE: Duration = Duration::from_secs(10);
/// Time for which an answer to a stream is waited for: it has to be on a disk there. One that comes later
/// is heard when the next line begins.
const DURABLE: Duration = PATIENCE;
/// Time between two words where there is nothing to say.
const IDLE: Duration = Duration::from_millis(500);
/// Bytes of a stream that are written together.
const PIECE: usize = 256 << 10;

/// Word of the host that holds a copy.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Word {
    /// Snapshots that it has, before the first stream.
    Holding(Vec<String>),
    /// A snapshot is held, durably.
    Held(String),
    /// The copy is at home there.
    Promoted {},
    /// The snapshot cannot be held.
    Failed(String),
}

fn say(mut stream: &UnixStream, word: &Word) -> io::Result<()> {
    let mut line = serde_json::to_vec(word)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn hear(reader: &mut BufReader<&UnixStream>) -> io::Result<Word> {
    let mut line = Vec::new();
    reader
        .by_ref()
        .take(MAX_WORD)
        .read_until(b'\n', &mut line)?;
    match line.is_empty() {
        true => Err(io::ErrorKind::UnexpectedEof.into()),
        false => Ok(serde_json::from_slice(&line)?),
    }
}

/// Has a host hold a volume until either leaves.
pub(crate) fn push(
    stream: &UnixStream,
    reader: &mut BufReader<&UnixStream>,
    store: &Arc<Store>,
    host: &str,
) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let theirs = match hear(reader)? {
        Word::Holding(theirs) => theirs,
        word @ (Word::Held(_) | Word::Promoted {} | Word::Failed(_)) => {
            return ended(store, host, word);
        }
    };
    let mut line = store.mirror(host, &theirs).map_err(io::Error::other)?;
    loop {
        let Some(round) = line.next(IDLE).map_err(io::Error::other)? else {
            let mut stream = stream;
            stream.write_all(b"\n")?;
            stream.set_read_timeout(Some(SILENCE))?;
            if let Some(b'\n') = reader.fill_buf()?.first() {
                reader.consume(1);
                line.heard();
                continue;
            }
            return ended(store, host, hear(reader)?);
        };
        let mut out = BufWriter::with_capacity(PIECE, stream);
        line.send(&round, &mut out).map_err(io::Error::other)?;
        out.flush()?;
        drop(out);
        stream.set_read_timeout(Some(DURABLE))?;
        let word = hear(reader)?;
        match &word {
            Word::Held(snapshot) if *snapshot == round.snapshot => {
                line.held(round).map_err(io::Error::other)?;
            }
            Word::Holding(_) | Word::Held(_) | Word::Promoted {} | Word::Failed(_) => {
                return ended(store, host, word);
            }
        }
    }
}

/// Draws the conclusion from a word that ends a line.
fn ended(store: &Store, host: &str, word: Word) -> io::Result<()> {
    let volume = store.name();
    match word {
        Word::Promoted {} => {
            tracing::warn!(
                volume,
                host,
                "the copy there is at home now: its writer here is fenced"
            );
            store.promoted_at(host).map_err(io::Error::other)
        }
        Word::Failed(why) => {
            tracing::warn!(volume, host, why, "the copy there cannot be kept");
            Ok(())
        }
        Word::Holding(_) | Word::Held(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Holds a copy for a host until it leaves.
pub(crate) fn hold(
    stream: &UnixStream,
    reader: &mut BufReader<&UnixStream>,
    library: &Library,
    (name, host): (&str, &str),
) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let holding = match library.holding(name, host) {
        Ok(holding) => holding,
        Err(error) => return say(stream, &refusal(&error)),
    };
    say(stream, &Word::Holding(holding))?;
    loop {
        match reader.fill_buf()?.first() {
            None => return Ok(()),
            Some(b'\n') => {
                reader.consume(1);
                // A word to a copy that was promoted meanwhile.
                if let Err(error) = library.holding(name, host) {
                    return say(stream, &refusal(&error));
                }
                let mut stream = stream;
                stream.write_all(b"\n")?;
                continue;
            }
            Some(_) => {}
        }
        match library.hold(name, host, reader) {
            Ok(snapshot) => say(stream, &Word::Held(snapshot))?,
            // What else follows is no stream.
            Err(error) => return say(stream, &refusal(&error)),
        }
    }
}

fn refusal(error: &StoreError) -> Word {
    match (error, error.blame()) {
        (StoreError::IsPromoted(_), _) | (_, Blame::Fenced) => Word::Promoted {},
        (error, _) => Word::Failed(error.to_string()),
    }
}
