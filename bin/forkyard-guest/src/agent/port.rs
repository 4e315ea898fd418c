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
/// While no host is connected there is nothing to wait on but time.
const LOOK: Duration = Duration::from_millis(20);

/// The host's end of our conversation, read here.
#[derive(Debug)]
pub struct Port(File);

impl Port {
    /// Finds and opens the port.
    pub fn open() -> Result<Self, String> {
        let begun = Instant::now();
        loop {
            match find() {
                Some(path) => {
                    let file = File::options().read(true).write(true).open(&path);
                    return file
                        .map(Self)
                        .map_err(|e| format!("open {}: {e}", path.display()));
                }
                None if begun.elapsed() > APPEAR => return Err(format!("there is no port {NAME}")),
                None => sleep(LOOK),
            }
        }
    }

    /// The same port, to write to.
    pub fn writer(&self) -> Result<File, String> {
        self.0
            .try_clone()
            .map_err(|e| format!("open the port: {e}"))
    }
}

impl Read for Port {
    /// Waits for the host to say something, and for a host to be there. Never
    /// reads nothing.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::NONE)?;
            let seen = fds[0].revents().unwrap_or(PollFlags::empty());
            if seen.contains(PollFlags::POLLIN) {
                match self.0.read(buffer) {
                    Ok(0) => {}
                    other => return other,
                }
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
