//! What a clone of `vmfork run` tells its parent, over TCP on the family's
//! network.

use forkyard_guestlink::Stream;
use forkyard_types::ExitStatus;
use serde::{Deserialize, Serialize};

/// From a clone to its parent; the end is acknowledged with one byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// Who this is: the first word.
    Hello {
        /// Number of the clone.
        id: u16,
    },
    /// The command wrote something.
    Output {
        /// Where to.
        stream: Stream,
        /// What.
        data: Vec<u8>,
    },
    /// It ended: the last word.
    End(Result<ExitStatus, String>),
}

/// What the command writes, as whole lines.
#[derive(Debug, Default)]
pub struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Takes bytes in; gives the lines they complete, without their ends.
    pub fn feed(&mut self, data: &[u8]) -> Vec<Vec<u8>> {
        self.partial.extend_from_slice(data);
        let mut lines: Vec<Vec<u8>> = self
            .partial
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        self.partial = lines.pop().unwrap_or_default();
        lines
    }

    /// What is left at the end: a last line without its end, if any.
    pub fn rest(&mut self) -> Option<Vec<u8>> {
        (!self.partial.is_empty()).then(|| std::mem::take(&mut self.partial))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_however_their_bytes_arrive() {
        let text = b"one\n\ntwo and\nthree";
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            let mut all = lines.feed(&text[..cut]);
            all.extend(lines.feed(&text[cut..]));
            all.extend(lines.rest());
            assert_eq!(
                all,
                [&b"one"[..], b"", b"two and", b"three"],
                "cut at {cut}"
            );
            assert_eq!(lines.rest(), None);
        }
    }
}
