//! Extents of the slices of a chain: so that the disk they show can be put
//! together without QEMU.

use crate::{Backing, DiskError, QemuImg, backing::opened, qemu_img::confined};
use serde::Deserialize;
use std::process;

/// A stretch of a disk that its slices hold something for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedRange {
    /// First byte of it on the disk.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// Content of the range.
    pub content: SliceContent,
}

/// Content of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceContent {
    /// Zeros.
    Zero,
    /// The bytes from `offset` on in the file of this slice, the upper ones first.
    Data {
        /// Index of the slice in the chain.
        slice: usize,
        /// Offset in its file.
        offset: u64,
    },
}

/// As `qemu-img map` tells it.
#[derive(Debug, Deserialize)]
struct Stretch {
    start: u64,
    length: u64,
    depth: usize,
    zero: bool,
    data: bool,
    #[serde(default)]
    offset: Option<u64>,
}

impl QemuImg {
    /// Lists the ranges that the slices of a chain, the upper ones first, hold over
    /// its last, in order. None of them may be written to; a process that has them open does no
    /// harm. What the slices say of each other is not believed, as in
    /// [`flatten`](Self::flatten).
    ///
    /// Cancel-safe: the program is killed.
    pub async fn changes(&self, chain: &[Backing]) -> Result<Vec<ChangedRange>, DiskError> {
        self.held_by(chain, chain.len().saturating_sub(1)).await
    }

    /// Lists all of the disk of a chain that lies over nothing: zero where no slice holds anything.
    /// Otherwise as [`changes`](Self::changes).
    pub async fn contents(&self, chain: &[Backing]) -> Result<Vec<ChangedRange>, DiskError> {
        self.held_by(chain, chain.len()).await
    }

    async fn held_by(
        &self,
        chain: &[Backing],
        slices: usize,
    ) -> Result<Vec<ChangedRange>, DiskError> {
        let path = chain.first().map(|slice| slice.path.clone());
        let path = path.unwrap_or_default();
        for slice in chain {
            slice.refuse_data_elsewhere()?;
        }
        let mut command = process::Command::new(&self.program);
        command
            .args(["map", "-U", "--output=json"])
            .arg(opened(chain).unwrap_or_default());
        let command = confined(command, chain, Vec::new(), &path).await?;
        let said = self.run(command, &path).await?;
        let nonsense = |why: String| DiskError::QemuImgSaid {
            path: path.clone(),
            why,
        };
        let stretches: Vec<Stretch> =
            serde_json::from_slice(&said).map_err(|error| nonsense(error.to_string()))?;
        let held = stretches
            .into_iter()
            .filter(|stretch| stretch.depth < slices);
        held.map(|stretch| {
            let content = match (stretch.data && !stretch.zero, stretch.offset) {
                (false, _) => SliceContent::Zero,
                (true, Some(offset)) => SliceContent::Data {
                    slice: stretch.depth,
                    offset,
                },
                // As slices of ours never are.
                (true, None) => return Err(nonsense("a slice is compressed".into())),
            };
            Ok(ChangedRange {
                start: stretch.start,
                length: stretch.length,
                content,
            })
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Format;
    use std::{
        fs::File,
        os::unix::fs::FileExt,
        path::{Path, PathBuf},
        process,
    };

    fn qemu_io(path: &Path, words: &str) {
        let done = process::Command::new("qemu-io")
            .args(["-c", words])
            .arg(path)
            .output()
            .expect("installed");
        assert!(done.status.success(), "{done:?}");
    }

    async fn slice_over(path: PathBuf, under: &Backing) -> Backing {
        let made = QemuImg::default().create_slice(&path, under, None).await;
        made.expect("made");
        Backing {
            path,
            format: Format::Qcow2,
        }
    }

    #[tokio::test]
    async fn what_slices_hold_is_found_by_four_kibibytes_and_what_lies_below_is_not_told() {
        let dir = tempfile::tempdir().expect("dir");
        let base = Backing {
            path: dir.path().join("base"),
            format: Format::Raw,
        };
        let file = File::create(&base.path).expect("created");
        file.write_all_at(&vec![1; 1 << 20], 0).expect("written");
        let lower = slice_over(dir.path().join("lower"), &base).await;
        qemu_io(&lower.path, "write -P 2 64k 8k");
        let upper = slice_over(dir.path().join("upper"), &lower).await;
        qemu_io(&upper.path, "write -P 3 68k 4k");
        qemu_io(&upper.path, "write -z 512k 128k");
        let chain = [upper.clone(), lower.clone(), base];
        let changes = QemuImg::default().changes(&chain).await.expect("told");
        let mut disk = vec![1; 1 << 20];
        for change in &changes {
            let at = usize::try_from(change.start).expect("small");
            let length = usize::try_from(change.length).expect("small");
            let part = &mut disk[at..at + length];
            match change.content {
                SliceContent::Zero => part.fill(0),
                SliceContent::Data { slice, offset } => File::open(&chain[slice].path)
                    .and_then(|file| file.read_exact_at(part, offset))
                    .expect("there"),
            }
        }
        let at = |kib: usize| disk[kib << 10];
        let seen = [0, 60, 64, 68, 72, 511, 512, 639, 640].map(at);
        assert_eq!(seen, [1, 1, 2, 3, 1, 1, 0, 0, 1]);
        let told: u64 = changes.iter().map(|change| change.length).sum();
        assert_eq!(told, (8 << 10) + (128 << 10), "{changes:?}");
    }

    #[tokio::test]
    async fn of_a_disk_that_lies_over_nothing_all_is_told_and_what_was_discarded_is_zero() {
        let dir = tempfile::tempdir().expect("dir");
        let base = Backing {
            path: dir.path().join("base"),
            format: Format::Raw,
        };
        let file = File::create(&base.path).expect("created");
        file.write_all_at(&vec![1; 1 << 20], 0).expect("written");
        let whole = slice_over(dir.path().join("whole"), &base).await;
        let rebased = process::Command::new("qemu-img")
            .args(["rebase", "-b", ""])
            .arg(&whole.path)
            .status();
        assert!(rebased.expect("installed").success());
        qemu_io(&whole.path, "discard 512k 128k");
        let chain = [whole.clone()];
        let all = QemuImg::default().contents(&chain).await.expect("told");
        let told: u64 = all.iter().map(|change| change.length).sum();
        assert_eq!(told, 1 << 20, "{all:?}");
        let zero = all
            .iter()
            .filter(|change| change.content == SliceContent::Zero);
        let zero: Vec<_> = zero.map(|it| (it.start, it.length)).collect();
        assert_eq!(zero, [(512 << 10, 128 << 10)]);
    }
}
