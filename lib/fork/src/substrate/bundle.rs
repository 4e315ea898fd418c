//! The folder in which a substrate is carried from one host to another.
//!
//! | file | is |
//! |---|---|
//! | `memory.pages` | memory, as a layer over nothing |
//! | `disk.pages` | the disk, as a layer over the guest image alone |
//! | `devices` | state of CPUs and devices |
//! | `substrate.json` | what it is, and size and BLAKE3 of each file; written last |
//! | `substrate.sig` | the key of the host that pushed it, a space, and its signature of `substrate.json` |
//!
//! A folder appears under its name once it is whole. It is input that may be anything: files are
//! opened without following links, read no further than the manifest says, and compared with it.

use super::{
    DEVICES, DISK, Entry, MEMORY, SubstrateError,
    pack::{make_private, part},
};
use crate::HostError;
use forkyard_image::Image;
use forkyard_substrate::sign::{PublicKey, Signature, Signer};
use forkyard_sys_host::private;
use forkyard_types::{SubstrateParts, VmName};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// File that describes the substrate.
const MANIFEST: &str = "substrate.json";
/// File with the signature of the description.
const SIGNED: &str = "substrate.sig";
/// Version of the folder's form.
const VERSION: u32 = 1;
/// Beginning of the name of a folder that is not whole.
pub(super) const PASSING: &str = ".carried-";
/// Most bytes of a manifest.
const LONGEST: u64 = 1 << 20;
const FILES: [&str; 3] = [MEMORY, DISK, DEVICES];

/// Way in which files are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As the same files, where that can be: both sides are this host's own.
    Link,
    /// As copies, of and for others.
    Copy,
    /// As the same files, which were others' and are removed where they are.
    Move,
}

/// Description of a substrate in its folder.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    version: u32,
    pub name: VmName,
    pub entry: Entry,
    pub files: BTreeMap<String, Facts>,
}

/// A file of it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    bytes: u64,
    blake3: String,
}

/// Origin of a folder's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signed {
    By(PublicKey),
    ByNoOne,
}

/// Files of a substrate, and what is written anew to depend on no other one.
pub(super) struct Contents {
    /// Folder of the substrate's files.
    pub from: PathBuf,
    pub parts: SubstrateParts,
    pub memory: Option<Image>,
    pub disk: Option<Image>,
}

impl Manifest {
    /// Of a substrate whose files are not written yet.
    pub fn of(name: VmName, entry: Entry) -> Self {
        Self {
            version: VERSION,
            name,
            entry,
            files: BTreeMap::new(),
        }
    }

    /// Describes the files that are in a folder. Blocks.
    pub fn with_files_of(mut self, folder: &Path) -> Result<Self, HostError> {
        for name in FILES {
            self.files
                .insert(name.to_owned(), facts(&folder.join(name))?);
        }
        Ok(self)
    }
}

/// Writes all files of a folder, under another name until it is whole. Blocks.
pub(super) fn put(
    to: &Path,
    contents: Contents,
    mut manifest: Manifest,
    (way, signer): (Way, Option<&Signer>),
) -> Result<(), HostError> {
    let Contents {
        from,
        mut parts,
        memory,
        disk,
    } = contents;
    let parent = to.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(HostError::io("create", parent))?;
    let passing = tempfile::Builder::new().prefix(PASSING).tempdir_in(parent);
    let passing = passing.map_err(HostError::io("create a folder in", parent))?;
    let place = |name: &str| passing.path().join(name);
    match memory {
        Some(whole) => parts.memory = part(&whole, None, &place(MEMORY))?,
        None => carry(&from.join(MEMORY), &place(MEMORY), way, u64::MAX)?,
    }
    match disk {
        // Its lowest layer is the guest image.
        Some(whole) => parts.disk = part(&whole, whole.prefix(1).as_ref(), &place(DISK))?,
        None => carry(&from.join(DISK), &place(DISK), way, u64::MAX)?,
    }
    carry(&from.join(DEVICES), &place(DEVICES), way, u64::MAX)?;
    manifest = manifest.with_files_of(passing.path())?;
    manifest.entry.parts = Some(parts);
    let path = place(MANIFEST);
    let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::from);
    let text = text.map_err(HostError::io("write", &path))?;
    if let Some(signer) = signer {
        let signed = format!(
            "{} {}\n",
            signer.public().map_err(SubstrateError::from)?,
            signer.sign(&text).map_err(SubstrateError::from)?
        );
        write(&place(SIGNED), signed.as_bytes())?;
    }
    write(&path, &text)?;
    match fs::rename(passing.path(), to) {
        Ok(()) => {
            // It has another name: there is nothing to remove.
            let _ = passing.keep();
            Ok(())
        }
        Err(_) if to.join(MANIFEST).exists() => Ok(()),
        Err(error) => Err(HostError::io("name", to)(error)),
    }
}

fn write(path: &Path, text: &[u8]) -> Result<(), HostError> {
    private::create_new(path)
        .and_then(|mut file| {
            file.write_all(text)?;
            file.sync_all()
        })
        .map_err(HostError::io("write", path))
}

/// Reads a folder's manifest, and the origin of its signature. Blocks for a moment.
pub(super) fn read(folder: &Path) -> Result<(Manifest, Signed), HostError> {
    let refuse = |why: String| SubstrateError::NotBrought {
        path: folder.to_owned(),
        why,
    };
    let text = short(&folder.join(MANIFEST))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| refuse(format!("{MANIFEST}: {error}")))?;
    if manifest.version != VERSION {
        let why = format!(
            "its form is {}, this host knows {VERSION}",
            manifest.version
        );
        return Err(refuse(why).into());
    }
    let path = folder.join(SIGNED);
    if path.symlink_metadata().is_err() {
        return Ok((manifest, Signed::ByNoOne));
    }
    let said = short(&path)?;
    let said = String::from_utf8_lossy(&said);
    let words = said.trim_end().split_once(' ');
    let parsed = words.and_then(|(key, signature)| {
        Some((
            key.parse::<PublicKey>().ok()?,
            signature.parse::<Signature>().ok()?,
        ))
    });
    let (key, signature) = parsed.ok_or_else(|| refuse(format!("{SIGNED} is no signature")))?;
    key.check(&text, &signature)
        .map_err(|error| refuse(error.to_string()))?;
    Ok((manifest, Signed::By(key)))
}

/// All of a short file.
fn short(path: &Path) -> Result<Vec<u8>, HostError> {
    let mut text = Vec::new();
    open(path)
        .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut text))
        .map_err(HostError::io("read", path))?;
    match text.len() as u64 > LONGEST {
        true => Err(SubstrateError::NotBrought {
            path: path.to_owned(),
            why: format!("it is longer than {LONGEST} bytes"),
        }
        .into()),
        false => Ok(text),
    }
}

/// Opens a regular file, itself and no link to another.
fn open(path: &Path) -> io::Result<File> {
    // A pipe in its place would be waited for.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => {
            let why = "it is no regular file";
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
    }
}

/// Makes the folder of a substrate, which must be new. Blocks for a moment.
pub(super) fn make_new(parent: &Path, folder: &Path) -> Result<(), HostError> {
    make_private(&[parent])?;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(SubstrateError::NotBrought {
                path: folder.to_owned(),
                why: "it is being brought here already".into(),
            }
            .into())
        }
        made => made.map_err(HostError::io("create", folder)),
    }
}

/// Brings files in, and compares each with what the manifest says. Blocks.
pub(super) fn take(
    from: &Path,
    to: &Path,
    known: &BTreeMap<String, Facts>,
    way: Way,
) -> Result<(), HostError> {
    let parent = to.parent().unwrap_or(Path::new("/"));
    for name in FILES {
        let own = to.join(name);
        let told = known.get(name);
        // What was taken is what is compared: the other may change under its name.
        carry(&from.join(name), &own, way, told.map_or(0, |it| it.bytes))?;
        if told != Some(&facts(&own)?) {
            return Err(SubstrateError::NotBrought {
                path: from.to_owned(),
                why: format!("{name} is not what was written: it is damaged"),
            }
            .into());
        }
    }
    for folder in [to, parent] {
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(HostError::io("write", folder))?;
    }
    Ok(())
}

/// Brings a file of so many bytes from one place to another. Of a longer one no more.
fn carry(from: &Path, to: &Path, way: Way, bytes: u64) -> Result<(), HostError> {
    let links = match way {
        Way::Link | Way::Move => true,
        Way::Copy => false,
    };
    if links && fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let source = open(from).map_err(HostError::io("read", from))?;
    let mut file = private::create_new(to).map_err(HostError::io("create", to))?;
    io::copy(&mut source.take(bytes.saturating_add(1)), &mut file)
        .and_then(|_| file.sync_all())
        .map_err(HostError::io("write", to))
}

fn facts(path: &Path) -> Result<Facts, HostError> {
    let mut hasher = blake3::Hasher::new();
    let mut file = File::open(path).map_err(HostError::io("read", path))?;
    let bytes = io::copy(&mut file, &mut hasher).map_err(HostError::io("read", path))?;
    Ok(Facts {
        bytes,
        blake3: hasher.finalize().to_hex().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Purpose;
    use forkyard_types::ErrorKind;
    use nix::{sys::stat::Mode, unistd::mkfifo};
    use std::os::unix::fs::symlink;

    #[test]
    fn a_folder_that_no_host_has_pushed_is_a_fault_of_the_request() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        for name in ["empty", "fifo", "link", "long"] {
            fs::create_dir(place(name)).expect("a folder");
        }
        mkfifo(&place("fifo").join(MANIFEST), Mode::S_IRUSR).expect("a FIFO");
        symlink("/etc/passwd", place("link").join(MANIFEST)).expect("a link");
        let long = File::create(place("long").join(MANIFEST)).expect("a file");
        long.set_len(LONGEST + 1).expect("a long file");
        fs::write(place("file"), "x").expect("a file");
        for (name, why) in [
            ("none", "there is no file"),
            ("empty", "there is no file"),
            ("file", "Not a directory"),
            ("fifo", "it is no regular file"),
            ("link", "symbolic links"),
            ("long", "it is longer than"),
        ] {
            let from = place(name);
            let error = read(&from).expect_err("refused");
            let told = error.of_request(Purpose::Pull, &from).to_api();
            assert_eq!(told.kind, ErrorKind::Invalid, "{}", told.message);
            assert!(told.message.contains(why), "{}", told.message);
            assert!(told.hint.is_some(), "{}", told.message);
        }
        // One of the host's own cache is not the request's.
        let own = read(&place("none")).expect_err("refused");
        assert_eq!(own.kind(), ErrorKind::Host);
    }
}
