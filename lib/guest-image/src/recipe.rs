//! Recipes of guests' disks: `images/NAME.toml`.
//!
//! ```toml
//! description = "what it is for, in a line"
//! suite = "bookworm"
//! variant = "minbase"          # or "extract": unpack packages, run none of their scripts
//! packages = ["python3"]
//! size_mib = 512
//! busybox = "/bin/busybox"     # link every applet to it
//! directories = ["/srv"]
//! [[files]]
//! path = "/etc/motd"
//! mode = 0o644
//! content = "hello\n"          # or: source = "motd", beside the recipe
//! [[links]]
//! path = "/sbin/init"
//! target = "/bin/busybox"
//! ```
//!
//! A recipe that loads makes sense as text; whether its packages exist is for
//! the archive to say.

use crate::{
    error::RecipeError,
    key::{CacheKey, KeyMaker},
};
use forkyard_types::ByteCount;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Component, Path, PathBuf},
};

/// Raised whenever the same recipe is to give another image.
const BUILDER: &str = "image 1";
/// Smallest disk that has room for its own journal.
const MIN_MIB: u64 = 16;
/// Largest disk: 1 TiB.
const MAX_MIB: u64 = 1 << 20;

/// A recipe that was read and checked.
#[derive(Clone, Debug)]
pub struct Recipe {
    name: String,
    path: PathBuf,
    body: Body,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Body {
    pub(crate) description: String,
    pub(crate) suite: String,
    pub(crate) variant: Variant,
    pub(crate) packages: Vec<String>,
    pub(crate) size_mib: u64,
    pub(crate) busybox: Option<PathBuf>,
    #[serde(default)]
    pub(crate) directories: Vec<PathBuf>,
    #[serde(default)]
    pub(crate) files: Vec<FileEntry>,
    #[serde(default)]
    pub(crate) links: Vec<LinkEntry>,
}

/// Way of packages into the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Variant {
    /// Unpacked, nothing more: there is no package database, and no script ran.
    Extract,
    /// Debian's essential packages and those named, installed properly.
    Minbase,
}

/// A file added to what the packages brought, or in place of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileEntry {
    pub(crate) path: PathBuf,
    #[serde(default = "readable")]
    pub(crate) mode: u32,
    content: Option<String>,
    source: Option<PathBuf>,
}

fn readable() -> u32 {
    0o644
}

/// A symbolic link.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LinkEntry {
    pub(crate) path: PathBuf,
    pub(crate) target: PathBuf,
}

impl Variant {
    /// As mmdebstrap calls it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Extract => "extract",
            Self::Minbase => "minbase",
        }
    }
}

impl Recipe {
    /// Reads and checks a recipe. Its name is that of the file, without `.toml`.
    pub fn load(path: &Path) -> Result<Self, RecipeError> {
        let text = fs::read_to_string(path).map_err(|source| RecipeError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, RecipeError> {
        let body: Body = toml::from_str(text).map_err(|source| RecipeError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let invalid = |(key, problem)| RecipeError::Invalid {
            path: path.to_owned(),
            key,
            problem,
        };
        let name = path
            .file_stem()
            .and_then(|s| s.to_str())
            .filter(|s| is_word(s))
            .ok_or_else(|| invalid(("its name".into(), NOT_A_WORD)))?;
        body.check().map_err(invalid)?;
        Ok(Self {
            name: name.to_owned(),
            path: path.to_owned(),
            body,
        })
    }

    /// Name of the recipe and of its image.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Purpose of the image, in a line.
    pub fn description(&self) -> &str {
        &self.body.description
    }

    /// Size of the disk as the guest sees it.
    pub fn size(&self) -> ByteCount {
        // The recipe was checked: MAX_MIB is far from overflow.
        ByteCount(self.body.size_mib << 20)
    }

    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    /// Key of the image: changes with everything the recipe says (its comments
    /// are not part of that) and with the content of every file it names.
    pub fn key(&self) -> Result<CacheKey, RecipeError> {
        let mut key = KeyMaker::new(BUILDER);
        // Field by field in the order of declaration, so the same recipe is
        // always the same text.
        let text = toml::to_string(&self.body).map_err(|_| RecipeError::Invalid {
            path: self.path.clone(),
            key: "paths".into(),
            problem: "must be UTF-8",
        })?;
        key.add(self.name.as_bytes());
        key.add(text.as_bytes());
        for file in &self.body.files {
            key.add(&self.content(file)?);
        }
        Ok(key.finish())
    }

    /// Content of `file`.
    pub(crate) fn content(&self, file: &FileEntry) -> Result<Vec<u8>, RecipeError> {
        let Some(source) = &file.source else {
            return Ok(file.content.clone().unwrap_or_default().into_bytes());
        };
        let path = self.path.parent().unwrap_or(Path::new("")).join(source);
        fs::read(&path).map_err(|source| RecipeError::Read { path, source })
    }
}

type Fault = (String, &'static str);
const NOT_A_WORD: &str = "must begin with a letter or digit; letters, digits and .+- may follow";
const NOT_A_PATH: &str = "must be a path from the root, without . or ..";

impl Body {
    fn check(&self) -> Result<(), Fault> {
        if !(MIN_MIB..=MAX_MIB).contains(&self.size_mib) {
            return Err(("size_mib".into(), "must be from 16 to 1048576"));
        }
        // Words only: these become arguments of mmdebstrap.
        let words = [
            ("suite", std::slice::from_ref(&self.suite)),
            ("packages", &self.packages),
        ];
        for (key, list) in words {
            if let Some(word) = list.iter().find(|w| !is_word(w)) {
                return Err((format!("{key} ({word:?})"), NOT_A_WORD));
            }
        }
        if self.variant == Variant::Extract && self.packages.is_empty() {
            return Err((
                "packages".into(),
                "must not be empty with variant = \"extract\"",
            ));
        }
        let whole = [
            ("busybox", self.busybox.as_slice()),
            ("directories", &self.directories),
        ];
        for (key, list) in whole {
            if let Some(path) = list.iter().find(|p| !is_whole_path(p)) {
                return Err((format!("{key} ({})", path.display()), NOT_A_PATH));
            }
        }
        for (n, file) in self.files.iter().enumerate() {
            file.check()
                .map_err(|(key, problem)| (format!("files[{n}].{key}"), problem))?;
        }
        for (n, link) in self.links.iter().enumerate() {
            if !is_whole_path(&link.path) {
                return Err((format!("links[{n}].path"), NOT_A_PATH));
            }
            if link.target.as_os_str().is_empty() {
                return Err((format!("links[{n}].target"), "must not be empty"));
            }
        }
        Ok(())
    }
}

impl FileEntry {
    fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if !is_whole_path(&self.path) {
            return Err(("path", NOT_A_PATH));
        }
        if self.mode > 0o7777 {
            return Err(("mode", "must be at most 0o7777"));
        }
        match (&self.content, &self.source) {
            (Some(_), None) | (None, Some(_)) => Ok(()),
            (None, None) => Err(("content", "is missing, and so is source")),
            (Some(_), Some(_)) => Err(("content", "excludes source")),
        }
    }
}

/// Tells whether this is a path from the root that names something below it and goes
/// straight there.
fn is_whole_path(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && path.file_name().is_some()
        && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Tells whether this is a plain name, as Debian's packages and suites have.
fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

#[cfg(test)]
mod tests;
