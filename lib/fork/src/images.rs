//! Images in and out: what comes in becomes one that VMs boot from, and any
//! disk there is can go out.
//!
//! A client sends an image and receives one, or names one that a registry has; no file is ever read or written
//! because a client has named it. Whatever breaks off leaves nothing.

use crate::{Host, HostError, blocking};
use forkyard_disk::{Backing, Format, QemuImg};
use forkyard_guest_image::{Cancel, Dockerfile, EXPORT, FetchReach, Source};
use forkyard_snapshot::Disk;
use forkyard_types::{
    ByteCount, ExportFormat, GuestImage, ImageBuildRequest, ImageName, ImagePullRequest,
    ImportFormat, ImportRequest, Start, VmState, plainly,
};
use std::{
    fs::{self, File},
    io::{self, Read},
    path::PathBuf,
    time::Duration,
};
use tokio::sync::mpsc;

/// Pieces of an image on their way.
const UNDER_WAY: usize = 4;
/// A disk of a terabyte may take an hour.
const CONVERTS: Duration = Duration::from_secs(3600);

/// An image that comes in. Dropped before its end, it was never there.
#[derive(Debug)]
pub struct Incoming {
    pieces: Option<mpsc::Sender<Piece>>,
    cancel: Cancel,
    outcome: tokio::task::JoinHandle<Result<GuestImage, HostError>>,
}

/// Pieces of an uploaded image; the end is explicit, because a client that goes
/// away sends none.
#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    End,
}

/// A disk that goes out.
#[derive(Debug)]
pub struct Outgoing {
    /// To be read from its beginning. It has no name any more, or is one that
    /// is never written to.
    pub file: File,
    /// Length.
    pub size: ByteCount,
}

impl Host {
    /// Begins to import an image. Cancel-safe.
    pub async fn import(&self, name: &str, request: ImportRequest) -> Result<Incoming, HostError> {
        let name: ImageName = name
            .parse()
            .map_err(|error| HostError::Invalid(format!("{error}")))?;
        let source = source(request)?;
        let bases = self.parts.bases();
        let (looks, wanted) = (bases.clone(), name.clone());
        blocking(move || looks.refuse_taken(&wanted)).await?;
        let cancel = Cancel::default();
        let (pieces, arriving) = mpsc::channel(UNDER_WAY);
        let given_up = cancel.clone();
        let outcome = tokio::spawn(blocking(move || {
            let from = Arriving {
                pieces: arriving,
                piece: io::Cursor::default(),
                ended: false,
            };
            Ok(bases.import(&name, source, from, &given_up)?)
        }));
        Ok(Incoming {
            pieces: Some(pieces),
            cancel,
            outcome,
        })
    }

    /// Begins to fetch an image from its registry. Cancel-safe.
    pub async fn pull(
        &self,
        name: &str,
        request: ImagePullRequest,
        reach: FetchReach,
    ) -> Result<Incoming, HostError> {
        let name: ImageName = name
            .parse()
            .map_err(|error| HostError::Invalid(format!("{error}")))?;
        let size = disk_size(request.size, request.size_mib)?;
        let start = when(request.start);
        let bases = self.parts.bases();
        let (looks, wanted) = (bases.clone(), name.clone());
        blocking(move || looks.refuse_taken(&wanted)).await?;
        let cancel = Cancel::default();
        let given_up = cancel.clone();
        let outcome = tokio::spawn(blocking(move || {
            let from = (&request.reference, reach);
            Ok(bases.pull(&name, from, (size, start), &given_up)?)
        }));
        Ok(Incoming {
            pieces: None,
            cancel,
            outcome,
        })
    }

    /// Begins to build an image from a Dockerfile; what is pushed is its context. Cancel-safe.
    pub async fn build_from(
        &self,
        name: &str,
        request: ImageBuildRequest,
    ) -> Result<Incoming, HostError> {
        let name: ImageName = name
            .parse()
            .map_err(|error| HostError::Invalid(format!("{error}")))?;
        let dockerfile = request.dockerfile.as_deref().unwrap_or("Dockerfile");
        let args = request.build_args.as_deref().unwrap_or("{}");
        let args = serde_json::from_str(args).map_err(|error| {
            HostError::Invalid(format!(
                "build_args: wanted a JSON object of texts: {}",
                plainly(&error.to_string())
            ))
        })?;
        let dockerfile = dockerfile
            .parse()
            .and_then(|it: Dockerfile| it.with_args(args))
            .map_err(|error| HostError::Invalid(format!("{error}")))?;
        let size = disk_size(request.size, request.size_mib)?;
        let start = when(request.start);
        let bases = self.parts.bases();
        let (looks, wanted) = (bases.clone(), name.clone());
        blocking(move || looks.refuse_taken(&wanted)).await?;
        let cancel = Cancel::default();
        let (pieces, arriving) = mpsc::channel(UNDER_WAY);
        let given_up = cancel.clone();
        let outcome = tokio::spawn(blocking(move || {
            let from = Arriving {
                pieces: arriving,
                piece: io::Cursor::default(),
                ended: false,
            };
            Ok(bases.build_from(&name, (&dockerfile, size, start), from, &given_up)?)
        }));
        Ok(Incoming {
            pieces: Some(pieces),
            cancel,
            outcome,
        })
    }

    /// One image. Cancel-safe.
    pub async fn image(&self, name: &str) -> Result<GuestImage, HostError> {
        Ok(self.parts.bases().inspect(name.to_owned()).await?)
    }

    /// The disk of an image, as it is or converted. Cancel-safe.
    pub async fn export_image(
        &self,
        name: &str,
        format: ExportFormat,
    ) -> Result<Outgoing, HostError> {
        let (bases, wanted) = (self.parts.bases(), name.to_owned());
        let path = blocking(move || bases.disk(&wanted)).await?;
        if format == ExportFormat::Raw {
            let file = File::open(&path).map_err(HostError::io("read", &path))?;
            return Outgoing::of(file);
        }
        let chain = [Backing {
            path,
            format: Format::Raw,
        }];
        self.export(&chain, format).await
    }

    /// The disk of a checkpoint, or of a VM that has stopped, with all that it
    /// lies over. Cancel-safe.
    pub async fn export_disk(&self, vm: &str, format: ExportFormat) -> Result<Outgoing, HostError> {
        let vm = self.vm(vm)?;
        // Neither forked nor removed meanwhile.
        let _turn = vm.turn().await;
        let record = vm.record();
        match record.state {
            VmState::Checkpoint | VmState::Stopped => {}
            VmState::Starting
            | VmState::Warm
            | VmState::Running
            | VmState::Paused
            | VmState::Ending => {
                return Err(HostError::Running { vm: vm.name() });
            }
        }
        Self::refuse_on_volume(&record, "its disk cannot be exported like this yet")?;
        let disk = Disk::at_rest(&record);
        let base = match self.is_whole(&disk).await? {
            true => None,
            false => Some(self.below(&disk).await?),
        };
        let slices = record.chain.into_iter().map(|path| Backing {
            path,
            format: Format::Qcow2,
        });
        let base = base.map(|base| Backing {
            path: self.parts.folders.page_image(base),
            format: Format::Raw,
        });
        let chain: Vec<_> = slices.chain(base).collect();
        self.export(&chain, format).await
    }

    async fn export(&self, chain: &[Backing], format: ExportFormat) -> Result<Outgoing, HostError> {
        let folder = self.parts.folders.cache.join("tmp");
        fs::create_dir_all(&folder).map_err(HostError::io("create", &folder))?;
        // It has a name until it is whole, for a program to open it in a room of its own. Held,
        // so that it is not taken for one that a daemon has left.
        let file = tempfile::Builder::new()
            .prefix(EXPORT)
            .tempfile_in(&folder)
            .and_then(|file| file.as_file().lock().map(|()| file))
            .map_err(HostError::io("write in", &folder))?;
        let program = QemuImg {
            patience: CONVERTS,
            ..self.parts.images.clone()
        };
        let format = match format {
            ExportFormat::Raw => Format::Raw,
            ExportFormat::Qcow2 => Format::Qcow2,
        };
        program.flatten(chain, file.path(), format).await?;
        Outgoing::of(file.into_file())
    }
}

impl Incoming {
    /// More of it. Fails if the import has failed; why, [`Incoming::finish`]
    /// says. Cancel-safe, but for what is sent.
    pub async fn push(&self, bytes: Vec<u8>) -> Result<(), io::Error> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let pieces = self.pieces.as_ref().ok_or_else(gone)?;
        pieces.send(Piece::Bytes(bytes)).await.map_err(|_| gone())
    }

    /// That was all of it, or all that is wanted: waits until it can be booted
    /// from. If cancelled, it was never there.
    pub async fn finish(mut self) -> Result<GuestImage, HostError> {
        if let Some(pieces) = self.pieces.take() {
            // The receiver is gone if it has failed.
            let _ = pieces.send(Piece::End).await;
        }
        match (&mut self.outcome).await {
            Ok(outcome) => outcome,
            Err(broke) => std::panic::resume_unwind(broke.into_panic()),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.cancel.set();
    }
}

impl Outgoing {
    fn of(file: File) -> Result<Self, HostError> {
        let facts = file.metadata();
        let nowhere = PathBuf::from("the exported disk");
        let facts = facts.map_err(HostError::io("look at", &nowhere))?;
        Ok(Self {
            size: ByteCount(facts.len()),
            file,
        })
    }
}

fn source(request: ImportRequest) -> Result<Source, HostError> {
    let ImportRequest {
        format,
        partition,
        size,
        size_mib,
    } = request;
    let size = disk_size(size, size_mib)?;
    let invalid = |what: &str| Err(HostError::Invalid(what.to_owned()));
    match format {
        ImportFormat::Oci if partition.is_some() => invalid("a container image has no partitions"),
        ImportFormat::Raw | ImportFormat::Qcow2 if size.is_some() => {
            invalid("a disk keeps the size it has; that of a container image can be chosen")
        }
        ImportFormat::Raw => Ok(Source::Raw { partition }),
        ImportFormat::Qcow2 => Ok(Source::Qcow2 { partition }),
        ImportFormat::Oci => Ok(Source::Oci {
            size,
            start: Start::AtBoot,
        }),
    }
}

fn when(start: bool) -> Start {
    match start {
        true => Start::AtBoot,
        false => Start::Never,
    }
}

fn disk_size(size: Option<ByteCount>, mib: Option<u64>) -> Result<Option<ByteCount>, HostError> {
    let wrong = |what: &str| HostError::Invalid(what.to_owned());
    let size = match (size, mib) {
        (size, None) => size,
        (None, Some(mib)) => {
            let size = ByteCount::from_mib(mib);
            Some(size.ok_or_else(|| wrong("the disk would be too large"))?)
        }
        (Some(_), Some(_)) => return Err(wrong("size and size_mib: wanted one of them")),
    };
    match size {
        Some(size) if !size.0.is_multiple_of(1 << 20) => {
            Err(wrong("size: wanted bytes of whole MiB"))
        }
        size => Ok(size),
    }
}

/// An image as it comes in, read where blocking does no harm.
struct Arriving {
    pieces: mpsc::Receiver<Piece>,
    piece: io::Cursor<Vec<u8>>,
    ended: bool,
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.piece.read(buffer)? {
                0 if self.ended => return Ok(0),
                0 => match self.pieces.blocking_recv() {
                    Some(Piece::Bytes(next)) => self.piece = io::Cursor::new(next),
                    Some(Piece::End) => self.ended = true,
                    None => return Err(io::ErrorKind::UnexpectedEof.into()),
                },
                read => return Ok(read),
            }
        }
    }
}
