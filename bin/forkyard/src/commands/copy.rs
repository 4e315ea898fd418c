//! `cp`: files and folders between here and a guest, as a tar stream that the
//! guest's agent reads or writes.
//!
//! A new folder takes its name once it is whole, and so does each file; copying that
//! fails leaves nothing half done. A guest is not believed: what it sends is what was
//! asked for, below the destination, and files, folders and links alone.

mod stream;
mod tee;

use super::{
    signals::{Ended, Interrupted},
    silence::Silence,
};
use crate::{
    args::{Copy, Format},
    output,
};
use anyhow::{Context, bail};
use forkyard_api_client::{Client, ClientError, UploadError, of_files, of_vm};
use forkyard_files::{
    CopyTarget, FilesError, Noted, Reader, TarWriter, WantedMembers, pack, unpack,
};
use forkyard_types::{ErrorKind, FileEntry, FileKind, FilesWritten, VmState, VmView};
use hyper::Method;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, IsTerminal as _, Write as _, stdin, stdout},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    pin::pin,
    process::ExitCode,
    str::FromStr,
    time::Duration,
};
use stream::{Incoming, Leaving, Outgoing};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};

/// Bytes of a tar stream in one piece.
const PIECE: usize = 256 << 10;
/// Pieces on their way.
const UNDER_WAY: usize = 4;
/// Time in which what is not whole is removed after a signal: what is written into may take no more.
const REMOVED: Duration = Duration::from_secs(5);
/// Looks at a VM whose stream has broken off, and the time between them.
const LOOKS: u32 = 20;
const LOOK: Duration = Duration::from_millis(100);
/// Words on what a signal leaves of a copy.
const INTERRUPTED: &str = "what was not whole has been removed";
/// Likewise, where removing that takes too long.
const LEFT: &str = "what was not whole could not be removed in time: a file or folder .forkyard-cp.… is left beside the target";
/// Between two looks at whether it gets on.
const PROGRESS: Duration = Duration::from_secs(1);
/// Words on a copy with a VM that does not answer.
const WAITS: &str = "the copy waits. Ctrl-C ends it";
/// Word for standard input or output as a tar stream.
const PIPE: &str = "-";

/// One end of a copy.
#[derive(Clone, Debug)]
pub enum End {
    /// A path here.
    Here(PathBuf),
    /// Standard input or output, as a tar stream.
    Pipe,
    /// A path in a guest.
    There {
        /// VM: name or id.
        vm: String,
        /// Absolute, or from the folder that commands start in.
        path: String,
    },
}

impl FromStr for End {
    type Err = String;

    /// `VM:PATH`, or a path; one that has a colon begins with `./` or `/`. `-`: a tar stream.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            _ if text == PIPE => Ok(Self::Pipe),
            Some((vm, _)) if vm.contains('/') => Ok(Self::Here(text.into())),
            Some(("", _) | (_, "")) => Err("wanted VM:PATH, or a path".to_owned()),
            Some((vm, path)) => Ok(Self::There {
                vm: vm.to_owned(),
                path: path.to_owned(),
            }),
            None => Ok(Self::Here(text.into())),
        }
    }
}

impl End {
    /// Reads a word of the command line, in which a path here may be of any bytes.
    pub fn of_word(word: OsString) -> Result<Self, String> {
        if let Some(text) = word.to_str() {
            return text.parse();
        }
        let bytes = word.as_bytes();
        let colon = bytes.iter().position(|byte| *byte == b':');
        match colon {
            Some(at) if !bytes[..at].contains(&b'/') => Err(
                "the path in the VM is not UTF-8: copy the folder that it is in, whatever the names there"
                    .to_owned(),
            ),
            Some(_) | None => Ok(Self::Here(word.into())),
        }
    }
}

/// Copies, and tells how much.
pub async fn copy(client: &Client, format: Format, wanted: Copy) -> anyhow::Result<ExitCode> {
    let bar = ProgressBar::no_length().with_style(ProgressStyle::with_template(
        "{spinner} {bytes} at {bytes_per_sec}",
    )?);
    // Nothing is drawn where standard error is no terminal.
    bar.set_draw_target(ProgressDrawTarget::stderr());
    let mut ended = Ended::watched()?;
    let is_pipe = matches!(wanted.to, End::Pipe);
    let copied = match (wanted.from, wanted.to) {
        (End::There { vm, path }, End::Here(to)) => {
            let fetched = fetch(client, &vm, &path, &bar, &mut ended, placed(&path, to));
            watched(client, &vm, &bar, fetched).await
        }
        (End::There { vm, path }, End::Pipe) => {
            anyhow::ensure!(
                !stdout().is_terminal(),
                "what comes is a tar stream, which is nothing for a terminal: forkyard cp {vm}:{path} - | tar x"
            );
            let fetched = fetch(client, &vm, &path, &bar, &mut ended, passed_on);
            watched(client, &vm, &bar, fetched).await
        }
        (End::Here(from), End::There { vm, path }) => {
            let sent = send(client, from, &vm, &path, &bar);
            watched(client, &vm, &bar, interrupted(sent, &mut ended)).await
        }
        (End::Pipe, End::There { vm, path }) => {
            anyhow::ensure!(
                !stdin().is_terminal(),
                "standard input is to be a tar stream: tar c FILES | forkyard cp - {vm}:{path}"
            );
            let sent = unpacked_there(client, &vm, &path, &bar);
            watched(client, &vm, &bar, interrupted(sent, &mut ended)).await
        }
        (End::Here(_) | End::Pipe, End::Here(_) | End::Pipe)
        | (End::There { .. }, End::There { .. }) => {
            bail!(
                "one of the two must be in a VM, as VM:PATH, and the other here: a path here that has a colon is written ./a:b"
            )
        }
    };
    bar.finish_and_clear();
    if let (true, Err(error)) = (is_pipe, &copied)
        && let Some(FilesError::Write { source, .. }) = error.downcast_ref()
    {
        let code = u8::try_from(output::cannot_write(source)).unwrap_or(1);
        return Ok(ExitCode::from(code));
    }
    let copied = copied?;
    let format = match is_pipe {
        // Standard output is taken.
        true => Format::Text,
        false => format,
    };
    match format {
        Format::Json => output::json(&copied)?,
        Format::Text => {
            for note in &copied.notes {
                tell!("forkyard: {}", output::line(note));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies what is here into a VM, and does not report how much.
pub async fn send_quietly(
    client: &Client,
    from: PathBuf,
    vm: &str,
    path: &str,
) -> anyhow::Result<()> {
    let sent = send(client, from, vm, path, &ProgressBar::hidden()).await;
    sent.map(drop)
}

/// Awaits a copy, and says so if its VM does not answer while nothing comes or goes.
async fn watched<T>(
    client: &Client,
    vm: &str,
    bar: &ProgressBar,
    work: impl Future<Output = T>,
) -> T {
    let mut silence = Silence::of(client, vm, WAITS);
    let mut work = pin!(work);
    let mut passed = 0;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            never = silence.watch() => match never {},
            () = sleep(PROGRESS) => {}
        }
        if bar.position() != passed {
            passed = bar.position();
            silence.broken();
        }
    }
}

/// Awaits a copy, which a signal ends.
async fn interrupted<T>(
    work: impl Future<Output = anyhow::Result<T>>,
    ended: &mut Ended,
) -> anyhow::Result<T> {
    tokio::select! {
        biased;
        done = work => done,
        signal = ended.told() => Err(Interrupted::over(signal, INTERRUPTED).into()),
    }
}

/// Places what comes of this path of a VM here.
fn placed(
    path: &str,
    to: PathBuf,
) -> impl FnOnce(Incoming) -> Result<FilesWritten, FilesError> + Send + 'static {
    let name = name_of(Path::new(path)).map(OsStr::to_owned);
    move |incoming| {
        let wanted = name
            .as_deref()
            .map_or(WantedMembers::Contents, WantedMembers::Named);
        let mut notes = Vec::new();
        let target = CopyTarget { path: &to, wanted };
        // Bounded by the reader.
        let mut note = |text| notes.push(text);
        let unpacked = unpack(Reader::new(incoming), target, &mut note)?;
        Ok(FilesWritten {
            files: unpacked.files,
            bytes: unpacked.bytes,
            notes,
        })
    }
}

/// Writes what comes to standard output as it is.
fn passed_on(incoming: Incoming) -> Result<FilesWritten, FilesError> {
    let mut out = io::BufWriter::with_capacity(PIECE, stdout().lock());
    let done = tee::pass(incoming, &mut out)?;
    out.flush().map_err(tee::unwritten)?;
    Ok(done)
}

/// Copies from a VM: `take` reads the stream.
async fn fetch(
    client: &Client,
    vm: &str,
    path: &str,
    bar: &ProgressBar,
    ended: &mut Ended,
    take: impl FnOnce(Incoming) -> Result<FilesWritten, FilesError> + Send + 'static,
) -> anyhow::Result<FilesWritten> {
    let from = of_files(vm, "archive", &[("path", path)]);
    let mut coming = interrupted(async { Ok(client.disk(&from).await?) }, ended).await?;
    let (pieces, arriving) = mpsc::channel(UNDER_WAY);
    let mut taking = spawn_blocking(move || take(Incoming::new(arriving)));
    let passing = async {
        loop {
            match coming.next().await {
                Ok(Some(piece)) => {
                    bar.inc(piece.len() as u64);
                    // Gone if it failed, which it says itself.
                    if pieces.send(piece.to_vec()).await.is_err() {
                        return None;
                    }
                }
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
    };
    let (broken, signal) = tokio::select! {
        broken = passing => (broken, None),
        signal = ended.told() => (None, Some(signal)),
    };
    // What is not whole goes.
    drop(pieces);
    let taken = match signal {
        Some(signal) => Err(signal),
        None => tokio::select! {
            taken = &mut taking => Ok(taken?),
            signal = ended.told() => Err(signal),
        },
    };
    let taken = match taken {
        Ok(taken) => taken,
        Err(signal) => {
            let removed = timeout(REMOVED, taking).await.is_ok();
            let told = if removed { INTERRUPTED } else { LEFT };
            return Err(Interrupted::over(signal, told).into());
        }
    };
    match (taken, broken) {
        (Ok(copied), _) => Ok(copied),
        (Err(FilesError::Sender(why)), _) => bail!("{vm} gave up: {}", output::line(&why)),
        (Err(FilesError::Short), Some(error)) => Err(error).context(broke_off(client, vm).await),
        (Err(error @ FilesError::Unasked { .. }), _) => {
            Err(error).with_context(|| format!("what {vm} sent is refused"))
        }
        (Err(error), _) => Err(error).with_context(|| format!("cannot copy {path} of {vm}")),
    }
}

/// Says why a stream of a VM's files may have ended early, as far as its state tells.
async fn broke_off(client: &Client, vm: &str) -> String {
    let mut looks = 0;
    loop {
        let seen = client.call::<VmView>(Method::GET, &of_vm(vm, "")).await;
        match seen {
            // Its end is noted some time after the stream has broken.
            Ok(seen) if seen.state == VmState::Running && looks < LOOKS => {
                looks += 1;
                sleep(LOOK).await;
            }
            Ok(seen) if [VmState::Stopped, VmState::Ending].contains(&seen.state) => {
                return format!("the copy broke off: {vm} stopped");
            }
            Err(ClientError::Refused(why)) if why.kind == ErrorKind::NotFound => {
                return format!("the copy broke off: {vm} was removed");
            }
            Ok(_) | Err(_) => return "the copy broke off".to_owned(),
        }
    }
}

/// A folder's content as a tar stream, and what packs it: notes of what was left out.
pub fn packed(from: PathBuf) -> (Leaving, JoinHandle<Result<Vec<String>, FilesError>>) {
    let (pieces, leaving) = mpsc::channel(UNDER_WAY);
    let packing = spawn_blocking(move || {
        let mut notes = Vec::new();
        let mut note = |text| notes.push(text);
        let mut writer = TarWriter::new(Outgoing::new(pieces, PIECE));
        pack(&from, b".", &mut writer, Noted::Apart(&mut note))?;
        writer.finish()?;
        Ok(notes)
    });
    (Leaving::new(leaving), packing)
}

/// Copies into a VM.
async fn send(
    client: &Client,
    from: PathBuf,
    vm: &str,
    path: &str,
    bar: &ProgressBar,
) -> anyhow::Result<FilesWritten> {
    fs::symlink_metadata(&from).with_context(|| format!("cannot read {}", from.display()))?;
    let give = move |out| {
        let top = name_of(&from).map_or(&b"."[..], |name| name.as_bytes());
        let mut notes = Vec::new();
        let mut note = |text| notes.push(text);
        let mut writer = TarWriter::new(out);
        pack(&from, top, &mut writer, Noted::Apart(&mut note))?;
        writer.finish()?;
        Ok(notes)
    };
    give_away(client, vm, path, bar, give).await
}

/// Unpacks standard input, a tar stream, in a folder of a VM.
async fn unpacked_there(
    client: &Client,
    vm: &str,
    path: &str,
    bar: &ProgressBar,
) -> anyhow::Result<FilesWritten> {
    let inside = format!("{}/.", path.trim_end_matches('/'));
    let stat = of_files(vm, "stat", &[("path", &inside)]);
    let is_folder = match client.call::<FileEntry>(Method::GET, &stat).await {
        Ok(entry) => entry.kind == FileKind::Folder,
        Err(ClientError::Refused(_)) => false,
        Err(error) => return Err(error.into()),
    };
    anyhow::ensure!(
        is_folder,
        "a tar stream is unpacked in a folder that exists, and {path} of {vm} is none"
    );
    let give = |mut out: Outgoing| {
        let copied = io::copy(&mut stdin().lock(), &mut out).and_then(|_| out.flush());
        copied.map_err(|source| {
            // The guest takes no more, and says why.
            if source.kind() == io::ErrorKind::BrokenPipe {
                return FilesError::Stream(source);
            }
            let path = "standard input".into();
            FilesError::Read { path, source }
        })?;
        Ok(Vec::new())
    };
    give_away(client, vm, &inside, bar, give).await
}

/// Sends a VM the stream that `give` writes.
async fn give_away(
    client: &Client,
    vm: &str,
    path: &str,
    bar: &ProgressBar,
    give: impl FnOnce(Outgoing) -> Result<Vec<String>, FilesError> + Send + 'static,
) -> anyhow::Result<FilesWritten> {
    let to = of_files(vm, "archive", &[("path", path)]);
    let (pieces, leaving) = mpsc::channel(UNDER_WAY);
    let packing = spawn_blocking(move || give(Outgoing::new(pieces, PIECE)));
    let sent = client
        .upload::<FilesWritten>(&to, None, Leaving::new(leaving), |bytes| bar.inc(bytes))
        .await;
    let sent = match sent {
        // What is read may have no end.
        Err(UploadError::Client(error)) if !packing.is_finished() => return Err(error.into()),
        sent => sent,
    };
    match (packing.await?, sent) {
        (Ok(mut notes), Ok(written)) => {
            notes.extend(written.notes);
            Ok(FilesWritten { notes, ..written })
        }
        // The guest took no more, and says why.
        (Ok(_) | Err(FilesError::Stream(_)), Err(UploadError::Client(error))) => Err(error.into()),
        (Err(error), _) => Err(error.into()),
        (Ok(_), Err(error)) => Err(error.into()),
    }
}

/// Name that a copy has unless it is given another; none for a folder's content alone.
fn name_of(path: &Path) -> Option<&OsStr> {
    let bytes = path.as_os_str().as_bytes();
    path.file_name().filter(|_| !bytes.ends_with(b"/."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_here_is_of_any_bytes_and_one_in_a_vm_is_text() {
        let word = |bytes: &[u8]| End::of_word(OsStr::from_bytes(bytes).to_owned());
        for here in [&b"na\xffme"[..], b"./a:\xff", b"/x\xff/a:b", b"plain"] {
            let here = OsStr::from_bytes(here);
            let end = End::of_word(here.to_owned());
            assert!(
                matches!(end, Ok(End::Here(path)) if path == here),
                "{here:?}"
            );
        }
        assert!(matches!(word(b"p:/srv"), Ok(End::There { .. })));
        let refused = word(b"p:/s\xffv").expect_err("no text");
        assert!(refused.contains("not UTF-8"), "{refused}");
    }

    #[test]
    fn a_path_that_ends_in_a_dot_or_is_the_root_means_what_is_in_it() {
        for (path, name) in [
            ("a/b", Some("b")),
            ("a/b/", Some("b")),
            ("a/.", None),
            (".", None),
            ("..", None),
            ("/", None),
            ("a/..", None),
        ] {
            assert_eq!(name_of(Path::new(path)), name.map(OsStr::new), "{path}");
        }
    }
}
