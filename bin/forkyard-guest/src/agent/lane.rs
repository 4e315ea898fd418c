//! The way from commands' pipes to the host, on which data is passed on in pages, uncopied: of what a guest does with
//! much data, copies and kicks of the port cost the most.
//!
//! ```text
//! command's pipe --splice--> lane: head, data, end of a frame --splice--> port
//! ```

use super::port::Writer;
use forkyard_agent_link::Around;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice},
    unistd::{pipe2, read, write},
};
use std::{io, os::fd::OwnedFd};

/// Bytes that it holds, in pages: as many as any pipe of a command.
const ROOM: i32 = 1 << 20;

/// A pipe of our own, empty between two frames.
#[derive(Debug)]
pub struct Lane {
    from: OwnedFd,
    to: OwnedFd,
    /// Bytes in it.
    held: usize,
}

impl Lane {
    pub fn open() -> nix::Result<Self> {
        let (from, to) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        fcntl(&to, FcntlArg::F_SETPIPE_SZ(ROOM))?;
        Ok(Self { from, to, held: 0 })
    }

    /// Sends a frame of so many bytes that lie in a pipe. What another reader of that pipe, which a
    /// command can make, has taken meanwhile is sent as zeros. After an error it is not to be used again.
    pub fn send(
        &mut self,
        frame: &Around,
        from: &OwnedFd,
        bytes: usize,
        port: &mut Writer,
    ) -> io::Result<()> {
        self.put(&frame.before, port)?;
        let mut left = bytes;
        while left > 0 {
            let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
            match splice(from, None, &self.to, None, left, flags) {
                Ok(moved @ 1..) => {
                    self.held += moved;
                    left -= moved;
                }
                Err(Errno::EINTR) => {}
                // It is full.
                Err(Errno::EAGAIN) if self.held > 0 => self.empty(port)?,
                Ok(0) | Err(Errno::EAGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.put(&vec![0; left], port)?;
        self.put(&frame.after, port)?;
        self.empty(port)
    }

    fn put(&mut self, mut bytes: &[u8], port: &mut Writer) -> io::Result<()> {
        while !bytes.is_empty() {
            match write(&self.to, bytes) {
                Ok(written) => {
                    self.held += written;
                    bytes = &bytes[written..];
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if self.held > 0 => self.empty(port)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn empty(&mut self, port: &mut Writer) -> io::Result<()> {
        port.pass(&self.from, std::mem::take(&mut self.held))
    }
}

/// Reads so many bytes that a pipe holds, or as many as there are.
pub fn taken(pipe: &OwnedFd, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        match read(pipe, &mut data[filled..]) {
            Ok(read @ 1..) => filled += read,
            Err(Errno::EINTR) => {}
            Ok(0) | Err(_) => break,
        }
    }
    data.truncate(filled);
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_agent_link::{CHUNK, Decoder, Session, Stream, ToHost, around};
    use nix::unistd::pipe;
    use std::{
        fs::File,
        io::{Read, Write},
        os::unix::net::UnixStream,
        thread,
    };

    /// Sends a frame that claims so many bytes of a pipe that holds these pieces, each a page of its own; returns
    /// its data.
    fn through(pieces: &[&[u8]], bytes: usize) -> Vec<u8> {
        let (from, to) = pipe().expect("a pipe");
        fcntl(&to, FcntlArg::F_SETPIPE_SZ(ROOM)).expect("wide");
        let mut to = File::from(to);
        for piece in pieces {
            to.write_all(piece).expect("room");
        }
        let empty = ToHost::ExecOutput {
            session: Session(1),
            stream: Stream::Out,
            data: Vec::new(),
        };
        let frame = around(&empty, bytes).expect("short enough");
        let (mut host, guest) = UnixStream::pair().expect("a pair");
        let reads = thread::spawn(move || {
            let mut seen = Vec::new();
            host.read_to_end(&mut seen).expect("read");
            seen
        });
        let mut port = Writer::from(File::from(OwnedFd::from(guest)));
        let mut lane = Lane::open().expect("a pipe");
        lane.send(&frame, &from, bytes, &mut port).expect("sent");
        assert_eq!(lane.held, 0);
        drop(port);
        let mut decoder = Decoder::default();
        decoder.feed(&reads.join().expect("read"));
        match decoder.next_message() {
            Some(Ok(ToHost::ExecOutput { data, .. })) => data,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn data_of_whole_pages_and_of_crumbs_arrives_as_it_is() {
        let data: Vec<u8> = (0..CHUNK).map(|at| (at % 251) as u8).collect();
        assert!(through(&[&data], CHUNK) == data);
        // More pages than it has room for beside the head.
        let crumb = [9; 2049];
        let crumbs = vec![&crumb[..]; 63];
        assert!(through(&crumbs, 63 * 2049) == vec![9; 63 * 2049]);
    }

    #[test]
    fn what_another_reader_has_taken_is_zeros() {
        let mut wanted = vec![5; 1000];
        wanted.resize(3000, 0);
        assert!(through(&[&[5; 1000]], 3000) == wanted);
    }
}
