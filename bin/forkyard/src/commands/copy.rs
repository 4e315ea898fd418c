//! `cp`: files and folders between here and a guest, as a tar stream through a
//! command there.
//!
//! What arrives is unpacked beside its destination and takes its name once it
//! is whole; copying that fails leaves nothing. A guest is not believed: what it
//! sends stays below the destination, and is files, folders and links alone.

mod stream;

use crate::args::{Copy, Format};
use anyhow::{Context, bail, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use forkyard_client::{Client, ClientError};
use forkyard_types::{ExecEvent, ExecRequest, ExitStatus};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
};
use stream::{Incoming, Outgoing};
use tokio::{sync::mpsc, task::spawn_blocking};

/// Bytes of a tar stream in one request.
const PIECE: usize = 4 << 20;
/// Pieces on their way.
const UNDER_WAY: usize = 4;

/// Makes a folder beside where $1 is to be.
const MAKE: &str = r#"
to=$1
[ -d "$to" ] || to=$(dirname -- "$to")
[ -d "$to" ] || { echo "there is no folder $to" >&2; exit 1; }
mktemp -d -- "${to%/}/.forkyard-cp.XXXXXX""#;

/// Takes what has arrived at $1 to its place.
const INSTALL: &str = r#"
set -e
from=$1 to=$2 name=$3
if [ -d "$to" ]; then to=${to%/}/$name; fi
tar -C "$from" -xf "$from/tar"
mv -T -- "$from/$name" "$to"
rm -rf "$from""#;

/// One end of a copy.
#[derive(Clone, Debug)]
pub enum End {
    /// A path here.
    Here(PathBuf),
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

    /// `VM:PATH`, or a path; one that has a colon begins with `./` or `/`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
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

/// Copies, and tells how much.
pub async fn copy(client: &Client, format: Format, wanted: Copy) -> anyhow::Result<ExitCode> {
    let bar = ProgressBar::no_length().with_style(ProgressStyle::with_template(
        "{spinner} {bytes} at {bytes_per_sec}",
    )?);
    // Nothing is drawn where standard error is no terminal.
    bar.set_draw_target(ProgressDrawTarget::stderr());
    let copied = match (wanted.from, wanted.to) {
        (End::There { vm, path }, End::Here(to)) => fetch(client, &vm, &path, to, &bar).await,
        (End::Here(from), End::There { vm, path }) => send(client, from, &vm, &path, &bar).await,
        (End::Here(_), End::Here(_)) | (End::There { .. }, End::There { .. }) => {
            bail!("one of the two must be in a VM, as VM:PATH, and the other here")
        }
    };
    bar.finish_and_clear();
    copied?;
    if format == Format::Json {
        say!("{}", json!({"bytes": bar.position()}));
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies what is here into a VM, and tells nobody how much.
pub async fn send_quietly(
    client: &Client,
    from: PathBuf,
    vm: &str,
    path: &str,
) -> anyhow::Result<()> {
    send(client, from, vm, path, &ProgressBar::hidden()).await
}

async fn fetch(
    client: &Client,
    vm: &str,
    path: &str,
    to: PathBuf,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let name = name_of(Path::new(path))?;
    let to = if to.is_dir() { to.join(&name) } else { to };
    let beside = to.parent().filter(|dir| !dir.as_os_str().is_empty());
    let half = tempfile::Builder::new()
        .prefix(".forkyard-cp.")
        .tempdir_in(beside.unwrap_or(Path::new(".")))
        .with_context(|| format!("cannot write beside {}", to.display()))?;
    // By its folder, so that the link itself is copied, and not what it leads to.
    let script = r#"cd "$(dirname -- "$1")" && exec tar -cf - -- "$2""#;
    let mut events = client.exec(vm, &shell(script, [path, &name], None)).await?;
    let (pieces, arriving) = mpsc::channel(UNDER_WAY);
    let folder = half.path().to_owned();
    let unpacking = spawn_blocking(move || stream::unpack(Incoming::new(arriving), &folder));
    let mut said = Vec::new();
    let end = loop {
        match events.next().await? {
            Some(ExecEvent::Stdout(data)) => {
                let data = decoded(&data)?;
                bar.inc(data.len() as u64);
                // Gone if it failed, which it says itself.
                if pieces.send(data).await.is_err() {
                    break None;
                }
            }
            Some(ExecEvent::Stderr(data)) => said.extend(decoded(&data)?),
            Some(ExecEvent::Exit(status)) => break Some(status),
            Some(ExecEvent::Error(error)) => return Err(ClientError::from(error).into()),
            None => bail!("the daemon closed the connection before the end of the copy"),
        }
    };
    drop(pieces);
    let unpacked = unpacking.await?;
    if let Some(status) = end {
        ensure_done(vm, status, &said)?;
    }
    unpacked.with_context(|| format!("cannot unpack what {vm} sent"))?;
    let whole = half.path().join(&name);
    fs::rename(&whole, &to).with_context(|| format!("cannot make {}", to.display()))
}

async fn send(
    client: &Client,
    from: PathBuf,
    vm: &str,
    path: &str,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    fs::symlink_metadata(&from).with_context(|| format!("cannot read {}", from.display()))?;
    let name = name_of(&from)?;
    // Beside where it is to be: moving it there is then one step.
    let half_made = shell(MAKE, [path, ""], None);
    let half = run(client, vm, half_made).await?;
    let half = half.trim_end();
    let sent = async {
        let (pieces, mut leaving) = mpsc::channel(UNDER_WAY);
        let top = name.clone();
        let packing =
            spawn_blocking(move || stream::pack(&from, &top, Outgoing::new(pieces, PIECE)));
        while let Some(piece) = leaving.recv().await {
            bar.inc(piece.len() as u64);
            let append = shell(r#"cat >>"$1/tar""#, [half, ""], Some(piece));
            run(client, vm, append).await?;
        }
        packing.await??;
        let mut install = shell(INSTALL, [half, path], None);
        install.argv.push(name);
        run(client, vm, install).await
    };
    let sent = sent.await;
    if sent.is_err() {
        // What failed is worth more than that this may fail, too.
        let _ = run(client, vm, shell(r#"rm -rf -- "$1""#, [half, ""], None)).await;
    }
    sent.map(drop)
}

/// The name that a copy has unless it is given another.
fn name_of(path: &Path) -> anyhow::Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("{} ends in no name", path.display()))?;
    Ok(name.to_owned())
}

fn shell(script: &str, words: [&str; 2], stdin: Option<Vec<u8>>) -> ExecRequest {
    let argv = ["sh", "-c", script, "sh", words[0], words[1]];
    ExecRequest {
        argv: argv.map(str::to_owned).to_vec(),
        env: Vec::new(),
        stdin: stdin.map(|bytes| BASE64_STANDARD.encode(bytes)),
        timeout_s: None,
    }
}

/// Runs a command in a guest; what it printed.
async fn run(client: &Client, vm: &str, command: ExecRequest) -> anyhow::Result<String> {
    let mut events = client.exec(vm, &command).await?;
    let (mut out, mut said) = (Vec::new(), Vec::new());
    while let Some(event) = events.next().await? {
        match event {
            ExecEvent::Stdout(data) => out.extend(decoded(&data)?),
            ExecEvent::Stderr(data) => said.extend(decoded(&data)?),
            ExecEvent::Exit(status) => {
                ensure_done(vm, status, &said)?;
                return Ok(String::from_utf8_lossy(&out).into_owned());
            }
            ExecEvent::Error(error) => return Err(ClientError::from(error).into()),
        }
    }
    bail!("the daemon closed the connection before the end of the copy")
}

fn ensure_done(vm: &str, status: ExitStatus, said: &[u8]) -> anyhow::Result<()> {
    let said = String::from_utf8_lossy(said);
    ensure!(
        status == ExitStatus::Code(0),
        "{vm} cannot: {} (it takes sh, tar, mv and mktemp there)",
        said.trim_end()
    );
    Ok(())
}

fn decoded(data: &str) -> anyhow::Result<Vec<u8>> {
    BASE64_STANDARD
        .decode(data)
        .context("the daemon's answer is not what was expected")
}
