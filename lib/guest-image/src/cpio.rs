//! Writes the archive the kernel unpacks at boot: cpio, "newc" format.
//!
//! Owners are root, times are zero and inode numbers count up, so that equal
//! content gives equal bytes.

use std::io::{self, Write};

/// Ends an archive.
const TRAILER: &str = "TRAILER!!!";
/// Fields of a header after its magic number, 8 hexadecimal digits each.
const FIELDS: usize = 13;

/// Kind of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry<'a> {
    /// A directory, mode 0755.
    Directory,
    /// A regular file.
    File { mode: u32, content: &'a [u8] },
    /// A symbolic link.
    Link { target: &'a str },
    /// A character device, mode 0600.
    Device { major: u32, minor: u32 },
}

/// A name or content of 4 GiB or more has no place in this format.
#[derive(Debug)]
pub(crate) struct TooLong;

/// An archive being written. Nothing creates parents: a directory must be added
/// before what is in it.
#[derive(Debug)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            entries: 0,
        }
    }

    /// Adds an entry; `path` is relative to the root, without a slash in front.
    pub(crate) fn add(&mut self, path: &str, entry: Entry<'_>) -> Result<(), TooLong> {
        let (mode, links, content, device) = match entry {
            Entry::Directory => (0o040_755, 2, &[][..], (0, 0)),
            Entry::File { mode, content } => (0o100_000 | mode, 1, content, (0, 0)),
            Entry::Link { target } => (0o120_777, 1, target.as_bytes(), (0, 0)),
            Entry::Device { major, minor } => (0o020_600, 1, &[][..], (major, minor)),
        };
        self.entries += 1;
        let inode = self.entries;
        self.record(path, inode, mode, links, content, device)
    }

    /// Ends the archive and writes it.
    pub(crate) fn write_to(mut self, mut out: impl Write) -> io::Result<()> {
        // A name of ten bytes fits its field.
        let _ = self.record(TRAILER, 0, 0, 1, &[], (0, 0));
        out.write_all(&self.bytes)
    }

    fn record(
        &mut self,
        name: &str,
        inode: u32,
        mode: u32,
        links: u32,
        content: &[u8],
        (major, minor): (u32, u32),
    ) -> Result<(), TooLong> {
        let size = u32::try_from(content.len()).map_err(|_| TooLong)?;
        let name_size = u32::try_from(name.len() + 1).map_err(|_| TooLong)?;
        let fields: [u32; FIELDS] = [
            inode, mode, 0, 0, links, 0, size, 0, 0, major, minor, name_size, 0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").into_bytes());
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::PermissionsExt,
        process::{Command, Stdio},
    };

    fn sample() -> Vec<u8> {
        let mut archive = Archive::new();
        let entries = [
            ("bin", Entry::Directory),
            (
                "bin/sh",
                Entry::File {
                    mode: 0o755,
                    content: b"#!",
                },
            ),
            (
                "empty",
                Entry::File {
                    mode: 0o600,
                    content: b"",
                },
            ),
            ("init", Entry::Link { target: "bin/sh" }),
        ];
        for (path, entry) in entries {
            archive.add(path, entry).expect("fits");
        }
        let mut bytes = Vec::new();
        archive.write_to(&mut bytes).expect("written");
        bytes
    }

    #[test]
    fn bytes_are_those_of_the_format() {
        let mut archive = Archive::new();
        archive
            .add(
                "a",
                Entry::File {
                    mode: 0o644,
                    content: b"hello",
                },
            )
            .expect("fits");
        archive
            .add("c", Entry::Device { major: 5, minor: 1 })
            .expect("fits");
        let mut bytes = Vec::new();
        archive.write_to(&mut bytes).expect("written");
        let golden = concat!(
            "070701",
            "00000001",
            "000081a4",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000005",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000002",
            "00000000",
            "a\0",
            "hello\0\0\0",
            "070701",
            "00000002",
            "00002180",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000005",
            "00000001",
            "00000002",
            "00000000",
            "c\0",
            "070701",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "0000000b",
            "00000000",
            "TRAILER!!!\0\0\0\0",
        );
        assert_eq!(String::from_utf8_lossy(&bytes), golden);
    }

    #[test]
    fn cpio_itself_unpacks_what_was_packed() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut cpio = Command::new("cpio")
            .args(["--extract", "--quiet", "--no-absolute-filenames"])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .spawn()
            .expect("cpio is installed");
        let mut stdin = cpio.stdin.take().expect("piped");
        stdin.write_all(&sample()).expect("cpio reads");
        drop(stdin);
        assert!(cpio.wait().expect("ends").success());

        let at = |name: &str| dir.path().join(name);
        assert_eq!(fs::read(at("bin/sh")).expect("there"), b"#!");
        let mode = fs::metadata(at("bin/sh"))
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o755);
        assert_eq!(fs::read(at("empty")).expect("there"), b"");
        let target = fs::read_link(at("init")).expect("a link");
        assert_eq!(target.to_str(), Some("bin/sh"));
    }
}
