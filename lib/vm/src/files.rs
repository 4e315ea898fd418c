//! Files of guests: a program of the agent's own does the work there, as a command
//! whose input and output are the files. Nothing of the image takes part in it.
//!
//! A guest that fails, or is hostile, fails its request: what it says is bounded, and
//! bytes pass through without being kept.

use crate::{InUse, Used, Vm, VmError, alive::Lost};
use forkyard_agent_link::{Command, Exec, ExecControls, ExecOut, Stream};
use forkyard_types::{
    ErrorKind, ExitStatus, FileEntry, FileRead, FileWatch, FileWrite, FilesWritten, GuestUsage,
};
use std::{
    future::pending,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::time::sleep;

/// Program of the agent, in every guest.
pub(crate) const PROGRAM: &str = "/opt/forkyard/bin/forkyard-guest";
/// Most bytes of what a guest says beside the content.
const MOST_SAID: usize = 4 << 10;
/// Most bytes of an answer that is no content.
const MOST_ANSWER: usize = 8 << 20;
/// Longest time for which a guest may neither say nor take anything. Its agent answers all the while: a
/// program in it, or a file system of it, hangs.
const STILL: Duration = Duration::from_secs(120);
/// Likewise, of the removal of a tree, which says nothing until it is done.
const REMOVAL: Duration = Duration::from_secs(1800);
/// Time between two looks at whether a VM is paused.
const LOOK: Duration = Duration::from_secs(1);

/// A program of the agent's that has been started for files.
struct Begun {
    running: Exec,
    /// Not kept by a copy: a VM can be removed while it lasts.
    vm: Weak<Vm>,
    lost: Lost,
    in_use: InUse,
}

/// Content that leaves a guest. Dropped before its end, the guest stops.
#[derive(Debug)]
pub struct FilesOut {
    running: Exec,
    vm: Weak<Vm>,
    lost: Lost,
    _in_use: InUse,
    /// The first of it, which tells that there is some.
    first: Option<Vec<u8>>,
    said: Vec<u8>,
    over: bool,
    /// Longest time in which nothing comes; none of a folder that is watched.
    still: Option<Duration>,
}

/// Content that goes into a guest. Dropped before its end, the guest keeps
/// nothing that is not whole.
#[derive(Debug)]
pub struct FilesIn {
    running: Exec,
    vm: Weak<Vm>,
    lost: Lost,
    _in_use: InUse,
    input: ExecControls,
    framed: bool,
    /// Bytes of content.
    pushed: u64,
    answer: Vec<u8>,
    said: Vec<u8>,
    end: Option<Result<(), VmError>>,
}

impl Used {
    /// Starts to read a file or a folder as a tar stream. Returns once there is some of
    /// it. Cancel-safe.
    pub async fn read_tree(self, path: String) -> Result<FilesOut, VmError> {
        self.files_out(vec!["send".into(), path], STILL).await
    }

    /// Starts to read a file. Returns once there is some of it, or its end.
    /// Cancel-safe.
    pub async fn read_file(self, wanted: FileRead) -> Result<FilesOut, VmError> {
        let number = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
        let words = vec![
            "read".into(),
            wanted.path,
            number(wanted.offset),
            number(wanted.limit),
        ];
        self.files_out(words, STILL).await
    }

    /// Starts to unpack a tar stream in a guest. Cancel-safe.
    pub async fn write_tree(self, path: String) -> Result<FilesIn, VmError> {
        let begun = self.files(vec!["receive".into(), path]).await?;
        Ok(FilesIn::new(begun, false))
    }

    /// Starts to replace a file. Cancel-safe.
    pub async fn write_file(self, wanted: FileWrite) -> Result<FilesIn, VmError> {
        let mode = wanted.mode.unwrap_or_default();
        let bits = u32::from_str_radix(&mode, 8);
        if !mode.is_empty() && !bits.is_ok_and(|bits| bits <= 0o7777) {
            return Err(VmError::Invalid(format!(
                "mode {mode:?} is no octal number such as 755"
            )));
        }
        let parents = if wanted.parents { "parents" } else { "" };
        let words = vec!["write".into(), wanted.path, mode, parents.into()];
        let begun = self.files(words).await?;
        Ok(FilesIn::new(begun, true))
    }

    /// Tells of a file; of a link itself. Cancel-safe.
    pub async fn stat_file(self, path: String) -> Result<FileEntry, VmError> {
        let answer = self.files_answer(vec!["stat".into(), path]).await?;
        understood(&answer)
    }

    /// Tells what a guest uses of its machine. Cancel-safe.
    pub async fn usage(self) -> Result<GuestUsage, VmError> {
        let answer = self.files_answer(vec!["usage".into(), "/".into()]).await?;
        understood(&answer)
    }

    /// Tells of each file in a folder, by name. Cancel-safe.
    pub async fn list_files(self, path: String) -> Result<Vec<FileEntry>, VmError> {
        let answer = self.files_answer(vec!["list".into(), path]).await?;
        let lines = answer
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        let mut entries: Vec<FileEntry> = lines.map(understood).collect::<Result<_, _>>()?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Removes a file, or a folder. Not cancel-safe: what was asked may be done in part.
    pub async fn remove_file(self, path: String, recursive: bool) -> Result<(), VmError> {
        let recursive = if recursive { "recursive" } else { "" };
        let words = vec!["remove".into(), path, recursive.into()];
        self.files_answer_within(words, REMOVAL).await.map(drop)
    }

    /// Makes a folder, and those above it that are not there. Not cancel-safe: some of them may be made.
    pub async fn make_folder(self, path: String) -> Result<(), VmError> {
        self.files_answer(vec!["folder".into(), path])
            .await
            .map(drop)
    }

    /// Moves a file or folder within a guest; a file that is there is replaced. Not cancel-safe.
    pub async fn move_file(self, path: String, to: String) -> Result<(), VmError> {
        if to.is_empty() || to.contains('\0') {
            return Err(VmError::Invalid(
                "the new path is empty, or has a zero byte".into(),
            ));
        }
        self.files_answer(vec!["move".into(), path, to])
            .await
            .map(drop)
    }

    /// Watches a folder: lines of JSON, each a [`forkyard_types::FileEvent`], but empty ones. Returns
    /// once it is watched; ends with the folder. Cancel-safe.
    pub async fn watch_files(self, wanted: FileWatch) -> Result<FilesOut, VmError> {
        let recursive = if wanted.recursive { "recursive" } else { "" };
        let words = vec!["watch".into(), wanted.path, recursive.into()];
        let mut out = self.files_out(words, STILL).await?;
        out.still = None;
        Ok(out)
    }

    async fn files(self, words: Vec<String>) -> Result<Begun, VmError> {
        if words
            .get(1)
            .is_none_or(|path| path.is_empty() || path.contains('\0'))
        {
            return Err(VmError::Invalid(
                "the path is empty, or has a zero byte".into(),
            ));
        }
        let mut argv = vec![PROGRAM.to_owned(), "files".to_owned()];
        argv.extend(words);
        let body = self.answering()?;
        let running = body.guest.exec(Command::of_root(argv)).await?;
        Ok(Begun {
            running,
            vm: Arc::downgrade(&self.vm),
            lost: self.lost(),
            in_use: self.in_use,
        })
    }

    async fn files_out(self, words: Vec<String>, still: Duration) -> Result<FilesOut, VmError> {
        let begun = self.files(words).await?;
        // A file is all in the output: no input.
        begun.running.input().end().await?;
        let mut out = FilesOut {
            running: begun.running,
            vm: begun.vm,
            lost: begun.lost,
            _in_use: begun.in_use,
            first: None,
            said: Vec::new(),
            over: false,
            still: Some(still),
        };
        out.first = out.next().await?;
        Ok(out)
    }

    async fn files_answer(self, words: Vec<String>) -> Result<Vec<u8>, VmError> {
        self.files_answer_within(words, STILL).await
    }

    async fn files_answer_within(
        self,
        words: Vec<String>,
        still: Duration,
    ) -> Result<Vec<u8>, VmError> {
        let mut out = self.files_out(words, still).await?;
        let mut answer = Vec::new();
        while let Some(piece) = out.next().await? {
            answer.extend(piece);
            if answer.len() > MOST_ANSWER {
                return Err(VmError::Files {
                    kind: ErrorKind::Exhausted,
                    said: format!(
                        "the guest's answer has more than {MOST_ANSWER} bytes: a folder with so many files cannot be listed at once"
                    ),
                });
            }
        }
        Ok(answer)
    }
}

impl FilesOut {
    /// The next bytes; none at the end. Fails if the guest did. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, VmError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        while !self.over {
            let out = tokio::select! {
                out = self.running.next() => out,
                error = &mut self.lost => return Err(error),
                error = too_still(&self.vm, self.still) => return Err(error),
            };
            match out {
                Some(ExecOut::Output {
                    stream: Stream::Out,
                    data,
                }) => return Ok(Some(data)),
                Some(ExecOut::Output {
                    stream: Stream::Err,
                    data,
                }) => hear(&mut self.said, &data),
                Some(ExecOut::Lost(error)) => return Err(error.into()),
                end => {
                    self.over = true;
                    ended(end, &self.said)?;
                }
            }
        }
        Ok(None)
    }
}

impl FilesIn {
    fn new(begun: Begun, framed: bool) -> Self {
        Self {
            input: begun.running.input(),
            running: begun.running,
            vm: begun.vm,
            lost: begun.lost,
            _in_use: begun.in_use,
            framed,
            pushed: 0,
            answer: Vec::new(),
            said: Vec::new(),
            end: None,
        }
    }

    /// Sends bytes as fast as the guest takes them; false if it takes no more.
    /// Not cancel-safe.
    pub async fn push(&mut self, mut bytes: Vec<u8>) -> bool {
        if bytes.is_empty() {
            return self.end.is_none();
        }
        self.pushed += u64::try_from(bytes.len()).unwrap_or_default();
        if self.framed {
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
            bytes.splice(..0, length);
        }
        self.send(bytes).await
    }

    /// Ends the content; returns what the guest made of it. Not cancel-safe: it is not known then what the
    /// guest keeps.
    pub async fn finish(mut self) -> Result<FilesWritten, VmError> {
        if self.framed {
            self.send(0_u32.to_le_bytes().to_vec()).await;
        }
        if self.end.is_none() {
            self.input.end().await?;
        }
        while self.end.is_none() {
            tokio::select! {
                out = self.running.next() => self.hear(out),
                error = &mut self.lost => self.end = Some(Err(error)),
                error = too_still(&self.vm, Some(STILL)) => self.end = Some(Err(error)),
            }
        }
        self.end.unwrap_or(Ok(()))?;
        match self.framed {
            // Of one file the guest says nothing: it has all of it.
            true => Ok(FilesWritten {
                files: 1,
                bytes: self.pushed,
                notes: Vec::new(),
            }),
            false => understood(&self.answer),
        }
    }

    async fn send(&mut self, bytes: Vec<u8>) -> bool {
        let input = self.input.clone();
        let sent = input.send(bytes);
        let vm = self.vm.clone();
        let still = too_still(&vm, Some(STILL));
        tokio::pin!(sent, still);
        loop {
            if self.end.is_some() {
                return false;
            }
            tokio::select! {
                biased;
                out = self.running.next() => self.hear(out),
                error = &mut self.lost => self.end = Some(Err(error)),
                error = &mut still => self.end = Some(Err(error)),
                sent = &mut sent => return match sent {
                    Ok(()) => true,
                    Err(error) => {
                        self.end = Some(Err(error.into()));
                        false
                    }
                },
            }
        }
    }

    fn hear(&mut self, out: Option<ExecOut>) {
        match out {
            Some(ExecOut::Output {
                stream: Stream::Out,
                data,
            }) if self.answer.len() < MOST_ANSWER => self.answer.extend(data),
            Some(ExecOut::Output {
                stream: Stream::Out,
                ..
            }) => {}
            Some(ExecOut::Output {
                stream: Stream::Err,
                data,
            }) => hear(&mut self.said, &data),
            Some(ExecOut::Lost(error)) => self.end = Some(Err(error.into())),
            end => self.end = Some(ended(end, &self.said)),
        }
    }
}

/// Resolves when nothing has come, or been taken, for too long, not counting time for which the VM is
/// paused.
async fn too_still(vm: &Weak<Vm>, still: Option<Duration>) -> VmError {
    let Some(still) = still else {
        return pending().await;
    };
    let is_paused = || vm.upgrade().is_some_and(|vm| vm.is_paused());
    awake_for(still, LOOK, is_paused).await;
    VmError::Files {
        kind: ErrorKind::Timeout,
        said: format!(
            "the guest has done nothing for {} s: a file system in it, or the program that reads and writes its files, hangs",
            still.as_secs()
        ),
    }
}

/// Resolves once a VM has been awake for a time, by looks at it.
async fn awake_for(time: Duration, look: Duration, is_paused: impl Fn() -> bool) {
    let mut awake = Duration::ZERO;
    while awake < time {
        let before = is_paused();
        let nap = look.min(time - awake);
        sleep(nap).await;
        if !before && !is_paused() {
            awake += nap;
        }
    }
}

fn hear(said: &mut Vec<u8>, data: &[u8]) {
    let room = MOST_SAID.saturating_sub(said.len()).min(data.len());
    said.extend_from_slice(&data[..room]);
}

/// Judges an end by its code, as the program in the guest gives it.
fn ended(end: Option<ExecOut>, said: &[u8]) -> Result<(), VmError> {
    let text = || String::from_utf8_lossy(said).trim().to_owned();
    let (kind, said) = match end {
        Some(ExecOut::Ended(ExitStatus::Code(0))) => return Ok(()),
        Some(ExecOut::Ended(ExitStatus::Code(3))) => (ErrorKind::NotFound, text()),
        Some(ExecOut::Ended(ExitStatus::Code(4))) => (ErrorKind::Invalid, text()),
        Some(ExecOut::NotStarted(why)) => (ErrorKind::Guest, why.message),
        _ => (ErrorKind::Guest, text()),
    };
    let said = match said.is_empty() {
        true => "the guest's agent gave up the copy without a word".to_owned(),
        false => said,
    };
    Err(VmError::Files { kind, said })
}

fn understood<T: serde::de::DeserializeOwned>(answer: &[u8]) -> Result<T, VmError> {
    serde_json::from_slice(answer).map_err(|_| VmError::Files {
        kind: ErrorKind::Guest,
        said: "the guest's agent answered nonsense".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test]
    async fn time_for_which_a_vm_is_paused_is_not_held_against_it() {
        let looks = Cell::new(0_u32);
        // Two looks a nap: paused from the third nap to the twelfth.
        let is_paused = || {
            looks.set(looks.get() + 1);
            (5..=24).contains(&looks.get())
        };
        awake_for(
            Duration::from_millis(5),
            Duration::from_millis(1),
            is_paused,
        )
        .await;
        assert_eq!(looks.get(), 30);
    }
}
