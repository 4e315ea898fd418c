//! The operator's settings of stores: endpoints, and keys.
//!
//! ```toml
//! [bucket.backups]
//! endpoint = "https://objects.example:9000"   # absent: Amazon's, by the region
//! region = "eu-central-1"
//! access_key_id = "…"
//! secret_access_key = "…"
//! ca_file = "/etc/forkyard/store-ca.pem"      # a private authority of that server; absent: the system's
//! ```
//!
//! A bucket that has none is reached by what the environment says, in the variables `AWS_…`.

use crate::order::Failed;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fmt, fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Most bytes of the file.
const LONGEST: u64 = 1 << 20;

/// The operator's settings.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSettings {
    /// Buckets, by name.
    #[serde(default)]
    pub bucket: BTreeMap<String, Bucket>,
}

/// Settings of one bucket.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// URL of its server.
    pub endpoint: Option<String>,
    /// Region that requests are signed for.
    pub region: Option<String>,
    /// Name of the key.
    pub access_key_id: Secret,
    /// The key.
    pub secret_access_key: Secret,
    /// Token of a key that is lent.
    pub session_token: Option<Secret>,
    /// Absolute path of a file of certificates in PEM, that its server is trusted by instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Name of the bucket as part of the host's name, not of the path.
    #[serde(default)]
    pub virtual_hosted: bool,
}

impl Bucket {
    fn check(&self, name: &str) -> Result<(), String> {
        let Some(path) = &self.ca_file else {
            return Ok(());
        };
        if !path.is_absolute() {
            return Err(format!("bucket.{name}.ca_file: wanted an absolute path"));
        }
        match &self.endpoint {
            Some(endpoint) if endpoint.starts_with("http://") => Err(format!(
                "bucket.{name}.ca_file: its endpoint is not reached by TLS: write https://"
            )),
            Some(_) | None => Ok(()),
        }
    }
}

/// Text that is never shown.
#[derive(Deserialize)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(kept back)")
    }
}

impl StoreSettings {
    /// Reads a file that its owner alone may read: there are keys in it.
    pub fn read(path: &Path) -> Result<Self, Failed> {
        let refuse = |why: String| Failed::Settings(format!("{}: {why}", path.display()));
        let mut text = String::new();
        let file = fs::File::open(path).map_err(|error| refuse(error.to_string()))?;
        let mode = file.metadata().map_err(|error| refuse(error.to_string()))?;
        if mode.mode() & 0o077 != 0 {
            return Err(refuse("others may read it: chmod 600".into()));
        }
        file.take(LONGEST)
            .read_to_string(&mut text)
            .map_err(|error| refuse(error.to_string()))?;
        // A parser's own words show the line, and keys are on some.
        let settings: Self = toml::from_str(&text).map_err(|error| {
            let line = error.span().map(|span| {
                let before = text.get(..span.start).unwrap_or_default();
                before.matches('\n').count() + 1
            });
            let place = line.map(|line| format!("line {line}: "));
            refuse(format!("{}{}", place.unwrap_or_default(), error.message()))
        })?;
        let mut buckets = settings.bucket.iter();
        match buckets.find_map(|(name, bucket)| bucket.check(name).err()) {
            Some(why) => Err(refuse(why)),
            None => Ok(settings),
        }
    }

    /// File of certificates by which a bucket's server is trusted, if it is one of its own.
    pub fn authority_of(&self, bucket: &str) -> Option<&Path> {
        self.bucket.get(bucket)?.ca_file.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, os::unix::fs::PermissionsExt};

    fn read(text: &str, mode: u32) -> Result<StoreSettings, Failed> {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        let rights = fs::Permissions::from_mode(mode);
        fs::set_permissions(file.path(), rights).expect("set");
        StoreSettings::read(file.path())
    }

    const GOOD: &str = "[bucket.b]\naccess_key_id = 'id'\nsecret_access_key = 'open sesame'\n";

    #[test]
    fn keys_that_others_may_read_are_refused() {
        assert!(read(GOOD, 0o600).is_ok());
        assert!(read(GOOD, 0o640).is_err());
        assert!(read(GOOD, 0o604).is_err());
    }

    #[test]
    fn certificates_are_named_by_their_whole_path_and_for_tls() {
        let with = |more: &str| read(&format!("{GOOD}{more}"), 0o600);
        let settings = with("ca_file = '/etc/ca.pem'\n").expect("read");
        assert_eq!(settings.authority_of("b"), Some(Path::new("/etc/ca.pem")));
        assert_eq!(settings.authority_of("c"), None);
        for bad in [
            "ca_file = 'ca.pem'\n",
            "ca_file = '/etc/ca.pem'\nendpoint = 'http://objects'\n",
        ] {
            with(bad).expect_err("refused");
        }
    }

    #[test]
    fn keys_are_in_no_message() {
        let settings = read(GOOD, 0o600).expect("read");
        assert!(!format!("{settings:?}").contains("sesame"));
        for bad in [
            format!("{GOOD}region = \n"),
            format!("{GOOD}regoin = 'open sesame'\n"),
            GOOD.replace("'open sesame'", "open sesame"),
            GOOD.replace("'open sesame'", "['open sesame']"),
        ] {
            let said = read(&bad, 0o600).expect_err("refused").to_string();
            assert!(!said.contains("sesame") && said.contains("line"), "{said}");
        }
    }
}
