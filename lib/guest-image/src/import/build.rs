//! A container image, built from a Dockerfile into an archive.
//!
//! ```text
//! context (tar) -> tar, contained -> folder -> buildah, contained -> archive
//! ```
//!
//! buildah carries the steps out, on the host's kernel, in a user namespace that has no user of the
//! host, with a room and processes of its own ([`forkyard_confine::confine_builder`]). Its images and
//! layers lie in the build's folder, and nowhere else.
//!
//! | fails | then |
//! |---|---|
//! | a step | what it said last is the error |
//! | the build is given up, the daemon dies | the first process is killed, and with it all others and their mounts; the folder goes with the import's |

use super::{CacheKey, Cancel, ImportError, KeyMaker, pull::take, unpack::unpacked_at_most};
use crate::{
    cache::Workplace,
    error::{BuildError, io_error},
    progress::{BuildEvent, Progress},
    run::{BUILDAH, Call, Program, TAR},
};
use forkyard_confine::{Building, Network};
use forkyard_types::{BUILD_IDS, ByteCount};
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File},
    os::unix::fs::{DirBuilderExt, chown},
    path::{Component, Path, PathBuf},
};

/// User that buildah runs as, which it ends without a name of.
const USERS: &str = "root:x:0:0:root:/:/bin/sh\n";
/// Registries of this host are asked without TLS, and names without a registry mean docker.io.
const REGISTRIES: &str = "\
unqualified-search-registries = [\"docker.io\"]
short-name-mode = \"permissive\"
[[registry]]
prefix = \"localhost\"
location = \"localhost\"
insecure = true
[[registry]]
prefix = \"127.0.0.1\"
location = \"127.0.0.1\"
insecure = true
";
/// Lines of a build's output that an error shows.
const TAIL: usize = 40;
/// Folders of the build's.
const FOLDERS: [&str; 4] = ["context", "store", "run", "tmp"];

/// Most arguments of a build.
const MOST_ARGS: usize = 64;

/// A Dockerfile in its context, and values of its `ARG`s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dockerfile {
    path: PathBuf,
    args: BTreeMap<String, String>,
}

/// Text that names no file of a context, or is no argument of a build.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDockerfile {
    /// No path below the context.
    #[error("{0:?} is no file of the context: wanted a path below it, without ..")]
    Path(String),
    /// No name of an argument.
    #[error("{0:?} is no name of an argument: wanted letters, digits and _, no digit first")]
    Name(String),
    /// A value of the argument of this name that is not text.
    #[error("the value of {0} has characters that are not text")]
    Value(String),
    /// So many arguments.
    #[error("{0} arguments: wanted {MOST_ARGS} at most")]
    Many(usize),
}

impl Dockerfile {
    /// Gives its `ARG`s these values.
    pub fn with_args(self, args: BTreeMap<String, String>) -> Result<Self, InvalidDockerfile> {
        let cut = |text: &str| text.chars().take(100).collect();
        if args.len() > MOST_ARGS {
            return Err(InvalidDockerfile::Many(args.len()));
        }
        for (name, value) in &args {
            let is_name = name.len() <= 128
                && !name.starts_with(|first: char| first.is_ascii_digit())
                && !name.is_empty()
                && name
                    .chars()
                    .all(|it| it.is_ascii_alphanumeric() || it == '_');
            if !is_name {
                return Err(InvalidDockerfile::Name(cut(name)));
            }
            if value.contains(char::is_control) {
                return Err(InvalidDockerfile::Value(cut(name)));
            }
        }
        Ok(Self { args, ..self })
    }

    /// The builder's words for the arguments. Each has its value: without, the builder would take it from the
    /// daemon's environment.
    fn words(&self) -> impl Iterator<Item = String> {
        self.args
            .iter()
            .flat_map(|(name, value)| ["--build-arg".to_owned(), format!("{name}={value}")])
    }
}

impl std::str::FromStr for Dockerfile {
    type Err = InvalidDockerfile;

    fn from_str(text: &str) -> Result<Self, InvalidDockerfile> {
        let path = Path::new(text);
        let mut parts = path.components().peekable();
        let is_below = parts.peek().is_some()
            && parts.all(|part| matches!(part, Component::Normal(_)))
            && text.len() <= 1024
            && !text.contains(char::is_control);
        match is_below {
            true => Ok(Self {
                path: path.to_owned(),
                args: BTreeMap::new(),
            }),
            false => Err(InvalidDockerfile::Path(text.chars().take(100).collect())),
        }
    }
}

impl std::fmt::Display for Dockerfile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path.display().fmt(f)
    }
}

/// A build.
struct Build<'a> {
    folder: PathBuf,
    context: PathBuf,
    size: Option<ByteCount>,
    work: &'a Workplace,
    cancel: &'a Cancel,
}

/// Builds what the archive of a context at `context` says into `incoming`; the key of what came
/// of it.
pub(super) fn build(
    context: &Path,
    dockerfile: &Dockerfile,
    (work, incoming): (&Workplace, &Path),
    (size, cancel): (Option<ByteCount>, &Cancel),
    progress: Progress<'_>,
) -> Result<CacheKey, ImportError> {
    let build = Build {
        folder: work.dir().join("build"),
        context: context.to_owned(),
        size,
        work,
        cancel,
    };
    build.furnish().map_err(io_error("make", &build.folder))?;
    progress(BuildEvent::Step("unpacking the context"));
    let unpacked = build
        .call(TAR)?
        .args(["--extract", "--no-same-owner", "--file"])
        .arg(context)
        .arg("--directory")
        .arg(build.folder.join("context"))
        .run(progress);
    unpacked.map_err(failed)?;
    progress(BuildEvent::Step("building"));
    let archive = build.folder.join("archive");
    let built = build
        .call(BUILDAH)?
        .arg("--root")
        .arg(build.folder.join("store"))
        .arg("--runroot")
        .arg(build.folder.join("run"))
        .args(["--storage-driver", "overlay", "build-using-dockerfile"])
        .args(["--isolation", "chroot", "--network", "host"])
        .args(dockerfile.words())
        .args(["--disable-compression", "--tag"])
        .arg(format!("oci-archive:{}", archive.display()))
        .arg("--file")
        .arg(build.folder.join("context").join(&dockerfile.path))
        .arg(build.folder.join("context"))
        .run(progress);
    built.map_err(failed)?;
    take(&archive, incoming)?;
    fs::remove_dir_all(&build.folder).map_err(io_error("remove", &build.folder))?;
    // Two builds of one context may differ: steps fetch what they like.
    let mut hasher = blake3::Hasher::new();
    File::open(incoming)
        .and_then(|file| hasher.update_reader(file).map(drop))
        .map_err(io_error("read", incoming))?;
    let mut key = KeyMaker::new("build 1");
    key.add(hasher.finalize().as_bytes());
    Ok(key.finish())
}

fn failed(error: BuildError) -> ImportError {
    if let BuildError::Program { tail: said, .. } = error {
        return ImportError::Dockerfile { said };
    }
    error.into()
}

impl Build<'_> {
    fn furnish(&self) -> std::io::Result<()> {
        let own = |path: &Path| chown(path, Some(BUILD_IDS.start), Some(BUILD_IDS.start));
        let make = |path: &Path| {
            DirBuilder::new().mode(0o700).create(path)?;
            own(path)
        };
        make(&self.folder)?;
        for name in FOLDERS {
            make(&self.folder.join(name))?;
        }
        let registries = self.registries();
        fs::write(&registries, REGISTRIES)?;
        own(&registries)?;
        let users = self.users();
        fs::write(&users, USERS)?;
        own(&users)?;
        own(&self.context)
    }

    fn registries(&self) -> PathBuf {
        self.folder.join("registries.conf")
    }

    fn users(&self) -> PathBuf {
        self.folder.join("users")
    }

    fn call(&self, program: Program) -> Result<Call<'_>, ImportError> {
        let tmp = self.folder.join("tmp");
        let call = program
            .call_in_one_stream()
            .contained(Building {
                folder: &self.folder,
                users: &self.users(),
                reads: &[&self.context],
                largest: unpacked_at_most(self.size).0,
                network: Network::Host,
            })?
            .env("HOME", &tmp)
            .env("TMPDIR", &tmp)
            .env("XDG_RUNTIME_DIR", &tmp)
            .env("CONTAINERS_REGISTRIES_CONF", self.registries())
            // It is root of a user namespace already, and makes no other.
            .env("_CONTAINERS_USERNS_CONFIGURED", "done")
            .env("BUILDAH_ISOLATION", "chroot")
            .keeping(TAIL)
            .holding(self.work.lock())
            .until(self.cancel);
        Ok(call)
    }
}

#[cfg(test)]
mod tests;
