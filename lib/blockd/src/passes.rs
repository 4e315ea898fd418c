//! Passes: which exports a client of another user may open.
//!
//! The name of such an export ends in a code that only a holder of the folder's key can compute:
//! what a manager was given to pass on. Nothing is kept of passes that were given, so that they
//! hold across a restart; that of a writer ends with its epoch, that of a snapshot with the
//! snapshot.

use forkyard_volume_store::StoreError;
use ring::hmac::{HMAC_SHA256, Key, sign, verify};
use std::{
    fs::{self, OpenOptions, Permissions},
    io::{ErrorKind, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// File of the key. No volume has a dot in its name.
const FILE: &str = "passes.key";
const KEY: usize = 32;
/// Between the export and its code.
const MARK: char = '~';

/// Key of a folder's passes.
#[derive(Debug)]
pub(crate) struct Passes(Key);

impl Passes {
    /// Reads the key of a folder, which is made if it is missing.
    pub(crate) fn of(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(FILE);
        let failed = |doing| {
            let path = path.clone();
            move |source| StoreError::Io {
                doing,
                path,
                source,
            }
        };
        let key = match fs::read(&path) {
            Ok(key) if key.len() == KEY => key,
            // Cut short by a crash as it was made: no pass was given by it.
            Ok(_) => draw(folder, &path).map_err(failed("write"))?,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                draw(folder, &path).map_err(failed("make"))?
            }
            Err(error) => return Err(failed("read")(error)),
        };
        Ok(Self(Key::new(HMAC_SHA256, &key)))
    }

    /// The export's name as a client of another user gives it.
    pub(crate) fn pass(&self, export: &str) -> String {
        let code = sign(&self.0, export.as_bytes());
        let digits: String = code.as_ref().iter().map(|it| format!("{it:02x}")).collect();
        format!("{export}{MARK}{digits}")
    }

    /// The export that a name with a code is of, if the code is right.
    pub(crate) fn check<'a>(&self, name: &'a str) -> Option<&'a str> {
        let (export, digits) = name.rsplit_once(MARK)?;
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let code: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
        verify(&self.0, export.as_bytes(), &code?).ok()?;
        Some(export)
    }
}

/// Draws a key. A reader sees all of it or none.
fn draw(folder: &Path, path: &Path) -> std::io::Result<Vec<u8>> {
    let mut key = vec![0; KEY];
    getrandom::fill(&mut key).map_err(std::io::Error::other)?;
    let fresh = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(&key)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    fs::File::open(folder)?.sync_all()?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_good_for_its_export_in_its_folder_and_outlives_the_server() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let passes = Passes::of(here.path()).unwrap();
        let pass = passes.pass("d:7");
        assert_eq!(passes.check(&pass), Some("d:7"));
        assert_eq!(Passes::of(here.path()).unwrap().check(&pass), Some("d:7"));
        assert_eq!(Passes::of(there.path()).unwrap().check(&pass), None);
        let code = pass.split_once(MARK).unwrap().1;
        for wrong in [
            "d:7".to_owned(),
            "d:7~".to_owned(),
            format!("d:8~{code}"),
            format!("d:7~{}", &code[2..]),
            format!("d:7~{code}00"),
            "d:7~zz".to_owned(),
            "d:7~ü".to_owned(),
        ] {
            assert_eq!(passes.check(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_key_that_was_cut_short_is_drawn_anew() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), b"short").unwrap();
        let passes = Passes::of(folder.path()).unwrap();
        let pass = passes.pass("d");
        assert_eq!(Passes::of(folder.path()).unwrap().check(&pass), Some("d"));
    }
}
