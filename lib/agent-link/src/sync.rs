//! Frames over anything that blocks.

use crate::{Decoder, EncodeError, FrameError, encode, frame::AT_ONCE};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};

/// Reason why no message could be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The stream failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The bytes it carries are no messages.
    #[error("the peer sent an invalid message")]
    Frame(#[from] FrameError),
}

/// Reads messages, one after the other.
#[derive(Debug)]
pub struct FrameReader<R> {
    inner: R,
    decoder: Decoder,
}

impl<R: Read> FrameReader<R> {
    /// Over a stream at its beginning.
    pub fn new(inner: R) -> Self {
        Self {
            inner,
            decoder: Decoder::default(),
        }
    }

    /// Returns the underlying reader.
    pub fn get_ref(&self) -> &R {
        &self.inner
    }

    /// Gives up a message that has begun: the rest of it will never come.
    pub fn abandon(&mut self) {
        self.decoder.abandon();
    }

    /// Blocks until there is a message; none at the end of the stream.
    pub fn read_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ReadError> {
        loop {
            if let Some(message) = self.decoder.next_message() {
                return Ok(Some(message?));
            }
            match self.inner.read(self.decoder.room(AT_ONCE)) {
                Ok(0) => return Ok(None),
                Ok(length) => self.decoder.fed(length),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Writes one message. Blocks until the stream has taken all of it.
pub fn send<T: Serialize>(stream: &mut impl Write, message: &T) -> io::Result<()> {
    let frame = encode(message).map_err(|error: EncodeError| io::Error::other(error))?;
    stream.write_all(&frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ask;
    use forkyard_types::TicketId;

    #[test]
    fn what_is_sent_is_read_until_the_end() {
        let mut stream = Vec::new();
        let ticket = TicketId::random();
        let asked = [Ask::Join { ticket }, Ask::Kill { ticket }];
        for ask in &asked {
            send(&mut stream, ask).expect("a vector takes all");
        }
        let mut reader = FrameReader::new(&stream[..]);
        for ask in asked {
            assert_eq!(reader.read_message().expect("whole"), Some(ask));
        }
        assert_eq!(reader.read_message::<Ask>().expect("ended"), None);
    }
}
