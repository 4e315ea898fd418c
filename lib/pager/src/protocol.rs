//! Messages between client and pager.
//!
//! A message is its length (4 bytes, little-endian) and so many bytes of JSON;
//! the descriptor of a layer travels with the first byte of the request that
//! needs it. Both sides first say [`Hello`], then the client asks and the
//! pager answers, one at a time.

use crate::peers::{Arrival, LinkUse};
use forkyard_image::Lineage;
use forkyard_sys_host::fdpass;
use forkyard_transfer::{Push, Run};
use forkyard_types::{ImageId, ImageUse, ImageView, PageCount};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The version spoken here.
pub(crate) const VERSION: u32 = 1;
/// Longest message. A list of all images takes some 250 bytes for each.
const MAX_MESSAGE: usize = 16 << 20;

/// The first message in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Version of all that follows.
    pub version: u32,
    /// The process that says it.
    #[serde(default)]
    pub pid: u32,
}

impl Hello {
    /// Returns the greeting of this side.
    pub fn ours() -> Self {
        Self {
            version: VERSION,
            pid: std::process::id(),
        }
    }
}

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    Ping,
    Promise {
        image: ImageId,
        pages: PageCount,
    },
    /// Comes with the layer's descriptor.
    Publish {
        image: ImageId,
        parent: Option<ImageId>,
    },
    Fail {
        image: ImageId,
        reason: String,
    },
    Retire {
        image: ImageId,
    },
    Stats {
        image: ImageId,
    },
    List,
    /// Other hosts are listened to from now on.
    Listen {
        at: SocketAddr,
    },
    /// Other hosts get an image from now on.
    Offer {
        image: ImageId,
        offering: Offering,
    },
    /// They do not any more.
    Withdraw {
        image: ImageId,
        key: PeerKey,
    },
    /// An image comes from another host.
    Fetch {
        image: ImageId,
        fetching: Fetching,
    },
    /// All of it is to come.
    Settle {
        image: ImageId,
    },
    /// Ask for the progress of its arrival.
    Arrival {
        image: ImageId,
    },
    /// List the traffic between this host and others.
    Links,
    /// List the pages of an image that read otherwise than another's.
    Changes {
        image: ImageId,
        since: ImageId,
    },
    /// List the pages of an image that are as if drawn.
    Noise {
        image: ImageId,
    },
    /// List the pages of an image that its clones are expected to want.
    Expected {
        image: ImageId,
    },
    /// List the pages of an image that clones here have touched.
    Touched {
        image: ImageId,
    },
    /// Clones elsewhere have touched these pages of an image.
    TouchedElsewhere {
        image: ImageId,
        runs: Vec<Run>,
    },
    /// The pager is to end, and one of this program to take over.
    Replace {
        program: PathBuf,
    },
    Shutdown(Shutdown),
}

impl Request {
    pub fn publish(lineage: Lineage) -> Self {
        Self::Publish {
            image: lineage.image,
            parent: lineage.parent,
        }
    }
}

impl Request {
    /// Tells whether this refusal is the one that a request gets that was
    /// carried out before.
    pub fn has_had_effect(&self, refusal: &PagerRefusal) -> bool {
        match (self, refusal) {
            (
                Self::Promise { image, .. }
                | Self::Publish { image, .. }
                | Self::Fetch { image, .. },
                refusal,
            ) => *refusal == PagerRefusal::AlreadyExists { image: *image },
            (Self::Retire { image }, refusal) => {
                *refusal == PagerRefusal::UnknownImage { image: *image }
            }
            (
                Self::Ping
                | Self::Fail { .. }
                | Self::Stats { .. }
                | Self::List
                | Self::Listen { .. }
                | Self::Offer { .. }
                | Self::Withdraw { .. }
                | Self::Settle { .. }
                | Self::Arrival { .. }
                | Self::Links
                | Self::Changes { .. }
                | Self::Noise { .. }
                | Self::Expected { .. }
                | Self::Touched { .. }
                | Self::TouchedElsewhere { .. }
                | Self::Replace { .. }
                | Self::Shutdown(_),
                _,
            ) => false,
        }
    }
}

/// Answer of the pager to a request it carries out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Done,
    Stats(ImageUse),
    List(Vec<ImageView>),
    Listening(SocketAddr),
    Arrival(Arrival),
    Links(Vec<LinkUse>),
    Runs(Vec<Run>),
}

/// The secret of a family, with which its hosts give each other pages.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PeerKey(pub [u8; 32]);

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerKey(…)")
    }
}

/// Terms on which an image is served to other hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offering {
    /// Key of the family.
    pub key: PeerKey,
    /// Port of the group that all hosts listen to; `None`: each is served alone.
    pub group: Option<u16>,
    /// Hosts that will want it: they are pushed the working set when all are there.
    pub hosts: usize,
    /// Pages they are sent before they ask.
    #[serde(default)]
    pub push: Push,
    /// Pages that each of them reads for itself: only a host that asks gets them.
    #[serde(default)]
    pub disjoint: Vec<Run>,
    /// Everything is sent before they ask: these pages after all others.
    #[serde(default)]
    pub last: Option<Vec<Run>>,
    /// They have all pages but these: just these are sent before they ask, whatever is said of
    /// pushing.
    #[serde(default)]
    pub changed: Option<Vec<Run>>,
}

/// An image that is here and that one on its way lies over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Over {
    /// The image that is here.
    pub image: ImageId,
    /// Pages that come; all others read as that image's.
    pub changed: Vec<Run>,
}

/// From where an image comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetching {
    /// Size of the image.
    pub pages: PageCount,
    /// Key of the family.
    pub key: PeerKey,
    /// Address at which the pager that has it listens.
    pub server: SocketAddr,
    /// Our address on the way there.
    pub local: IpAddr,
    /// True if all of it is to come, in the background.
    pub settle: bool,
    /// These pages of it before all others.
    #[serde(default)]
    pub first: Vec<Run>,
    /// These pages of it after all others.
    #[serde(default)]
    pub last: Vec<Run>,
    /// An image of the same size that it lies over; none: all of its pages come.
    #[serde(default)]
    pub over: Option<Over>,
}

/// Condition under which a pager ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shutdown {
    /// Now if no file is open, else not at all.
    WhenUnused,
    /// Now, whatever still maps its files: it gets SIGBUS.
    Now,
}

/// Reason why the pager did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PagerRefusal {
    /// The pager has no such image.
    #[error("no image {image}")]
    UnknownImage {
        /// The image.
        image: ImageId,
    },
    /// The pager has that image already, promised, published or failed.
    #[error("image {image} exists already")]
    AlreadyExists {
        /// The image.
        image: ImageId,
    },
    /// The promise of that image was broken before.
    #[error("image {image} has failed")]
    HasFailed {
        /// The image.
        image: ImageId,
    },
    /// The image to lie over is not known.
    #[error("no parent image {parent}")]
    ParentUnknown {
        /// The image missing.
        parent: ImageId,
    },
    /// The image to lie over is only promised, or failed.
    #[error("parent image {parent} is not published")]
    ParentNotReady {
        /// That image.
        parent: ImageId,
    },
    /// The layer is of another size than was promised.
    #[error("{got} published, {promised} promised")]
    WrongSize {
        /// Pages promised.
        promised: PageCount,
        /// Pages in the layer.
        got: PageCount,
    },
    /// The layer names another image or another parent than the request.
    #[error("file holds a layer of image {image} over {parent:?}")]
    WrongLineage {
        /// Image it names.
        image: ImageId,
        /// Parent it names.
        parent: Option<ImageId>,
    },
    /// The file is no intact layer.
    #[error("bad layer: {why}")]
    BadLayer {
        /// Description of the fault, causes joined by a colon.
        why: String,
    },
    /// The image is only promised, still on its way, or failed.
    #[error("image {image} is not all here")]
    NotReady {
        /// That image.
        image: ImageId,
    },
    /// Other hosts are listened to at another address.
    #[error("pager listens to other hosts already")]
    ListensAlready,
    /// Other hosts cannot reach this pager.
    #[error("pager does not listen to other hosts")]
    ListensNot,
    /// A layer was to come with the request and did not.
    #[error("no file came with the request")]
    MissingFile,
    /// Files are open, so ending would kill their users.
    #[error("{files} files are in use")]
    InUse {
        /// Open files.
        files: u32,
    },
    /// The pager has no keeper to hand over to.
    #[error("no program can take over from this pager: it was started without a keeper")]
    NoSuccessor,
    /// The host would not do it.
    #[error("host refuses: {why}")]
    Host {
        /// Message of the host.
        why: String,
    },
}

/// Sends one message, with a descriptor if one belongs to it.
pub(crate) fn send<T: Serialize>(
    stream: &UnixStream,
    message: &T,
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= MAX_MESSAGE);
    let length = length.ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?;
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend(body);
    fdpass::send(stream, &frame, fd)
}

/// Receives one message and the descriptor that came with it; `None` when the
/// peer has closed the connection between two messages.
pub(crate) fn receive<T: DeserializeOwned>(
    stream: &UnixStream,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut length = [0; 4];
    let (got, fd) = fdpass::receive(stream, &mut length)?;
    if got == 0 {
        return Ok(None);
    }
    let mut rest = stream;
    rest.read_exact(&mut length[got..])?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut body = Vec::new();
    // Grows with what arrives, not with what the length claims.
    rest.take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((serde_json::from_slice(&body)?, fd)))
}

#[cfg(test)]
mod tests;
