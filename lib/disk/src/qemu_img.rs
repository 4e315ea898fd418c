//! Making slices with `qemu-img`.

use crate::{Backing, DiskError, Format, backing::opened};
use forkyard_confine::{Confinement, Lifespan, Network, Who, confine};
use forkyard_types::{ByteCount, NbdDisk};
use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    process::{self, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
};

/// Bytes of a list of what a chain holds, and of complaints, at most.
const MOST_SAID: u64 = 256 << 20;
const MOST_COMPLAINED: u64 = 64 << 10;
/// Bytes of a disk that is written, at most: no disk is larger than 1 TiB, and a qcow2 file has tables.
const LARGEST: u64 = 2 << 40;

/// The program that makes slices.
#[derive(Clone, Debug)]
pub struct QemuImg {
    /// The program.
    pub program: PathBuf,
    /// Bound on one run of it.
    pub patience: Duration,
}

impl Default for QemuImg {
    fn default() -> Self {
        Self {
            program: "qemu-img".into(),
            patience: Duration::from_secs(30),
        }
    }
}

impl QemuImg {
    /// Makes an empty slice, as large as its backing unless said otherwise.
    /// The backing may be in use. Replaces a file that exists.
    ///
    /// If cancelled, part of the file may be left.
    pub async fn create_slice(
        &self,
        path: &Path,
        backing: &Backing,
        size: Option<ByteCount>,
    ) -> Result<(), DiskError> {
        if !backing.path.is_absolute() {
            let path = backing.path.clone();
            return Err(DiskError::Relative { path });
        }
        let size = match size {
            Some(size) => size,
            None => backing.size()?,
        };
        self.create(path, backing.format, backing.path.as_os_str(), size)
            .await
    }

    /// Makes an empty slice over a disk that is served by NBD, which need not be there yet.
    ///
    /// If cancelled, part of the file may be left.
    pub async fn create_slice_over(
        &self,
        path: &Path,
        (disk, size): (&NbdDisk, ByteCount),
    ) -> Result<(), DiskError> {
        let node = serde_json::json!({"driver": "raw", "file": disk.driver()});
        self.create(path, Format::Raw, format!("json:{node}").as_ref(), size)
            .await
    }

    /// `-u`: does not open the backing, which a running VM has locked.
    async fn create(
        &self,
        path: &Path,
        format: Format,
        backing: &OsStr,
        size: ByteCount,
    ) -> Result<(), DiskError> {
        if !path.is_absolute() {
            let path = path.to_owned();
            return Err(DiskError::Relative { path });
        }
        let mut command = Command::new(&self.program);
        command
            .args(["create", "-q", "-f", "qcow2"])
            .args(["-o", "cluster_size=4k"])
            .args(["-u", "-F", &format.to_string(), "-b"])
            .arg(backing)
            .arg(path)
            .arg(size.0.to_string());
        self.run(command, path).await.map(drop)
    }

    /// Copies the disk that a chain of slices shows, the upper ones first, to
    /// `to`, an empty file; on its own, over nothing.
    /// None of them may be written to. What the slices say of each other is not
    /// believed: their writer may be a QEMU that a guest has taken over.
    ///
    /// Cancel-safe: the program is killed.
    pub async fn flatten(
        &self,
        chain: &[Backing],
        to: &Path,
        format: Format,
    ) -> Result<(), DiskError> {
        let path = chain.first().map(|slice| slice.path.clone());
        let path = path.unwrap_or_default();
        for slice in chain {
            slice.refuse_data_elsewhere()?;
        }
        let mut command = process::Command::new(&self.program);
        command
            .args(["convert", "-q", "-O", &format.to_string()])
            .arg(opened(chain).unwrap_or_default())
            .arg(to);
        let command = confined(command, chain, vec![to.to_owned()], &path).await?;
        self.run(command, &path).await.map(drop)
    }

    /// Runs it; what it printed. Cancel-safe: the program is killed.
    pub(crate) async fn run(
        &self,
        mut command: Command,
        path: &Path,
    ) -> Result<Vec<u8>, DiskError> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let output = async {
            let mut child = command.spawn()?;
            let said = tokio::join!(
                all_of(child.stdout.take(), MOST_SAID),
                all_of(child.stderr.take(), MOST_COMPLAINED)
            );
            let (stdout, stderr) = (said.0?, said.1?);
            let status = child.wait().await?;
            Ok(process::Output {
                status,
                stdout,
                stderr,
            })
        };
        let ended = tokio::time::timeout(self.patience, output).await;
        let output = ended
            .map_err(|_| DiskError::Timeout {
                path: path.to_owned(),
                after: self.patience,
            })?
            .map_err(|source| DiskError::Run {
                program: self.program.clone(),
                source,
            })?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(DiskError::QemuImg {
            path: path.to_owned(),
            status: output.status,
            said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}

/// All that a stream has; an error if that is more than it may be.
async fn all_of(stream: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(stream) = stream else {
        return Ok(bytes);
    };
    let read = stream.take(most + 1).read_to_end(&mut bytes).await?;
    match read as u64 > most {
        true => Err(io::Error::other("it says more than there can be to say")),
        false => Ok(bytes),
    }
}

/// Has it read a chain, and write these files, confined: a QEMU that was taken over may have
/// written the slices.
pub(crate) async fn confined(
    mut command: process::Command,
    chain: &[Backing],
    writes: Vec<PathBuf>,
    path: &Path,
) -> Result<Command, DiskError> {
    let reads: Vec<_> = chain.iter().map(|slice| slice.path.clone()).collect();
    let confining = tokio::task::spawn_blocking(move || {
        let reads: Vec<_> = reads.iter().map(PathBuf::as_path).collect();
        let writes: Vec<_> = writes.iter().map(PathBuf::as_path).collect();
        let to = Confinement {
            who: Who::Reader,
            reads: &reads,
            writes: &writes,
            largest: LARGEST,
            network: Network::None,
            ends: Lifespan::ByItself,
        };
        confine(&mut command, to).map(|()| command)
    });
    let command = confining.await.map_err(io::Error::other).flatten();
    let command = command.map_err(DiskError::io("show qemu-img", path))?;
    Ok(command.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::MetadataExt};
    use tempfile::TempDir;

    fn info(path: &Path) -> String {
        let info = process::Command::new("qemu-img")
            .args(["info", "-U"])
            .arg(path)
            .output()
            .expect("installed");
        assert!(info.status.success(), "{info:?}");
        String::from_utf8(info.stdout).expect("text")
    }

    /// A raw disk of a size that is no power of two, and a slice over it.
    async fn base_and_slice() -> (TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().expect("dir");
        let (base, slice) = (dir.path().join("base"), dir.path().join("slice"));
        let file = fs::File::create(&base).expect("created");
        file.set_len(7 << 20).expect("sparse");
        let backing = Backing {
            path: base.clone(),
            format: Format::Raw,
        };
        let made = QemuImg::default()
            .create_slice(&slice, &backing, None)
            .await;
        made.expect("made");
        (dir, base, slice)
    }

    #[tokio::test]
    async fn a_slice_is_as_large_as_its_backing_and_knows_its_format() {
        let (_dir, base, slice) = base_and_slice().await;
        let info = info(&slice);
        assert!(info.contains("(7340032 bytes)"), "{info}");
        assert!(info.contains("extended l2: false"), "{info}");
        assert!(info.contains("cluster_size: 4096"), "{info}");
        assert!(info.contains("backing file format: raw"), "{info}");
        assert!(info.contains(base.to_str().expect("UTF-8")), "{info}");
    }

    #[tokio::test]
    async fn a_slice_can_be_made_over_one_in_use() {
        let (dir, _base, slice) = base_and_slice().await;
        let mut user = process::Command::new("qemu-io")
            .args(["-c", "sleep 600000"])
            .arg(&slice)
            .spawn()
            .expect("installed");
        let inode = format!(":{} ", fs::metadata(&slice).expect("there").ino());
        // Looked at from outside: to open it would be to lock it as well.
        let locked = || {
            let locks = fs::read_to_string("/proc/locks").expect("there");
            locks.contains(&inode)
        };
        while !locked() {
            assert!(user.try_wait().expect("ours").is_none(), "it has it open");
        }
        let backing = Backing {
            path: slice.clone(),
            format: Format::Qcow2,
        };
        let upper = dir.path().join("upper");
        let made = QemuImg::default()
            .create_slice(&upper, &backing, None)
            .await;
        user.kill().expect("killed");
        user.wait().expect("reaped");
        made.expect("made");
        assert!(info(&upper).contains("(7340032 bytes)"));
    }

    #[tokio::test]
    async fn a_copy_of_an_empty_slice_is_a_slice() {
        let (dir, base, slice) = base_and_slice().await;
        let copy = dir.path().join("copy");
        let access = crate::SliceAccess { uid: 0, gid: 0 };
        crate::copy_template(&slice, &copy, access).expect("copied");
        let info = info(&copy);
        assert!(info.contains(base.to_str().expect("UTF-8")), "{info}");
        let check = process::Command::new("qemu-img")
            .arg("check")
            .arg(&copy)
            .output();
        assert!(check.expect("installed").status.success());
    }

    #[tokio::test]
    async fn a_chain_is_flattened_as_it_is_said_to_be_not_as_it_says() {
        let (dir, base, slice) = base_and_slice().await;
        let secret = dir.path().join("secret");
        fs::write(&secret, vec![7; 7 << 20]).expect("written");
        let write = process::Command::new("qemu-io")
            .args(["-c", "write -P 9 1M 64k"])
            .arg(&slice)
            .output();
        assert!(write.expect("installed").status.success());
        // As a guest might write it that is to see that file.
        let rebase = process::Command::new("qemu-img")
            .args(["rebase", "-u", "-F", "raw", "-b"])
            .args([&secret, &slice])
            .output();
        assert!(rebase.expect("installed").status.success());
        let chain = [(slice, Format::Qcow2), (base, Format::Raw)];
        let chain = chain.map(|(path, format)| Backing { path, format });
        for format in [Format::Raw, Format::Qcow2] {
            let to = dir.path().join("to");
            fs::File::create(&to).expect("created");
            let flat = QemuImg::default().flatten(&chain, &to, format).await;
            flat.expect("copied");
            let raw = dir.path().join("raw");
            let read = process::Command::new("qemu-img")
                .args(["convert", "-O", "raw", "-f", &format.to_string()])
                .args([&to, &raw])
                .output();
            assert!(read.expect("installed").status.success());
            let bytes = fs::read(&raw).expect("read");
            assert_eq!(bytes.len(), 7 << 20);
            let written = 1 << 20..(1 << 20) + (64 << 10);
            assert!(bytes[written.clone()].iter().all(|byte| *byte == 9));
            assert!(bytes[..written.start].iter().all(|byte| *byte == 0));
            assert!(bytes[written.end..].iter().all(|byte| *byte == 0));
        }
    }

    #[tokio::test]
    async fn a_backing_that_is_not_what_it_was_said_to_be_is_refused() {
        let (dir, base, _slice) = base_and_slice().await;
        let backing = Backing {
            path: base,
            format: Format::Qcow2,
        };
        let upper = dir.path().join("upper");
        let refused = QemuImg::default()
            .create_slice(&upper, &backing, None)
            .await;
        assert!(
            matches!(refused, Err(DiskError::NotQcow2 { .. })),
            "{refused:?}"
        );
    }

    #[tokio::test]
    async fn a_relative_path_is_refused() {
        let backing = Backing {
            path: "base".into(),
            format: Format::Raw,
        };
        let refused = QemuImg::default()
            .create_slice(Path::new("/slice"), &backing, None)
            .await;
        assert!(
            matches!(refused, Err(DiskError::Relative { .. })),
            "{refused:?}"
        );
    }

    #[tokio::test]
    async fn what_qemu_img_said_is_kept() {
        let (_dir, base, _slice) = base_and_slice().await;
        let backing = Backing {
            path: base,
            format: Format::Raw,
        };
        let refused = QemuImg::default()
            .create_slice(Path::new("/nonexistent/slice"), &backing, None)
            .await;
        match refused {
            Err(DiskError::QemuImg { said, .. }) => {
                assert!(said.contains("/nonexistent"), "{said}")
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_given_up_on() {
        let (dir, base, _slice) = base_and_slice().await;
        let program = dir.path().join("hangs");
        // Written by another process: a program that is open for writing is not run, and one that
        // another test's thread starts meanwhile would have it open.
        let script = dir.path().join("script");
        fs::write(&script, "#!/bin/sh\nexec sleep 600\n").expect("written");
        let mut install = std::process::Command::new("install");
        let installed = install.args(["-m", "755"]).args([&script, &program]);
        assert!(installed.status().expect("runs").success());
        let hangs = QemuImg {
            program,
            patience: Duration::from_millis(50),
        };
        let backing = Backing {
            path: base,
            format: Format::Raw,
        };
        let refused = hangs
            .create_slice(&dir.path().join("x"), &backing, None)
            .await;
        assert!(
            matches!(refused, Err(DiskError::Timeout { .. })),
            "{refused:?}"
        );
    }
}
