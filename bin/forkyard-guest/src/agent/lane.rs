//! Pipes of our own on the way to the host, on which much data is passed on in pages: a guest's kernel copies
//! what is written to the port, and kicks it for each 32 KiB.
//!
//! ```text
//! pipe of the program for files --splice--> stage --splice--> lane: head, data, end --splice--> port
//! output of other commands     --read-----> frame --write---> lane -------------------splice--> port
//! ```
//!
//! Only our own program's pages are passed on as they are. Another command may have put pages of a file into
//! its pipe, which the kernel would take out of its cache, and wait for their disk.

use super::port::Writer;
use forkyard_agent_link::Around;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice},
    unistd::{pipe2, read, write},
};
use std::{io, io::Write, os::fd::OwnedFd};

/// Bytes that it holds, in pages: more than a frame has.
const ROOM: i32 = 1 << 20;

/// Data that is ours and not sent yet. Only one thread uses it.
#[derive(Debug)]
pub struct Stage {
    from: OwnedFd,
    to: OwnedFd,
}

impl Stage {
    pub fn open() -> nix::Result<Self> {
        let (from, to) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        fcntl(&to, FcntlArg::F_SETPIPE_SZ(ROOM))?;
        Ok(Self { from, to })
    }

    /// Takes what a pipe has now, so many bytes at most; returns how many.
    pub fn take(&self, pipe: &OwnedFd, most: usize) -> nix::Result<usize> {
        let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
        splice(pipe, None, &self.to, None, most, flags)
    }

    /// Reads all that is in it.
    pub fn read(&self) -> Vec<u8> {
        drain(&self.from)
    }
}

/// The last pipe before the port; empty between two frames.
#[derive(Debug)]
pub struct Lane {
    pipe: Stage,
    /// Bytes in it.
    held: usize,
    /// Bytes of this frame that the port has taken.
    sent: usize,
}

impl Lane {
    pub fn open() -> nix::Result<Self> {
        Ok(Self {
            pipe: Stage::open()?,
            held: 0,
            sent: 0,
        })
    }

    /// Sends a frame around so many bytes, which a stage has. After an error, of which the host sees noise,
    /// they are lost, and this is not to be used again.
    pub fn pass_on(
        &mut self,
        frame: &Around,
        from: &Stage,
        bytes: usize,
        port: &mut Writer,
    ) -> io::Result<()> {
        let length = frame.before.len() + bytes + frame.after.len();
        let sent = self.frame(frame, from, bytes, port);
        sent.or_else(|error| self.spoil(length, port).and(Err(error)))
    }

    /// Sends a frame.
    pub fn carry(&mut self, frame: &[u8], port: &mut Writer) -> io::Result<()> {
        self.sent = 0;
        let sent = self.put(frame, port).and_then(|()| self.empty(port));
        // As any other, then.
        sent.or_else(|_| {
            self.spoil(frame.len(), port)?;
            port.write_all(frame)
        })
    }

    fn frame(
        &mut self,
        frame: &Around,
        from: &Stage,
        bytes: usize,
        port: &mut Writer,
    ) -> io::Result<()> {
        self.sent = 0;
        self.put(&frame.before, port)?;
        let mut left = bytes;
        while left > 0 {
            match self.pipe.take(&from.from, left) {
                Ok(moved @ 1..) => {
                    self.held += moved;
                    left -= moved;
                }
                Err(Errno::EINTR) => {}
                // It is full.
                Err(Errno::EAGAIN) if self.held > 0 => self.empty(port)?,
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Err(error.into()),
            }
        }
        self.put(&frame.after, port)?;
        self.empty(port)
    }

    fn put(&mut self, mut bytes: &[u8], port: &mut Writer) -> io::Result<()> {
        while !bytes.is_empty() {
            match write(&self.pipe.to, bytes) {
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
        while self.held > 0 {
            let passed = match port.pass(&self.pipe.from, self.held) {
                Ok(passed @ 1..) => passed,
                // What a kernel short of memory has not thrown away is written as anything else.
                failed => {
                    let rest = drain(&self.pipe.from);
                    if rest.len() < self.held {
                        return Err(failed.err().unwrap_or(io::ErrorKind::OutOfMemory.into()));
                    }
                    port.write_all(&rest)?;
                    rest.len()
                }
            };
            self.held -= passed;
            self.sent += passed;
        }
        Ok(())
    }

    /// Makes noise of a frame that was sent in part, and not more than that of what follows.
    fn spoil(&mut self, length: usize, port: &mut Writer) -> io::Result<()> {
        drain(&self.pipe.from);
        self.held = 0;
        match self.sent {
            0 => Ok(()),
            sent => port.write_all(&vec![0; length - sent]),
        }
    }
}

fn drain(pipe: &OwnedFd) -> Vec<u8> {
    let mut data = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match read(pipe, &mut piece) {
            Ok(length @ 1..) => data.extend_from_slice(&piece[..length]),
            Err(Errno::EINTR) => {}
            Ok(_) | Err(_) => return data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_agent_link::{CHUNK, Decoder, Session, Stream, ToHost, around, encode};
    use std::{fs::File, io::Read, os::unix::net::UnixStream, thread};

    /// All that a host gets of what is sent.
    fn heard(send: impl FnOnce(&mut Writer)) -> Vec<ToHost> {
        let (mut host, guest) = UnixStream::pair().expect("a pair");
        let reads = thread::spawn(move || {
            let mut seen = Vec::new();
            host.read_to_end(&mut seen).expect("read");
            seen
        });
        let mut port = Writer::from(File::from(OwnedFd::from(guest)));
        send(&mut port);
        drop(port);
        let mut decoder = Decoder::default();
        decoder.feed(&reads.join().expect("read"));
        std::iter::from_fn(|| {
            decoder
                .next_message()
                .map(|message| message.expect("known"))
        })
        .collect()
    }

    fn output(data: Vec<u8>) -> ToHost {
        ToHost::ExecOutput {
            session: Session(1),
            stream: Stream::Out,
            data,
        }
    }

    #[test]
    fn data_of_whole_pages_and_of_crumbs_arrives_as_it_is() {
        let whole: Vec<u8> = (0..=250).cycle().take(CHUNK).collect();
        // Each in a page of its own.
        for (piece, count) in [(&whole[..], 1), (&[9; 2049][..], 63)] {
            let (from, to) = pipe2(OFlag::O_CLOEXEC).expect("a pipe");
            fcntl(&to, FcntlArg::F_SETPIPE_SZ(ROOM)).expect("wide");
            (0..count).for_each(|_| {
                File::from(to.try_clone().expect("cloned"))
                    .write_all(piece)
                    .expect("room")
            });
            let stage = Stage::open().expect("a pipe");
            let bytes = stage.take(&from, CHUNK).expect("taken");
            assert_eq!(bytes, piece.len() * count);
            let frame = around(&output(Vec::new()), bytes).expect("short enough");
            let mut lane = Lane::open().expect("a pipe");
            let seen = heard(|port| {
                lane.pass_on(&frame, &stage, bytes, port).expect("sent");
                lane.carry(&encode(&ToHost::Started).expect("short"), port)
                    .expect("sent");
            });
            assert!(seen == [output(piece.repeat(count)), ToHost::Started]);
        }
    }

    #[test]
    fn a_frame_whose_data_is_lost_is_noise_and_swallows_nothing() {
        let stage = Stage::open().expect("a pipe");
        write(&stage.to, &[5; 1000]).expect("room");
        let frame = around(&output(Vec::new()), 3000).expect("short enough");
        let seen = heard(|port| {
            let mut lane = Lane::open().expect("a pipe");
            lane.pass_on(&frame, &stage, 3000, port)
                .expect_err("less than that");
            port.write_all(&encode(&ToHost::Started).expect("short"))
                .expect("sent");
        });
        assert_eq!(seen, [ToHost::Started]);
    }
}
