//! Errors, with enough of the circumstances to mend them.

use crate::modules::ModuleError;
use std::{io, path::PathBuf};

/// Reason why a recipe could not be used. Always the mistake of its author.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The recipe, or a file it names, could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Answer of the host.
        source: io::Error,
    },
    /// The recipe is not TOML, or has a key that is unknown, missing or of the wrong type.
    #[error("{} is not a recipe", path.display())]
    Parse {
        /// The recipe.
        path: PathBuf,
        /// The place and the mistake; boxed, for it is large.
        source: Box<toml::de::Error>,
    },
    /// A value makes no sense.
    #[error("{}: {key}: {problem}", path.display())]
    Invalid {
        /// The recipe.
        path: PathBuf,
        /// The key, such as `files[2].path`.
        key: String,
        /// Fault of its value.
        problem: &'static str,
    },
}

/// Reason why something could not be built or found in the cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A file a recipe names has gone.
    #[error("the recipe cannot be used")]
    Recipe(#[from] RecipeError),
    /// A program it takes is not there.
    #[error("{program} is not installed: apt-get install {package}")]
    MissingProgram {
        /// The program.
        program: &'static str,
        /// Debian's package of it.
        package: &'static str,
    },
    /// A program it takes could not be run.
    #[error("cannot run {program}")]
    Spawn {
        /// The program.
        program: &'static str,
        /// Answer of the host.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} failed ({status}):\n{tail}")]
    Program {
        /// The program.
        program: &'static str,
        /// Exit status of it.
        status: std::process::ExitStatus,
        /// The last lines it said.
        tail: String,
    },
    /// An archive could not be unpacked, in the words of the program that does it.
    #[error("{0}")]
    Unpack(String),
    /// Images have files of many owners, which only root can make.
    #[error("building an image takes root")]
    NotRoot,
    /// The archive has no kernel where one was expected.
    #[error("{package} names no kernel to fetch")]
    NoKernel {
        /// The package that should depend on one.
        package: &'static str,
    },
    /// The thing to boot is a folder, a device or the like.
    #[error("{} is no file that can be booted", path.display())]
    NoFile {
        /// Path.
        path: PathBuf,
    },
    /// A VM cannot boot from that kernel.
    #[error("{} cannot be booted: {why}", path.display())]
    UnfitKernel {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        why: &'static str,
    },
    /// The kernel's modules make no set that can be loaded.
    #[error("the kernel's modules cannot be used")]
    Modules(#[from] ModuleError),
    /// A file too large or a path too long for the format of an initramfs.
    #[error("{} does not fit into an initramfs", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The host's file system refused something.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Attempted action: a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Answer of the host.
        source: io::Error,
    },
}

/// Gives an I/O error its circumstances: `.map_err(io_error("read", path))`.
pub(crate) fn io_error(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.into();
    move |source| BuildError::Io {
        action,
        path,
        source,
    }
}
