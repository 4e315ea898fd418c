//! The start of a connection to a QEMU that another client may have just left.
//!
//! QEMU gives what a command returns to the client that is connected when it is done. So
//! a client that takes the place of one that was killed is told of that one's
//! command, before the greeting or after it, and taken for its own the answer
//! would shift all that follow. Therefore the first command bears a mark that no
//! other has: what comes before its answer is not for this client, and as QEMU
//! carries commands out one by one, nothing after it is another's.

use super::bounded::Bounded;
use qapi::{
    futures::{QapiStream, QmpStreamTokio},
    qmp::QapiCapabilities,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{self, Cursor};
use tokio::{
    io::{
        AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Chain, ReadHalf,
        WriteHalf,
    },
    net::UnixStream,
};

/// More than any answer that a client before may have asked for.
const AT_MOST: u64 = 4 << 20;

/// Stream that is read after the handshake: the greeting again, and then the
/// rest.
pub(super) type Reading =
    QmpStreamTokio<Chain<Cursor<Vec<u8>>, BufReader<Bounded<ReadHalf<UnixStream>>>>>;
/// Stream that commands are written to.
pub(super) type Writing = QmpStreamTokio<WriteHalf<UnixStream>>;

/// The answer to the marked command, among others.
#[derive(Deserialize)]
struct Answer {
    id: Option<Value>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    desc: String,
}

/// Shakes hands. Fails if the peer hangs up before, refuses, or says more than
/// 4 MiB that is not for this client. Not cancel-safe: the connection is of no
/// use then.
pub(super) async fn shake(stream: UnixStream) -> io::Result<QapiStream<Reading, Writing>> {
    let (reading, mut writing) = tokio::io::split(stream);
    let mut lines = BufReader::new(Bounded::new(reading)).take(AT_MOST);
    let mut greeting = Vec::new();
    let is_greeting = |line: &[u8]| serde_json::from_slice::<QapiCapabilities>(line).is_ok();
    while !is_greeting(&greeting) {
        next(&mut lines, &mut greeting).await?;
    }

    let mark = json!(fastrand::u64(..));
    let command = json!({"execute": "qmp_capabilities", "id": mark});
    writing.write_all(format!("{command}\n").as_bytes()).await?;
    let mut line = Vec::new();
    let refused = loop {
        next(&mut lines, &mut line).await?;
        match serde_json::from_slice::<Answer>(&line) {
            Ok(Answer { id, error }) if id.as_ref() == Some(&mark) => break error,
            // An event, the rest of a line, or the answer to a client before.
            Ok(_) | Err(_) => {}
        }
    };
    if let Some(Refusal { desc }) = refused {
        return Err(io::Error::other(desc));
    }

    let rest = Cursor::new(greeting).chain(lines.into_inner());
    // Opening is no more than reading the greeting.
    let greeted = QmpStreamTokio::open_split(rest, writing).await?;
    Ok(greeted.stream)
}

/// Reads one line in place of another.
async fn next(
    lines: &mut tokio::io::Take<BufReader<Bounded<ReadHalf<UnixStream>>>>,
    line: &mut Vec<u8>,
) -> io::Result<()> {
    line.clear();
    match lines.read_until(b'\n', line).await? {
        0 if lines.limit() == 0 => Err(io::Error::other("too much is said before it")),
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}
