//! State that a pager that dies leaves to the next: the images there were, and
//! the files that were open.
//!
//! A file in memory, of lines; the last line about an image holds. A line is
//! whole or it was never written: the end of a process cuts off at most the
//! last.

use crate::catalog::Node;
use forkyard_sys_host::memory::anonymous_file;
use forkyard_types::{ByteCount, ImageId, PageCount};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

/// Requests remembered as answered: more than can be on their way at once.
const ANSWERED: usize = 1024;
/// A journal longer than this is written anew, if that makes it much shorter.
const LONG: u64 = 1 << 20;

/// Number of a layer, for as long as any pager serves this mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct LayerNo(pub u64);

/// One image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub image: ImageId,
    pub pages: PageCount,
    pub retired: bool,
    pub files: u32,
    pub state: KeptState,
}

/// State of an image in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeptState {
    Promised,
    Failed,
    Ready {
        parent: Option<ImageId>,
        published: PageCount,
        /// The bottom first.
        layers: Vec<LayerNo>,
    },
}

impl Kept {
    /// The layers it is made of, the bottom first.
    pub fn layers(&self) -> &[LayerNo] {
        match &self.state {
            KeptState::Ready { layers, .. } => layers,
            KeptState::Promised | KeptState::Failed => &[],
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// State of an image (`None`: it is gone), and the request that made it so.
    /// In one line: the request counts as answered if and only if it had effect.
    Image {
        node: Node,
        kept: Option<Kept>,
        request: Option<u64>,
    },
    /// A request that was carried out.
    Answered(u64),
}

/// Content of a journal.
#[derive(Debug, Default)]
pub(crate) struct RecoveredState {
    pub images: BTreeMap<Node, Kept>,
    /// The next image gets a number that none ever had.
    pub next: u64,
    pub answered: Answered,
}

/// Requests that were carried out, the newest last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered(VecDeque<u64>);

impl Answered {
    pub fn add(&mut self, request: u64) {
        if self.0.len() == ANSWERED {
            self.0.pop_front();
        }
        self.0.push_back(request);
    }

    pub fn has(&self, request: u64) -> bool {
        self.0.contains(&request)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    end: u64,
    answered: Answered,
}

impl Journal {
    /// An empty one.
    pub fn new() -> io::Result<Self> {
        let file = anonymous_file("forkyard-journal", ByteCount(0))?;
        Ok(Self {
            file,
            end: 0,
            answered: Answered::default(),
        })
    }

    /// Reads what another pager wrote; it is gone on with.
    pub fn open(mut file: File) -> io::Result<(Self, RecoveredState)> {
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut text)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n');
        let whole = whole.map_or(0, |last| last + 1);
        let mut legacy = RecoveredState::default();
        for line in text[..whole].split_inclusive(|byte| *byte == b'\n') {
            legacy.take(serde_json::from_slice(line)?);
        }
        let journal = Self {
            file,
            end: whole as u64,
            answered: legacy.answered.clone(),
        };
        Ok((journal, legacy))
    }

    /// Returns the file that the next pager reads it from.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Notes how an image is now, and which request made it so.
    pub fn note(&mut self, node: Node, kept: Option<Kept>, request: Option<u64>) -> io::Result<()> {
        let text = line(&Line::Image {
            node,
            kept,
            request,
        })?;
        request.into_iter().for_each(|n| self.answered.add(n));
        self.write(&text)
    }

    /// Notes that a request was carried out.
    pub fn answer(&mut self, request: u64) -> io::Result<()> {
        self.answered.add(request);
        self.write(&line(&Line::Answered(request))?)
    }

    /// Requests that were carried out, the newest last.
    pub fn answered(&self) -> Vec<u64> {
        self.answered.0.iter().copied().collect()
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        self.file.write_all_at(text, self.end)?;
        self.end += text.len() as u64;
        Ok(())
    }

    /// Tells whether it is worth writing anew for so many images.
    pub fn is_long(&self, images: usize) -> bool {
        self.end > LONG.max(images as u64 * 4096)
    }
}

impl RecoveredState {
    fn take(&mut self, line: Line) {
        match line {
            Line::Image {
                node,
                kept,
                request,
            } => {
                request.into_iter().for_each(|n| self.answered.add(n));
                self.next = self.next.max(node.0.saturating_add(1));
                match kept {
                    Some(kept) => self.images.insert(node, kept),
                    None => self.images.remove(&node),
                };
            }
            Line::Answered(request) => self.answered.add(request),
        }
    }
}

fn line(line: &Line) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(files: u32, layers: Vec<u64>) -> Kept {
        Kept {
            image: ImageId::random(),
            pages: PageCount(7),
            retired: files > 3,
            files,
            state: KeptState::Ready {
                parent: Some(ImageId::random()),
                published: PageCount(3),
                layers: layers.into_iter().map(LayerNo).collect(),
            },
        }
    }

    fn reread(journal: &Journal) -> RecoveredState {
        let file = journal.file().try_clone().expect("clones");
        Journal::open(file).expect("reads").1
    }

    #[test]
    fn last_word_about_an_image_holds() {
        let mut journal = Journal::new().expect("memfd");
        let (early, late) = (kept(1, vec![1]), kept(2, vec![1, 2]));
        journal
            .note(Node(2), Some(early.clone()), None)
            .expect("writes");
        journal
            .note(Node(3), Some(early), Some(10))
            .expect("writes");
        journal
            .note(Node(2), Some(late.clone()), Some(12))
            .expect("writes");
        journal.note(Node(3), None, None).expect("writes");
        let legacy = reread(&journal);
        assert_eq!(legacy.images, BTreeMap::from([(Node(2), late)]));
        assert_eq!(legacy.next, 4);
        assert!(legacy.answered.has(10) && legacy.answered.has(12));
        assert!(!legacy.answered.has(14));
    }

    proptest! {
        /// Cut off anywhere, it says what it said before the line that was cut,
        /// and can be gone on with.
        #[test]
        fn journal_cut_short_has_lost_no_whole_line(count in 1..8u64, cut in 0..400u64) {
            let mut journal = Journal::new().expect("memfd");
            let mut ends = vec![0];
            for node in 0..count {
                journal.note(Node(node), Some(kept(1, vec![node])), None).expect("writes");
                ends.push(journal.end);
            }
            let left = journal.end.saturating_sub(cut);
            journal.file.set_len(left).expect("cuts");
            let whole = ends.iter().filter(|end| **end <= left).count() - 1;
            let (mut again, legacy) = Journal::open(journal.file).expect("reads");
            prop_assert_eq!(legacy.images.len(), whole);
            again.note(Node(99), Some(kept(2, Vec::new())), None).expect("writes");
            prop_assert_eq!(reread(&again).images.len(), whole + 1);
        }
    }
}
