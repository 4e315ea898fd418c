//! The channel to the host: a port of the virtio console.

use nix::{
    errno::Errno,
    fcntl::{OFlag, SpliceFFlags, splice},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use std::{
    fs::{self, File},
    io::{self, IoSliceMut, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

/// Name of the port, as QEMU was told.
const NAME: &str = "org.forkyard.agent";
const PORTS: &str = "/sys/class/virtio-ports";
/// The port may come up a little after its driver.
const APPEAR: Duration = Duration::from_secs(10);
/// A host writes a message in one go: silence for longer, in milliseconds, is
/// no part of one.
const PAUSE: u16 = 5000;
/// While no host is connected there is nothing to wait on but time.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes that one read of the port gives at most.
const PIECE: usize = 4096;

/// The host's end of our conversation, read here.
#[derive(Debug)]
pub struct Port {
    file: File,
    /// True if the host has sent something since it last went away or paused.
    talking: bool,
}

impl Port {
    /// Finds and opens the port.
    pub fn open() -> Result<Self, String> {
        let begun = Instant::now();
        loop {
            match find() {
                Some(path) => {
                    let mut options = File::options();
                    options.read(true).write(true);
                    let file = options.custom_flags(OFlag::O_NONBLOCK.bits()).open(&path);
                    let port = |file| Self {
                        file,
                        talking: false,
                    };
                    return file
                        .map(port)
                        .map_err(|e| format!("open {}: {e}", path.display()));
                }
                None if begun.elapsed() > APPEAR => return Err(format!("there is no port {NAME}")),
                None => sleep(LOOK),
            }
        }
    }

    /// Returns the port, to write to.
    pub fn writer(&self) -> Result<Writer, String> {
        let file = self.file.try_clone();
        file.map(Writer).map_err(|e| format!("open the port: {e}"))
    }

    /// Reads all that is there, if there is something: one system call for many pieces.
    fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut pieces: Vec<_> = buffer.chunks_mut(PIECE).map(IoSliceMut::new).collect();
        self.file.read_vectored(&mut pieces)
    }

    /// Waits for something to read; whether there is some.
    fn wait(&self) -> io::Result<bool> {
        let patience = match self.talking {
            true => PollTimeout::from(PAUSE),
            false => PollTimeout::NONE,
        };
        let seen = seen(&self.file, PollFlags::POLLIN, patience)?;
        Ok(seen.contains(PollFlags::POLLIN))
    }
}

fn seen(file: &File, wanted: PollFlags, patience: PollTimeout) -> nix::Result<PollFlags> {
    let mut fds = [PollFd::new(file.as_fd(), wanted)];
    poll(&mut fds, patience)?;
    Ok(fds[0].revents().unwrap_or(PollFlags::empty()))
}

/// The port, to write to.
#[derive(Debug)]
pub struct Writer(File);

impl Writer {
    /// Passes on what a pipe of ours holds, so many bytes at most, without a copy. Returns how many; none, if the
    /// kernel had no memory for it and threw them away.
    pub fn pass(&mut self, from: &OwnedFd, most: usize) -> io::Result<usize> {
        let to = &self.0;
        self.when_there_is_room(|| {
            splice(from, None, to, None, most, SpliceFFlags::SPLICE_F_MOVE).map_err(Into::into)
        })
    }

    /// Waits for room, and for a host if there is none.
    fn when_there_is_room(
        &self,
        mut write: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match write() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                written => return written,
            }
            match seen(&self.0, PollFlags::POLLOUT, PollTimeout::NONE) {
                Ok(seen) if seen.contains(PollFlags::POLLOUT) => {}
                Ok(_) => sleep(LOOK),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl From<File> for Writer {
    fn from(file: File) -> Self {
        Self(file)
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.when_there_is_room(|| (&self.0).write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Port {
    /// Waits for the host to say something, and for a host to be there. Reads
    /// nothing, once, when the host goes away or pauses: if that is in the
    /// middle of a message, the rest will never come. A host that comes right
    /// after another died is seen by the pause alone.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self.read_now(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.wait()? {
                    true => continue,
                    false => 0,
                },
                read => read?,
            };
            let talked = std::mem::replace(&mut self.talking, read > 0);
            if read > 0 || talked {
                return Ok(read);
            }
            sleep(LOOK);
        }
    }
}

fn find() -> Option<PathBuf> {
    fs::read_dir(PORTS).ok()?.flatten().find_map(|entry| {
        let name = fs::read_to_string(entry.path().join("name")).ok()?;
        (name.trim_end() == NAME).then(|| PathBuf::from("/dev").join(entry.file_name()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Write,
        os::{fd::OwnedFd, unix::net::UnixStream},
    };

    #[test]
    fn the_end_of_what_a_host_says_is_told() {
        let (mut host, guest) = UnixStream::pair().expect("a pair");
        let mut port = Port {
            file: File::from(OwnedFd::from(guest)),
            talking: false,
        };
        host.write_all(b"half a mess").expect("taken");
        drop(host);
        let mut said = Vec::new();
        port.read_to_end(&mut said).expect("an end");
        assert_eq!(said, b"half a mess");
    }
}
