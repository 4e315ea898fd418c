//! Addresses of object stores, and of substrates in them.

use serde::{Deserialize, Serialize};
use std::{fmt, path::PathBuf, str::FromStr};

const FOLDER: &str = "file://";
const BUCKET: &str = "s3://";
/// Longest address.
const LONGEST: usize = 1024;

/// Address of an object store: `file:///FOLDER` or `s3://BUCKET/PREFIX`. No key is part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StoreAddress {
    root: Root,
    /// Parts of a path in a bucket, joined by slashes; empty: all of it.
    prefix: String,
}

/// Place where a store's objects are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// A folder, by its absolute path.
    Folder(PathBuf),
    /// A bucket of an S3-compatible server.
    Bucket(String),
}

/// A text that is no address of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadAddress {
    /// Another kind of address, or none.
    #[error("wanted file:///FOLDER or s3://BUCKET/PREFIX")]
    Scheme,
    /// Keys would be seen by all.
    #[error(
        "an address names no user, key or option: keys belong into the daemon's file of --object-stores"
    )]
    Keys,
    /// Name that no bucket can have.
    #[error("{0:?} is no name of a bucket: 3 to 63 of a-z, 0-9, '-' and '.'")]
    Bucket(String),
    /// Part of a path that cannot be one.
    #[error("{0:?} cannot be in a store's path")]
    Path(String),
    /// More than any store's.
    #[error("longer than {LONGEST} bytes")]
    Long,
}

impl StoreAddress {
    /// Tells whether a text is meant as an address of a store, and not as a path of a folder.
    pub fn is_meant(text: &str) -> bool {
        text.contains("://")
    }

    /// Place of the objects.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Path of all objects in a bucket, without slashes around it; empty: none.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Splits the address of a substrate, `STORE/NAME`, into its store and its name.
    pub fn of_one(text: &str) -> Result<(Self, String), BadAddress> {
        let (store, name) = text
            .trim_end_matches('/')
            .rsplit_once('/')
            .ok_or(BadAddress::Scheme)?;
        Ok((store.parse()?, name.to_owned()))
    }
}

/// Checks one part of a path.
fn part(text: &str) -> Result<(), BadAddress> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+=".contains(&byte);
    match !text.is_empty() && text != "." && text != ".." && text.bytes().all(known) {
        true => Ok(()),
        false => Err(BadAddress::Path(text.to_owned())),
    }
}

fn bucket(text: &str) -> Result<(), BadAddress> {
    let known =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let edges = [text.bytes().next(), text.bytes().last()];
    let edges = edges
        .iter()
        .all(|byte| byte.is_some_and(|byte| byte.is_ascii_alphanumeric()));
    match (3..=63).contains(&text.len()) && text.bytes().all(known) && edges && !text.contains("..")
    {
        true => Ok(()),
        false => Err(BadAddress::Bucket(text.to_owned())),
    }
}

impl FromStr for StoreAddress {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        if text.len() > LONGEST {
            return Err(BadAddress::Long);
        }
        if text.contains(['@', '?', '#', '%']) {
            return Err(BadAddress::Keys);
        }
        let trimmed = text.trim_end_matches('/');
        if let Some(folder) = trimmed.strip_prefix(FOLDER) {
            let parts = folder.strip_prefix('/').ok_or(BadAddress::Scheme)?;
            parts.split('/').try_for_each(part)?;
            return Ok(Self {
                root: Root::Folder(folder.into()),
                prefix: String::new(),
            });
        }
        let words = trimmed.strip_prefix(BUCKET).ok_or(BadAddress::Scheme)?;
        let (name, prefix) = words.split_once('/').unwrap_or((words, ""));
        bucket(name)?;
        if !prefix.is_empty() {
            prefix.split('/').try_for_each(part)?;
        }
        Ok(Self {
            root: Root::Bucket(name.to_owned()),
            prefix: prefix.to_owned(),
        })
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.root, self.prefix.as_str()) {
            (Root::Folder(path), _) => write!(f, "{FOLDER}{}", path.display()),
            (Root::Bucket(name), "") => write!(f, "{BUCKET}{name}"),
            (Root::Bucket(name), prefix) => write!(f, "{BUCKET}{name}/{prefix}"),
        }
    }
}

impl TryFrom<String> for StoreAddress {
    type Error = BadAddress;

    fn try_from(text: String) -> Result<Self, BadAddress> {
        text.parse()
    }
}

impl From<StoreAddress> for String {
    fn from(address: StoreAddress) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_that_name_keys_or_leave_their_store_are_refused() {
        for (text, error) in [
            ("s3://id:secret@bucket/x", BadAddress::Keys),
            ("s3://bucket/x?access_key_id=1", BadAddress::Keys),
            ("https://bucket/x", BadAddress::Scheme),
            ("file://relative", BadAddress::Scheme),
            ("/mnt/store", BadAddress::Scheme),
            ("s3://bu/x", BadAddress::Bucket("bu".into())),
            ("s3://Bucket", BadAddress::Bucket("Bucket".into())),
            ("s3://bucket/a/../b", BadAddress::Path("..".into())),
            ("s3://bucket//b", BadAddress::Path(String::new())),
            ("file:///a/../etc", BadAddress::Path("..".into())),
            ("file:///", BadAddress::Scheme),
        ] {
            assert_eq!(text.parse::<StoreAddress>(), Err(error), "{text}");
        }
    }

    #[test]
    fn a_substrate_in_a_store_is_its_last_part() {
        let (store, name) = StoreAddress::of_one("s3://bucket/a/web").expect("one");
        assert_eq!(
            (store.to_string().as_str(), name.as_str()),
            ("s3://bucket/a", "web")
        );
        let (store, name) = StoreAddress::of_one("file:///mnt/s/web/").expect("one");
        assert_eq!(
            (store.to_string().as_str(), name.as_str()),
            ("file:///mnt/s", "web")
        );
        assert_eq!(store.root(), &Root::Folder("/mnt/s".into()));
        assert!(StoreAddress::of_one("s3://bucket").is_err());
    }

    proptest! {
        #[test]
        fn whatever_is_an_address_survives_its_text(text in "(file:///|s3://)[a-z./-]{0,20}") {
            if let Ok(address) = text.parse::<StoreAddress>() {
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        }
    }
}
