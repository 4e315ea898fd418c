//! `image import` and `image export`: images in and out, as streams to and from
//! the daemon. Files are read and written here, as the user that runs the command.

use crate::{
    args::Format,
    commands::{copy, vms::spinner},
    output,
};
use anyhow::{Context, bail, ensure};
use clap::{Args as ClapArgs, ValueEnum};
use forkyard_api_client::{Client, UploadError, escaped};
use forkyard_types::{ByteCount, ExportFormat, GuestImage, ImageName, ImportFormat};
use hyper::Method;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
};
use tokio::io::AsyncRead;

/// A page of zeros becomes a hole.
const PAGE: usize = 4096;

/// `image import`
#[derive(Debug, ClapArgs)]
pub struct Import {
    /// Name of the image from here on.
    pub name: ImageName,
    /// The disk or archive, or a folder with the layout of an OCI image (--format oci); - is
    /// standard input.
    pub file: PathBuf,
    /// Format of the file; by default that of its name's ending: .raw or .img,
    /// .qcow2, .tar, .tar.gz, .tar.xz, .tar.zst or .oci.
    #[arg(long, value_enum)]
    pub format: Option<Kind>,
    /// Of a disk with partitions, the one with the root file system.
    #[arg(long, value_name = "N")]
    pub partition: Option<u32>,
    /// Size of the disk that is made for a container image, in MiB; by default
    /// what is in it, and 512 MiB to work in.
    #[arg(long, value_name = "MIB")]
    pub size: Option<u64>,
}

/// Format of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A disk, byte by byte.
    Raw,
    /// A disk as QEMU keeps it.
    Qcow2,
    /// A container image: an OCI archive, or one of `docker save`.
    Oci,
}

/// `image export`
#[derive(Debug, ClapArgs)]
pub struct Export {
    /// Image; with --vm a checkpoint, or a VM that has stopped.
    pub name: String,
    /// File to write. It is replaced once the new one is whole.
    pub file: PathBuf,
    /// Format of the file.
    #[arg(long, value_enum, default_value = "qcow2")]
    pub format: Disk,
    /// Export the disk of a checkpoint or of a stopped VM.
    #[arg(long)]
    pub vm: bool,
}

/// Format of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Disk {
    /// Byte by byte, with holes.
    Raw,
    /// As QEMU keeps disks.
    Qcow2,
}

/// Derives the format of a file from its name: never from its content, which
/// its maker controls.
fn by_name(file: &Path) -> Option<Kind> {
    let name = file.file_name()?.to_str()?;
    let packed = [".gz", ".xz", ".zst"];
    let inner = packed.iter().find_map(|end| name.strip_suffix(end));
    if inner.is_some_and(|inner| inner.ends_with(".tar")) {
        return Some(Kind::Oci);
    }
    match file.extension()?.to_str()? {
        "raw" | "img" => Some(Kind::Raw),
        "qcow2" => Some(Kind::Qcow2),
        "tar" | "oci" | "tgz" | "txz" | "tzst" => Some(Kind::Oci),
        _ => None,
    }
}

/// Imports an image.
pub async fn import(client: &Client, format: Format, wanted: Import) -> anyhow::Result<ExitCode> {
    if wanted.file.as_os_str() != "-" {
        fs::metadata(&wanted.file)
            .with_context(|| format!("cannot read {}", wanted.file.display()))?;
    }
    let kind = wanted.format.or_else(|| by_name(&wanted.file));
    let Some(kind) = kind else {
        bail!(
            "what {} is its name does not say: say --format raw, qcow2 or oci",
            wanted.file.display()
        );
    };
    // Before much is sent for nothing.
    let there: Vec<GuestImage> = client.call(Method::GET, "/v1/images").await?;
    let taken = there.iter().any(|image| image.name == wanted.name.as_str());
    ensure!(
        !taken,
        "there is an image {} already: choose another name, or `forkyard image rm` one that was imported",
        wanted.name
    );
    let mut packing = None;
    let (source, size): (Box<dyn AsyncRead + Unpin>, _) = match wanted.file.to_str() {
        Some("-") => (Box::new(tokio::io::stdin()), None),
        Some(_) | None if kind == Kind::Oci && wanted.file.is_dir() => {
            let (leaving, packed) = copy::packed(wanted.file.clone());
            packing = Some(packed);
            (Box::new(leaving), None)
        }
        Some(_) | None => {
            let path = &wanted.file;
            let file =
                File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            let facts = file.metadata()?;
            ensure!(!facts.is_dir(), "{} is a folder", path.display());
            let size = facts.is_file().then_some(facts.len());
            (Box::new(tokio::fs::File::from_std(file)), size)
        }
    };
    let kind = match kind {
        Kind::Raw => ImportFormat::Raw,
        Kind::Qcow2 => ImportFormat::Qcow2,
        Kind::Oci => ImportFormat::Oci,
    };
    let mut path = format!("/v1/images/{}?format={}", wanted.name, output::word(&kind));
    if let Some(number) = wanted.partition {
        path.push_str(&format!("&partition={number}"));
    }
    if let Some(size) = wanted.size.and_then(ByteCount::from_mib) {
        path.push_str(&format!("&size={}", size.0));
    }
    let bar = bar(size)?;
    let mut making = None;
    let image = client
        .upload::<GuestImage>(&path, size, source, |sent| {
            bar.inc(sent);
            if size == Some(bar.position()) {
                bar.finish_and_clear();
                making = Some(spinner(format!("making {}", wanted.name)));
            }
        })
        .await;
    bar.finish_and_clear();
    if let Some(making) = making {
        making.finish_and_clear();
    }
    if let (Some(packing), Ok(_)) = (packing, &image) {
        packing.await?.context("the folder could not be read")?;
    }
    let image = image.map_err(|error| {
        // What the daemon said is looked for where it is shown.
        let error = if let UploadError::Client(refused) = error {
            anyhow::Error::from(refused)
        } else {
            anyhow::Error::from(error)
        };
        error.context(format!("{} is not imported", wanted.file.display()))
    })?;
    match format {
        Format::Json => output::json(&image)?,
        Format::Text => say!("{}: {}; forkyard run {0}", image.name, image.summary),
    }
    Ok(ExitCode::SUCCESS)
}

/// Exports the disk of an image, or of what VMs have left.
pub async fn export(client: &Client, format: Format, wanted: Export) -> anyhow::Result<ExitCode> {
    let kind = match wanted.format {
        Disk::Raw => ExportFormat::Raw,
        Disk::Qcow2 => ExportFormat::Qcow2,
    };
    let what = if wanted.vm { "vms" } else { "images" };
    let path = format!(
        "/v1/{what}/{}/disk?format={}",
        escaped(&wanted.name),
        output::word(&kind)
    );
    let beside = wanted
        .file
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty());
    // The error of `tempfile` names a file that the user never asked for.
    let mut why = None;
    let half = tempfile::Builder::new()
        .prefix(".forkyard-export.")
        .make_in(beside.unwrap_or(Path::new(".")), |path| {
            let mut options = File::options();
            options.read(true).write(true).create_new(true).mode(0o600);
            options
                .open(path)
                .inspect_err(|error| why = error.raw_os_error())
        })
        .map_err(|error| why.map_or(error, std::io::Error::from_raw_os_error))
        .with_context(|| format!("cannot write {}", wanted.file.display()))?;
    let wait = spinner(format!("preparing the disk of {}", wanted.name));
    let disk = client.disk(&path).await;
    wait.finish_and_clear();
    let mut disk = disk?;
    let bar = bar(disk.size())?;
    let mut to = Sparse::new(half.as_file());
    let written = async {
        while let Some(piece) = disk.next().await? {
            bar.inc(piece.len() as u64);
            to.write(&piece).context("cannot write the disk")?;
        }
        to.finish().context("cannot write the disk")
    };
    let written = written.await;
    bar.finish_and_clear();
    let bytes = written?;
    half.persist(&wanted.file)
        .with_context(|| format!("cannot make {}", wanted.file.display()))?;
    match format {
        Format::Json => output::json(&json!({
            "file": wanted.file.display().to_string(),
            "format": kind,
            "bytes": bytes,
        }))?,
        Format::Text => say!("{}", wanted.file.display()),
    }
    Ok(ExitCode::SUCCESS)
}

fn bar(size: Option<u64>) -> anyhow::Result<ProgressBar> {
    let (bar, words) = match size {
        Some(size) => (
            ProgressBar::new(size),
            "{wide_bar} {bytes} of {total_bytes} at {bytes_per_sec}, {eta}",
        ),
        None => (
            ProgressBar::no_length(),
            "{spinner} {bytes} at {bytes_per_sec}",
        ),
    };
    // Nothing is drawn where standard error is no terminal.
    bar.set_draw_target(ProgressDrawTarget::stderr());
    Ok(bar.with_style(ProgressStyle::with_template(words)?))
}

/// A file that is written from its beginning, with holes for zeros.
struct Sparse<'a> {
    file: &'a File,
    page: Vec<u8>,
    at: u64,
}

impl<'a> Sparse<'a> {
    fn new(file: &'a File) -> Self {
        Self {
            file,
            page: Vec::with_capacity(PAGE),
            at: 0,
        }
    }

    fn write(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PAGE - self.page.len()));
            self.page.extend_from_slice(now);
            bytes = later;
            if self.page.len() == PAGE {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.page.iter().any(|byte| *byte != 0) {
            self.file.write_all_at(&self.page, self.at)?;
        }
        self.at += self.page.len() as u64;
        self.page.clear();
        Ok(())
    }

    /// Returns the length; all of it is on disk then.
    fn finish(mut self) -> std::io::Result<u64> {
        self.flush()?;
        self.file.set_len(self.at)?;
        (&mut &*self.file).flush()?;
        self.file.sync_all()?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn zeros_become_holes_whatever_the_pieces() {
        let mut bytes = vec![0; 100_001];
        bytes[50_000] = 1;
        for size in [1, 4096, 7001] {
            let file = tempfile::NamedTempFile::new().expect("a file");
            let mut to = Sparse::new(file.as_file());
            for piece in bytes.chunks(size) {
                to.write(piece).expect("written");
            }
            assert_eq!(to.finish().expect("written"), 100_001);
            assert_eq!(std::fs::read(file.path()).expect("read"), bytes);
            let blocks = file.as_file().metadata().expect("there").blocks();
            assert!(blocks * 512 <= 2 * 4096, "{blocks}");
        }
    }

    #[test]
    fn what_a_file_is_its_name_says_or_nobody() {
        for (name, kind) in [
            ("a.raw", Some(Kind::Raw)),
            ("disk.img", Some(Kind::Raw)),
            ("a.b.qcow2", Some(Kind::Qcow2)),
            ("web.tar", Some(Kind::Oci)),
            ("web.tar.gz", Some(Kind::Oci)),
            ("web.v1.tar.zst", Some(Kind::Oci)),
            ("web.tgz", Some(Kind::Oci)),
            ("disk.raw.gz", None),
            ("gz", None),
            ("-", None),
            ("qcow2", None),
        ] {
            assert_eq!(by_name(Path::new(name)), kind, "{name}");
        }
    }
}
