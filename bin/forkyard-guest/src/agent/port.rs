//! The channel to the host: a port of the virtio console.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::AsFd,
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
                    let file = File::options().read(true).write(true).open(&path);
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
    pub fn writer(&self) -> Result<File, String> {
        self.file
            .try_clone()
            .map_err(|e| format!("open the port: {e}"))
    }
}

impl Read for Port {
    /// Waits for the host to say something, and for a host to be there. Reads
    /// nothing, once, when the host goes away or pauses: if that is in the
    /// middle of a message, the rest will never come. A host that comes right
    /// after another died is seen by the pause alone.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let patience = match self.talking {
                true => PollTimeout::from(PAUSE),
                false => PollTimeout::NONE,
            };
            let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, patience)?;
            let seen = fds[0].revents().unwrap_or(PollFlags::empty());
            let read = match seen.contains(PollFlags::POLLIN) {
                true => self.file.read(buffer)?,
                false => 0,
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
