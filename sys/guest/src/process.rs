//! Processes that are no children of this one, and their ends.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
    time::Duration,
};

/// One process, named by a descriptor: never another that has its number later.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl Process {
    /// Opens the process that has this number now; `ESRCH` if there is none,
    /// `ENOSYS` before Linux 5.3.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: takes two integers and no pointer; a number that names no
        // process is refused.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the call has just returned this descriptor (close-on-exec by
        // definition), and nothing else knows of it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Blocks until the process has ended, reaped or not.
    pub fn wait(&self) -> io::Result<()> {
        self.poll(PollTimeout::NONE)
    }

    /// Blocks until the process has ended, but for so long at most.
    pub fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.poll(PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX))
    }

    /// Sends it a signal, one of the real-time signals too. `ESRCH` if it has ended.
    pub fn signal(&self, number: u8) -> io::Result<()> {
        let (fd, number) = (self.0.as_raw_fd(), libc::c_int::from(number));
        let nothing = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open as long as `self`; a null pointer has the
        // kernel make up what kill(2) would; the flags are none.
        match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, number, nothing, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn poll(&self, timeout: PollTimeout) -> io::Result<()> {
        loop {
            let mut ended = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ended, timeout) {
                Ok(_) => return Ok(()),
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_end_of_a_process_is_seen_and_one_that_has_gone_is_refused() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("a child");
        let process = Process::open(child.id()).expect("it runs");
        process
            .wait_at_most(Duration::from_millis(1))
            .expect("it runs on");
        process.signal(0).expect("it runs");
        process.signal(64).expect("it runs");
        process.wait().expect("it ends");
        let pid = child.id();
        child.wait().expect("reaped");
        let error = Process::open(pid).expect_err("it has gone");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
