//! Names of container images in registries.

use serde::{Deserialize, Serialize};
use std::{fmt, net::IpAddr, str::FromStr};

/// Registry of a name that names none.
const REGISTRY: &str = "docker.io";
/// Folder of a name of that registry that names none.
const LIBRARY: &str = "library";
const LATEST: &str = "latest";
/// Most bytes of a reference.
const LONGEST: usize = 512;
const LONGEST_TAG: usize = 128;
const DIGEST: &str = "sha256:";

/// A container image in a registry: `python:3.12-slim`, `registry.example:5000/team/app@sha256:…`.
///
/// Holds nothing that a program could take for an option, a path or another transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageReference {
    registry: String,
    path: String,
    version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Version {
    Tag(String),
    /// With the digest's name before it.
    Digest(String),
}

/// Text that names no image of a registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no image of a registry: wanted [REGISTRY[:PORT]/]PATH[:TAG] or …@sha256:DIGEST, as in docker.io/library/python:3.12-slim"
)]
pub struct InvalidReference(String);

impl ImageReference {
    /// This image of the same name, whatever its tag means later.
    #[must_use]
    pub fn pinned(&self, digest: &str) -> Option<Self> {
        let version = Version::Digest(digest_of(digest)?);
        Some(Self {
            version,
            ..self.clone()
        })
    }

    /// The digest in it, `sha256:` and 64 digits.
    pub fn digest(&self) -> Option<&str> {
        match &self.version {
            Version::Digest(digest) => Some(digest),
            Version::Tag(_) => None,
        }
    }

    /// True if its registry is on this host by name or address: no TLS is asked of it.
    pub fn is_of_this_host(&self) -> bool {
        let host = match self.registry.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => self.registry.split(':').next().unwrap_or_default(),
        };
        host == "localhost"
            || host.ends_with(".localhost")
            || host.parse::<IpAddr>().is_ok_and(|ip| match ip {
                IpAddr::V4(ip) => ip.is_loopback() || ip.is_unspecified(),
                IpAddr::V6(ip) => {
                    ip.is_loopback()
                        || ip.is_unspecified()
                        || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback())
                }
            })
    }

    /// Name for a guest image that is made of it: the last part of its path, and its tag if that
    /// says more than `latest`. May be none that an image can have.
    pub fn name(&self) -> String {
        let last = self.path.rsplit('/').next().unwrap_or_default();
        let tag = match &self.version {
            Version::Tag(tag) if tag != LATEST => format!("-{tag}"),
            Version::Tag(_) | Version::Digest(_) => String::new(),
        };
        let plain = |c: char| match c.to_ascii_lowercase() {
            c if c.is_ascii_alphanumeric() => c,
            _ => '-',
        };
        let name: String = format!("{last}{tag}").chars().map(plain).collect();
        let parts = name.split('-').filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join("-")
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            registry,
            path,
            version,
        } = self;
        match version {
            Version::Tag(tag) => write!(f, "{registry}/{path}:{tag}"),
            Version::Digest(digest) => write!(f, "{registry}/{path}@{digest}"),
        }
    }
}

impl FromStr for ImageReference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        let invalid = || InvalidReference(text.chars().take(100).collect());
        parse(text).ok_or_else(invalid)
    }
}

impl TryFrom<String> for ImageReference {
    type Error = InvalidReference;

    fn try_from(text: String) -> Result<Self, InvalidReference> {
        text.parse()
    }
}

impl From<ImageReference> for String {
    fn from(reference: ImageReference) -> Self {
        reference.to_string()
    }
}

fn parse(text: &str) -> Option<ImageReference> {
    if text.len() > LONGEST {
        return None;
    }
    let text = text.strip_prefix("docker://").unwrap_or(text);
    let (named, digest) = match text.split_once('@') {
        Some((named, digest)) => (named, Some(digest_of(digest)?)),
        None => (text, None),
    };
    // A tag has no slash after its colon; a port has.
    let (named, tag) = match named.rsplit_once(':') {
        Some((named, tag)) if !tag.contains('/') => (named, Some(tag_of(tag)?)),
        Some(_) | None => (named, None),
    };
    let (registry, path) = match named.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
            (registry_of(first)?, rest.to_owned())
        }
        Some(_) => (REGISTRY.to_owned(), named.to_owned()),
        None => (REGISTRY.to_owned(), format!("{LIBRARY}/{named}")),
    };
    if !path.split('/').all(is_part) {
        return None;
    }
    let version = match (digest, tag) {
        (Some(digest), _) => Version::Digest(digest),
        (None, tag) => Version::Tag(tag.unwrap_or_else(|| LATEST.to_owned())),
    };
    Some(ImageReference {
        registry,
        path,
        version,
    })
}

fn digest_of(text: &str) -> Option<String> {
    let digits = text.strip_prefix(DIGEST)?;
    let lower = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (digits.len() == 64 && digits.bytes().all(lower)).then(|| text.to_owned())
}

fn tag_of(text: &str) -> Option<String> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let first = text.bytes().next().is_some_and(word);
    let rest = text.bytes().all(|b| word(b) || matches!(b, b'.' | b'-'));
    (first && rest && text.len() <= LONGEST_TAG).then(|| text.to_owned())
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`, in lower case.
fn registry_of(text: &str) -> Option<String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            (
                None,
                port.strip_prefix(':').or(port.is_empty().then_some("0"))?,
            )
        }
        None => match text.split_once(':') {
            Some((host, port)) => (Some(host), port),
            None => (Some(text), "0"),
        },
    };
    let is_label = |label: &str| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(inner)
    };
    let named = host.is_none_or(|host| host.split('.').all(is_label));
    let ported =
        !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok();
    (named && ported).then(|| text.to_ascii_lowercase())
}

/// Lower-case letters and digits, with `.`, `_`, `__` or hyphens between them.
fn is_part(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let between =
        |run: &str| matches!(run, "" | "." | "_" | "__") || run.bytes().all(|b| b == b'-');
    let ends = |b: Option<u8>| b.is_some_and(letter);
    ends(text.bytes().next())
        && ends(text.bytes().last())
        && text
            .split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            .all(between)
}

#[cfg(test)]
mod tests;
