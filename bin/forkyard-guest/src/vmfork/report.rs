//! Words between the parent of a job and its clones, over TCP on the family's
//! network.
//!
//! ```text
//! clone  --Hello--> parent     the key: drawn before the fork, in memory alone
//! parent --Run----> clone      as many as it likes, side by side
//! parent --Input--> clone, clone --Taken--> parent     one piece at a time
//! clone  --Output, End--> parent
//! parent --Leave--> clone      the clone ends
//! ```

use forkyard_types::ExitStatus;
use serde::{Deserialize, Serialize};
use std::{fmt, io, time::Duration};

/// Proof of being a clone of this job: its memory alone has the key.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key([u8; 16]);

impl Key {
    /// Draws a new one.
    pub fn draw() -> io::Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(bytes))
    }

    /// Compares without telling by its time how much was right.
    pub fn is(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        pairs.fold(0, |differs, (one, two)| differs | (one ^ two)) == 0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Number of a command within its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskNo(pub u32);

/// Command for a clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Number that reports of it carry.
    pub number: TaskNo,
    /// Program and arguments.
    pub words: Vec<String>,
    /// Variables beside those that the clone has from its parent.
    pub variables: Vec<(String, String)>,
    /// Longest time it may take.
    pub limit: Option<Duration>,
    /// Name of a folder of its own that comes home when it has ended.
    pub folder: Option<String>,
    /// Source of its standard input.
    pub input: Input,
}

/// Source of a command's standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// There is none.
    Empty,
    /// [`Order::Input`] brings it.
    Sent,
}

/// From the parent to a clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Run this.
    Run(Task),
    /// More input of a command. The next follows when this was [`Report::Taken`].
    Input {
        /// Number of the command.
        number: TaskNo,
        /// The bytes; none at the end of the input.
        data: Vec<u8>,
    },
    /// Nothing; the parent is there.
    Alive,
    /// End, with these codes: of the clone, and of its numbers after the first.
    Leave {
        /// Exit status of the first.
        status: u8,
        /// Those of the others.
        others: Vec<u8>,
    },
}

/// Receiver of what a command gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Into {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
    /// Content of the folder, as a tar stream.
    Folder,
}

/// Outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// The command ran.
    Exited(ExitStatus),
    /// The command took longer than it may, and was killed.
    TimedOut,
    /// The command could not be started, or its folder not be read.
    Failed(String),
}

impl Ended {
    /// The code a shell would report, 124 for one that took too long (as
    /// timeout(1)), 127 for one that could not be started.
    pub fn code(&self) -> u8 {
        match self {
            Self::Exited(status) => status.shell_code(),
            Self::TimedOut => 124,
            Self::Failed(_) => 127,
        }
    }
}

/// From a clone to its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The first word.
    Hello {
        /// Number of the clone.
        id: u16,
        /// The job's.
        key: Key,
    },
    /// Nothing; the clone is there.
    Alive,
    /// A command gave something.
    Output {
        /// Number of the command.
        number: TaskNo,
        /// Destination.
        into: Into,
        /// Bytes of output.
        data: Vec<u8>,
    },
    /// A command has read the input that it was sent.
    Taken {
        /// Number of the command.
        number: TaskNo,
    },
    /// A command ended: the last word on it.
    End {
        /// Number of the command.
        number: TaskNo,
        /// End of the command.
        ended: Ended,
    },
}

/// Output of a command, as whole lines.
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

    /// Returns the rest at the end: a last line without its end, if any.
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

    #[test]
    fn a_key_is_itself_alone_and_tells_nothing_of_itself() {
        let key = Key::draw().expect("drawn");
        assert!(key.is(&key));
        for at in 0..key.0.len() {
            let mut other = key;
            other.0[at] ^= 1;
            assert!(!key.is(&other), "differs at {at}");
        }
        assert_eq!(format!("{key:?}"), "Key");
    }
}
