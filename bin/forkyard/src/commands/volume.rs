//! `volume`: disks that outlive the VMs that write them.

mod moves;
mod show;
mod why;

use super::removal::remove;
use crate::{args::Format, output};
use clap::Subcommand;
use forkyard_api_client::{Client, escaped};
use forkyard_types::{
    ByteCount, CreateVolume, DataVolume, ExportVolume, MirrorVolume, ResizeVolume, RootVolume,
    SnapshotVolume, TuneVolume, VmName, VolumeView, VolumeWhy, WhenMirrorAway,
};
use hyper::Method;
use std::{path::PathBuf, process::ExitCode};

/// `volume`
#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Make a volume: of zeroes, or a copy of an image's disk.
    #[command(
        after_help = "Examples:\n  forkyard volume create data 10G\n  forkyard volume create web 4G --image debian\n  forkyard volume create pg 10G --encrypted"
    )]
    Create {
        /// Name of the volume.
        name: VmName,
        /// Size: bytes, or a number with K, M, G or T. That of the image's disk if absent.
        #[arg(value_parser = size, required_unless_present = "image")]
        size: Option<ByteCount>,
        /// Image whose disk it is a copy of. It is built if it has not been yet.
        #[arg(long)]
        image: Option<String>,
        #[command(flatten)]
        encryption: Encryption,
    },
    /// List the volumes.
    #[command(after_help = "Example: forkyard volume ls -o json")]
    Ls,
    /// Show a volume, its snapshots, and the VMs that have it.
    #[command(after_help = "Example: forkyard volume inspect web")]
    Inspect {
        /// Name of the volume.
        name: VmName,
    },
    /// Keep a volume as it is, also while a VM writes it.
    #[command(
        after_help = "Examples:\n  forkyard volume snapshot web monday\n  forkyard volume snapshot web monday --rm"
    )]
    Snapshot {
        /// Name of the volume.
        name: VmName,
        /// Name of the snapshot.
        snapshot: String,
        /// Remove the snapshot instead. No VM may lie over it.
        #[arg(long)]
        rm: bool,
    },
    /// Change the size of a volume that no VM has. A file system in it keeps its own.
    #[command(after_help = "Example: forkyard volume resize web 20G")]
    Resize {
        /// Name of the volume.
        name: VmName,
        /// New size: bytes, or a number with K, M, G or T.
        #[arg(value_parser = size)]
        size: ByteCount,
    },
    /// Tell why a block went to other hosts, came from there, or did not.
    #[command(
        after_help = "Examples:\n  forkyard volume why web 1200\n  forkyard volume why web --offset 4M -o json"
    )]
    Why {
        /// Name of the volume.
        name: VmName,
        /// Number of the block, of 4096 bytes.
        #[arg(required_unless_present = "offset")]
        block: Option<u64>,
        /// Offset of a byte in it instead: bytes, or a number with K, M, G or T.
        #[arg(long, value_parser = size, conflicts_with = "block")]
        offset: Option<ByteCount>,
    },
    /// Change the law by which blocks are sent ahead, also while a VM writes the volume: a block that was
    /// read fr times and written fw times has the priority K*fr/fw + fr if fr/fw >= S, and none otherwise.
    #[command(after_help = "Example: forkyard volume tune web --k 1000 --s 0.5")]
    Tune {
        /// Name of the volume.
        name: VmName,
        /// Weight of the ratio of reads to writes; 1000 at first.
        #[arg(long)]
        k: Option<f64>,
        /// Least ratio of reads to writes; 1 at first.
        #[arg(long)]
        s: Option<f64>,
    },
    /// Have other hosts hold every flush of a volume: a flush of the guest is answered once it is on their
    /// disks, too. Without hosts: not any more.
    #[command(
        after_help = "Examples:\n  forkyard volume mirror pg h1\n  forkyard volume mirror pg h1 h2 --away go-on\n  forkyard volume mirror pg"
    )]
    Mirror {
        /// Name of the volume.
        name: VmName,
        /// Hosts.
        hosts: Vec<String>,
        /// Flushes while one of them is away: `wait` for it, or `go-on` without it.
        #[arg(long, default_value = "wait", value_parser = away)]
        away: WhenMirrorAway,
    },
    /// Move a volume that no VM has to another host, with its snapshots. What stays here is a copy, which makes
    /// the way back short. A volume that a VM has moves with it: `forkyard migrate`.
    #[command(
        after_help = "Examples:\n  forkyard volume move pg --to h1\n  forkyard volume move pg --to 10.0.0.2 --disk on-demand -o json"
    )]
    Move(moves::Move),
    /// Move a volume that no VM has here, from the host that it is at.
    #[command(
        after_help = "Examples:\n  forkyard volume bring pg\n  forkyard volume bring pg --from h0"
    )]
    Bring(moves::Bring),
    /// Make a copy that this host holds for another one a volume that is at home here, as it was at the last
    /// flush that is held here. The other host is fenced: its writer writes nothing any more once it hears of it.
    #[command(
        after_help = "Example, where h0 is lost:\n  forkyard volume promote pg && forkyard run debian --data pg"
    )]
    Promote {
        /// Name of the volume.
        name: VmName,
    },
    /// Make a volume of a raw disk, a file of the host.
    #[command(
        after_help = "Example: forkyard volume import web disk.img\nOf another kind: qemu-img convert -O raw disk.qcow2 disk.img"
    )]
    Import {
        /// Name of the volume.
        name: VmName,
        /// File.
        file: PathBuf,
        #[command(flatten)]
        encryption: Encryption,
    },
    /// Copy a volume that no VM writes, or a snapshot of any, into a new raw disk.
    #[command(after_help = "Example: forkyard volume export web disk.img --snapshot monday")]
    Export {
        /// Name of the volume.
        name: VmName,
        /// File of the host, which must not exist.
        file: PathBuf,
        /// Snapshot to copy.
        #[arg(long)]
        snapshot: Option<String>,
    },
    /// Remove volumes that no VM has, with their snapshots.
    #[command(after_help = "Example: forkyard volume rm web")]
    Rm {
        /// Names of the volumes.
        #[arg(required = true)]
        names: Vec<VmName>,
    },
}

/// Encryption of a new volume.
#[derive(Debug, clap::Args)]
pub struct Encryption {
    /// Encrypt its blocks on the host's disk. What is exported is not.
    #[arg(long)]
    encrypted: bool,
    /// File of the host with its key, 64 hexadecimal digits, of mode 0600. A key is made if absent,
    /// and goes with the volume.
    #[arg(long, value_name = "FILE", requires = "encrypted")]
    key_file: Option<PathBuf>,
}

impl Encryption {
    fn of(self, request: CreateVolume) -> std::io::Result<CreateVolume> {
        Ok(CreateVolume {
            encrypted: self.encrypted,
            key_file: self.key_file.map(std::path::absolute).transpose()?,
            ..request
        })
    }
}

/// Volumes that are disks of a VM.
#[derive(Debug, clap::Args)]
pub struct Disks {
    /// Volume that is its root disk. One that does not exist is made as a copy of the image's disk,
    /// of the size that is said; with `encrypted`, its blocks are encrypted on the host's disk.
    #[arg(long, value_name = "NAME[:SIZE][:encrypted]", value_parser = root_volume)]
    pub volume: Option<RootVolume>,
    /// Volume that is a disk of it beside that, /dev/disk/by-id/virtio-NAME; may be repeated. With a
    /// size it is made if there is none; with `ro`, or of a snapshot, any number of VMs may read it.
    #[arg(long, value_name = "NAME[@SNAPSHOT][:SIZE][:ro][:encrypted]", value_parser = data_volume)]
    pub data: Vec<DataVolume>,
}

/// Reads a size.
pub fn size(text: &str) -> Result<ByteCount, String> {
    let digits = text.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        unit => return Err(format!("{unit} is no unit: K, M, G and T are")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no size"))?;
    number
        .checked_mul(1 << shift)
        .map(ByteCount)
        .ok_or_else(|| format!("{text} is too large"))
}

/// Reads what is done while a host is away.
fn away(text: &str) -> Result<WhenMirrorAway, String> {
    match text {
        "wait" => Ok(WhenMirrorAway::Wait),
        "go-on" => Ok(WhenMirrorAway::GoOn),
        _ => Err(format!("{text:?} is neither wait nor go-on")),
    }
}

/// Reads the volume that a VM is to boot on, `NAME[:SIZE][:encrypted]`.
fn root_volume(text: &str) -> Result<RootVolume, String> {
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    let mut wanted = RootVolume {
        name: name.parse().map_err(|error| format!("{error}"))?,
        size: None,
        encrypted: false,
    };
    for part in parts {
        match part {
            "encrypted" => wanted.encrypted = true,
            _ if wanted.size.is_none() => wanted.size = Some(size(part)?),
            _ => return Err(format!("{text:?} has two sizes")),
        }
    }
    Ok(wanted)
}

/// Reads a volume that is to be a data disk, `NAME[@SNAPSHOT][:SIZE][:ro][:encrypted]`.
fn data_volume(text: &str) -> Result<DataVolume, String> {
    let mut parts = text.split(':');
    let named = parts.next().unwrap_or_default();
    let (name, snapshot) = match named.split_once('@') {
        Some((name, snapshot)) => (name, Some(snapshot.to_owned())),
        None => (named, None),
    };
    let mut wanted = DataVolume {
        name: name.parse().map_err(|error| format!("{error}"))?,
        size: None,
        read_only: snapshot.is_some(),
        snapshot,
        encrypted: false,
    };
    for part in parts {
        match part {
            "ro" => wanted.read_only = true,
            "encrypted" => wanted.encrypted = true,
            _ if wanted.size.is_none() => wanted.size = Some(size(part)?),
            _ => return Err(format!("{text:?} has two sizes")),
        }
    }
    Ok(wanted)
}

/// Carries out one of them.
pub async fn volume(client: &Client, format: Format, command: Volume) -> anyhow::Result<ExitCode> {
    let seen: VolumeView = match command {
        Volume::Ls => {
            let all: Vec<VolumeView> = client.call(Method::GET, "/v1/volumes").await?;
            match format {
                Format::Json => output::json(&all)?,
                Format::Text => show::show(&all),
            }
            return Ok(ExitCode::SUCCESS);
        }
        Volume::Inspect { name } => {
            let seen: VolumeView = client.call(Method::GET, &path(&name)).await?;
            if format == Format::Text {
                show::describe(&seen);
                return Ok(ExitCode::SUCCESS);
            }
            seen
        }
        Volume::Rm { names } => {
            let paths = names.iter().map(path);
            return remove(client, format, paths, |gone: &VolumeView| &gone.name).await;
        }
        Volume::Create {
            name,
            size,
            image,
            encryption,
        } => {
            let request = CreateVolume {
                size,
                image,
                ..empty(name)
            };
            client.post("/v1/volumes", &encryption.of(request)?).await?
        }
        Volume::Import {
            name,
            file,
            encryption,
        } => {
            let request = CreateVolume {
                file: Some(std::path::absolute(file)?),
                ..empty(name)
            };
            client.post("/v1/volumes", &encryption.of(request)?).await?
        }
        Volume::Snapshot {
            name,
            snapshot,
            rm: true,
        } => {
            let path = format!("{}/snapshots/{}", path(&name), escaped(&snapshot));
            client.call(Method::DELETE, &path).await?
        }
        Volume::Snapshot {
            name,
            snapshot,
            rm: false,
        } => {
            let request = SnapshotVolume {
                name: snapshot.parse()?,
            };
            let path = format!("{}/snapshots", path(&name));
            client.post(&path, &request).await?
        }
        Volume::Why {
            name,
            block,
            offset,
        } => {
            let block = block.or(offset.map(|it| it.0 / 4096)).unwrap_or_default();
            let path = format!("{}/why?block={block}", path(&name));
            let seen: VolumeWhy = client.call(Method::GET, &path).await?;
            match format {
                Format::Json => output::json(&seen)?,
                Format::Text => why::show(&seen),
            }
            return Ok(ExitCode::SUCCESS);
        }
        Volume::Tune { name, k, s } => {
            let path = format!("{}/tune", path(&name));
            client.post(&path, &TuneVolume { k, s }).await?
        }
        Volume::Mirror { name, hosts, away } => {
            let path = format!("{}/mirror", path(&name));
            client.post(&path, &MirrorVolume { hosts, away }).await?
        }
        Volume::Promote { name } => {
            let path = format!("{}/promote", path(&name));
            client.call(Method::POST, &path).await?
        }
        Volume::Move(wanted) => return moves::move_to(client, format, wanted).await,
        Volume::Bring(wanted) => return moves::bring(client, format, wanted).await,
        Volume::Resize { name, size } => {
            let path = format!("{}/resize", path(&name));
            client.post(&path, &ResizeVolume { size }).await?
        }
        Volume::Export {
            name,
            file,
            snapshot,
        } => {
            let request = ExportVolume {
                file: std::path::absolute(file)?,
                snapshot,
            };
            client
                .post(&format!("{}/export", path(&name)), &request)
                .await?
        }
    };
    match format {
        Format::Json => output::json(&seen)?,
        Format::Text => say!("{}, {}", seen.name, seen.size),
    }
    Ok(ExitCode::SUCCESS)
}

fn empty(name: VmName) -> CreateVolume {
    CreateVolume {
        name,
        size: None,
        image: None,
        file: None,
        encrypted: false,
        key_file: None,
    }
}

fn path(name: &VmName) -> String {
    format!("/v1/volumes/{}", escaped(name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_disk_is_a_volume_a_snapshot_or_what_many_may_read() {
        let wanted = data_volume("d:4G").expect("both");
        assert_eq!(
            (wanted.size, wanted.read_only),
            (Some(ByteCount(4 << 30)), false)
        );
        assert!(data_volume("d:ro").expect("both").read_only);
        let wanted = data_volume("d:4G:encrypted").expect("both");
        assert!(wanted.encrypted && wanted.size.is_some());
        let wanted = data_volume("d@monday").expect("a snapshot");
        assert_eq!(
            (wanted.snapshot.as_deref(), wanted.read_only),
            (Some("monday"), true)
        );
        for wrong in ["", ":ro", "d:", "d:rw", "d:1G:2G", "D"] {
            data_volume(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn a_volume_has_a_name_and_if_it_is_to_be_made_a_size() {
        let wanted = root_volume("web:4G").expect("both");
        assert_eq!(wanted.size, Some(ByteCount(4 << 30)));
        assert_eq!(root_volume("web").expect("a name").size, None);
        let wanted = root_volume("web:encrypted").expect("a name");
        assert!(wanted.encrypted && wanted.size.is_none());
        for wrong in [
            "",
            ":4G",
            "web:",
            "web:4X",
            "Web",
            "web:99999999T",
            "web:-1",
        ] {
            root_volume(wrong).expect_err(wrong);
        }
    }
}
