//! Arguments, and the requests they mean.

use clap::{Parser, Subcommand};
use forkyard_blockd::{Encrypt, Geometry, Request, Users};
use std::path::PathBuf;

/// Serves volumes by NBD, and manages them.
#[derive(Debug, Parser)]
#[command(name = "forkyard-blockd", version)]
pub struct Arguments {
    /// Control socket
    #[arg(
        long,
        value_name = "PATH",
        global = true,
        env = "FORKYARD_BLOCKD_SOCKET"
    )]
    #[arg(default_value = "/run/forkyard/blockd.sock")]
    pub socket: PathBuf,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the volumes of a folder until told to end
    Serve {
        /// Folder of the volumes; made if missing
        #[arg(long, value_name = "DIR", default_value = "/var/lib/forkyard/volumes")]
        folder: PathBuf,
        /// Folder of the keys of encrypted volumes, on another disk perhaps; .keys in that of the volumes if absent
        #[arg(long, value_name = "DIR")]
        keys: Option<PathBuf>,
        /// Socket for NBD clients
        #[arg(long, value_name = "PATH", default_value = "/run/forkyard/nbd.sock")]
        nbd: PathBuf,
        /// Users allowed to connect with a pass, beside this one and root: the first, and the one after the last
        #[arg(long, value_name = "FIRST-END", value_parser = users)]
        users: Option<Users>,
        /// End a server that has these sockets, and go on in its place
        #[arg(long)]
        replace: bool,
        /// Slots of a segment of new volumes: two to the power of it. For tests
        #[arg(long, value_name = "BITS", default_value = "14", hide = true)]
        #[arg(value_parser = geometry)]
        segment_bits: Geometry,
    },
    /// Make a volume of zeroes
    #[command(after_help = "Example:\n  forkyard-blockd create d 10G --encrypted")]
    Create {
        name: String,
        /// Bytes, or a number with K, M, G or T
        #[arg(value_parser = size)]
        size: u64,
        #[command(flatten)]
        encryption: Encryption,
    },
    /// Make a volume over a snapshot of another: it reads what it was not written from that
    #[command(after_help = "Example:\n  forkyard-blockd branch mine d monday")]
    Branch {
        name: String,
        volume: String,
        /// May be taken later: before the first read
        snapshot: String,
    },
    /// List volumes
    Ls,
    /// Tell reads, writes and the like of the volumes that are open, in JSON
    Counts,
    /// Describe a volume, in JSON
    Inspect { name: String },
    /// Begin a writer, and print the name of its export
    Open {
        name: String,
        /// Fence a writer that there is
        #[arg(long)]
        takeover: bool,
    },
    /// End the writer
    Close { name: String },
    /// Keep a volume as it is; its export is NAME@SNAPSHOT
    Snapshot { name: String, snapshot: String },
    /// Print the name by which a client of another user may open an export
    Pass { export: String },
    /// Remove a snapshot
    RmSnapshot { name: String, snapshot: String },
    /// Change the size of a volume
    Resize {
        name: String,
        /// Bytes, or a number with K, M, G or T
        #[arg(value_parser = size)]
        size: u64,
    },
    /// Remove a volume
    Rm { name: String },
    /// Make a volume of a raw disk
    Import {
        name: String,
        file: PathBuf,
        #[command(flatten)]
        encryption: Encryption,
    },
    /// Copy a volume, or a snapshot of it, into a new raw disk
    Export {
        name: String,
        file: PathBuf,
        #[arg(long)]
        snapshot: Option<String>,
    },
    /// Write a snapshot to standard output: all of it, or what differs from an earlier one.
    /// `receive` takes it, here or on another host
    #[command(
        after_help = "Example:\n  forkyard-blockd send d monday --since sunday | ssh b forkyard-blockd receive d"
    )]
    Send {
        name: String,
        snapshot: String,
        /// Earlier snapshot that the other side has
        #[arg(long, value_name = "SNAPSHOT")]
        since: Option<String>,
    },
    /// Take a snapshot from standard input; makes the volume if the stream has all of it.
    /// The volume must have no writer; what was written to it since is undone
    #[command(after_help = "Example:\n  forkyard-blockd receive d <monday.stream")]
    Receive { name: String },
    /// List the hosts that fetch blocks of volumes from here: volume, snapshot, host
    Needs,
    /// Tell why a block went to other hosts, came from there, or did not, in JSON
    #[command(after_help = "Example:\n  forkyard-blockd why d 1200")]
    Why { name: String, block: u64 },
    /// Change the law by which blocks are sent ahead: p = K*fr/fw + fr if fr/fw >= S
    #[command(after_help = "Example:\n  forkyard-blockd tune d --k 1000 --s 0.5")]
    Tune {
        name: String,
        #[arg(long)]
        k: Option<f64>,
        #[arg(long)]
        s: Option<f64>,
    },
    /// End the need of a host that is lost for good. Blocks that it has not fetched are lost to it
    #[command(after_help = "Example:\n  forkyard-blockd unneed d sent-4711 b")]
    Unneed {
        name: String,
        snapshot: String,
        by: String,
    },
    /// Give back room that nothing needs
    Compact { name: String },
    /// Have the server flush all volumes and end
    End,
}

/// Encryption of a new volume.
#[derive(Debug, clap::Args)]
pub struct Encryption {
    /// Encrypt its blocks on the disk
    #[arg(long)]
    encrypted: bool,
    /// File with the key, 64 hexadecimal digits, of mode 0600. A key is made if absent
    #[arg(long, value_name = "FILE", requires = "encrypted")]
    key_file: Option<PathBuf>,
}

impl Encryption {
    fn wanted(self) -> std::io::Result<Option<Encrypt>> {
        let key = self.key_file.map(std::path::absolute).transpose()?;
        Ok(self.encrypted.then_some(Encrypt { key }))
    }
}

fn geometry(text: &str) -> Result<Geometry, String> {
    let bits = text.parse().ok().and_then(Geometry::new);
    bits.ok_or_else(|| format!("{text} is not 1 to 20"))
}

fn users(text: &str) -> Result<Users, String> {
    let range = text.split_once('-');
    let range = range.and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    let range = range.filter(|range: &std::ops::Range<u32>| range.start > 0 && !range.is_empty());
    range
        .map(Users)
        .ok_or_else(|| format!("{text:?} is no range of users: wanted FIRST-END, without root"))
}

fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.trim_end_matches(['K', 'M', 'G', 'T']) {
        number if number.len() == text.len() => (number, 0),
        number => match &text[number.len()..] {
            "K" => (number, 10),
            "M" => (number, 20),
            "G" => (number, 30),
            "T" => (number, 40),
            other => return Err(format!("{other} is no unit: K, M, G and T are")),
        },
    };
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is no size"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("{text} is too large"))
}

impl Command {
    /// Request to the server; `None` if this is to be one.
    pub fn request(self) -> std::io::Result<Option<Request>> {
        Ok(Some(match self {
            Self::Serve { .. } => return Ok(None),
            Self::Create {
                name,
                size,
                encryption,
            } => Request::Create {
                name,
                size,
                encrypt: encryption.wanted()?,
            },
            Self::Branch {
                name,
                volume,
                snapshot,
            } => Request::Branch {
                name,
                volume,
                snapshot,
            },
            Self::Ls => Request::List {},
            Self::Counts => Request::Counts {},
            Self::Inspect { name } => Request::Inspect { name },
            Self::Open { name, takeover } => Request::Open { name, takeover },
            Self::Close { name } => Request::Close { name, epoch: None },
            Self::Pass { export } => Request::Pass { export },
            Self::Snapshot { name, snapshot } => Request::Snapshot {
                name,
                snapshot,
                at_once: false,
            },
            Self::RmSnapshot { name, snapshot } => Request::DropSnapshot { name, snapshot },
            Self::Resize { name, size } => Request::Resize { name, size },
            Self::Rm { name } => Request::Remove { name },
            // The server's working directory is another.
            Self::Import {
                name,
                file,
                encryption,
            } => Request::Import {
                name,
                file: std::path::absolute(file)?,
                size: None,
                encrypt: encryption.wanted()?,
            },
            Self::Export {
                name,
                file,
                snapshot,
            } => Request::Export {
                name,
                snapshot,
                file: std::path::absolute(file)?,
            },
            Self::Send {
                name,
                snapshot,
                since,
            } => Request::Send {
                name,
                snapshot,
                since,
                hot: None,
                to: None,
            },
            Self::Why { name, block } => Request::Why { name, block },
            Self::Tune { name, k, s } => Request::Tune { name, k, s },
            Self::Needs => Request::Needs {},
            Self::Unneed { name, snapshot, by } => Request::Unneed { name, snapshot, by },
            Self::Receive { name } => Request::Receive { name, epoch: None },
            Self::Compact { name } => Request::Compact { name },
            Self::End => Request::End {},
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("3G"), Ok(3 << 30));
        for wrong in ["", "G", "1GG", "1X", "-1", "99999999T"] {
            size(wrong).expect_err(wrong);
        }
    }
}
