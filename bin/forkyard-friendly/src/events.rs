//! Events of processes that the kernel reports: one has begun another program, or has
//! ended (the process connector, `linux/cn_proc.h`).

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_CONNECTOR};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{SockFilter, SockRef};
use std::{fs, io, os::fd::AsFd, time::Duration};

/// Something that has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// This process is about to run the first instruction of another program.
    Exec(u32),
    /// This process has ended, with all its threads.
    Exit(u32),
    /// There was more than could be heard: some of it is lost.
    Lost,
}

/// Hears of all processes of the machine.
#[derive(Debug)]
pub struct Events(Socket);

// As in linux/connector.h and linux/cn_proc.h.
const PROC: u32 = 1;
const LISTEN: u32 = 1;
const IGNORE: u32 = 2;
const NONE: u32 = 0;
const EXEC: u32 = 2;
const EXIT: u32 = 0x8000_0000;
/// Offsets in a message of the kind of event, and of the thread and the process that it is of.
const WHAT: usize = 36;
const THREAD: usize = 52;
const PROCESS: usize = 56;
/// Bytes that a message may have.
const LONGEST: usize = 256;
/// Time for the kernel to confirm that it will report.
const PATIENCE: Duration = Duration::from_secs(1);

impl Events {
    /// Begins to hear. The kernel takes the trouble until [`unhear`], and none before 6.6
    /// notices that the listener has ended. An error in a container, as [`tells_here`]
    /// has it or in a network namespace of its own, and without the right to.
    pub fn hear() -> io::Result<Self> {
        if !tells_here() {
            let why = "the kernel tells of processes only outside of containers";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let mut socket = Socket::new(NETLINK_CONNECTOR)?;
        socket.bind(&SocketAddr::new(0, PROC))?;
        socket.send(&telling(LISTEN), 0)?;
        let events = Self(socket);
        loop {
            let Some(message) = events.next(Some(PATIENCE))? else {
                return Err(io::ErrorKind::TimedOut.into());
            };
            // It says so of every process that asks.
            if word(&message, WHAT) == Some(NONE) {
                break;
            }
        }
        // The rest is not worth being woken for.
        SockRef::from(&events.0).attach_filter(&filter())?;
        Ok(events)
    }

    /// Waits for the next.
    pub fn wait(&self) -> io::Result<Event> {
        loop {
            match self.next(None) {
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => {
                    return Ok(Event::Lost);
                }
                message => {
                    if let Some(event) = message?.as_deref().and_then(event) {
                        return Ok(event);
                    }
                }
            }
        }
    }

    /// The next message; none if there is none in time.
    fn next(&self, patience: Option<Duration>) -> io::Result<Option<Vec<u8>>> {
        if let Some(patience) = patience {
            let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, patience)? == 0 {
                return Ok(None);
            }
        }
        let mut message = Vec::with_capacity(LONGEST);
        self.0.recv(&mut message, 0)?;
        Ok(Some(message))
    }
}

/// Tells whether this process is in the machine's first namespaces of processes and of
/// users: the kernel reports to no other, and does not say so.
fn tells_here() -> bool {
    // As the kernel numbers them (linux/nsfs.h).
    const FIRST: [(&str, &str); 2] = [("pid", "4026531836"), ("user", "4026531837")];
    FIRST.iter().all(|(kind, number)| {
        let is = fs::read_link(format!("/proc/self/ns/{kind}"));
        is.is_ok_and(|is| is.as_os_str() == format!("{kind}:[{number}]").as_str())
    })
}

/// Has the kernel tell one program fewer. To be done once for each that heard and has
/// ended, by the processes that outlive it.
pub fn unhear() -> io::Result<()> {
    let socket = Socket::new(NETLINK_CONNECTOR)?;
    socket.send(&telling(IGNORE), 0)?;
    Ok(())
}

/// A message to the kernel.
fn telling(operation: u32) -> Vec<u8> {
    const NLMSG_DONE: u16 = 3;
    const HEADERS: u32 = 16 + 20;
    let body = operation.to_ne_bytes();
    let length = HEADERS + 4;
    let mut message = Vec::new();
    message.extend(length.to_ne_bytes());
    message.extend(NLMSG_DONE.to_ne_bytes());
    message.extend(0u16.to_ne_bytes());
    // Sequence and sender; then receiver, sequence, acknowledgement; length, flags.
    let fields = [0, 0, PROC, PROC, 0, 0];
    message.extend(fields.into_iter().flat_map(u32::to_ne_bytes));
    message.extend(4u16.to_ne_bytes());
    message.extend(0u16.to_ne_bytes());
    message.extend(body);
    message
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Parses a message, if it is of those that are used.
fn event(message: &[u8]) -> Option<Event> {
    let process = word(message, PROCESS)?;
    match word(message, WHAT)? {
        EXEC => Some(Event::Exec(process)),
        EXIT if word(message, THREAD)? == process => Some(Event::Exit(process)),
        _ => None,
    }
}

/// Lets through what [`event`] knows, in the kernel's machine for it.
fn filter() -> [SockFilter; 9] {
    // From linux/filter.h: load a word from the message, keep it, compare, return.
    const LOAD: u16 = 0x20;
    const KEEP: u16 = 0x07;
    const IF_IS: u16 = 0x15;
    const IF_IS_KEPT: u16 = 0x1d;
    const RETURN: u16 = 0x06;
    // Words are loaded as the network has them.
    let is = |word: u32| u32::from_be_bytes(word.to_ne_bytes());
    let at = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    [
        SockFilter::new(LOAD, 0, 0, at(WHAT)),
        SockFilter::new(IF_IS, 6, 0, is(EXEC)),
        SockFilter::new(IF_IS, 0, 4, is(EXIT)),
        SockFilter::new(LOAD, 0, 0, at(THREAD)),
        SockFilter::new(KEEP, 0, 0, 0),
        SockFilter::new(LOAD, 0, 0, at(PROCESS)),
        SockFilter::new(IF_IS_KEPT, 1, 0, 0),
        // Nothing of the message, or all of it.
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Unhears it again, whatever happens.
    struct Heard(Events);

    impl Drop for Heard {
        fn drop(&mut self) {
            unhear().expect("unheard");
        }
    }

    #[test]
    fn programs_that_begin_and_processes_that_end_are_heard_and_threads_are_not() {
        if !tells_here() {
            let error = Events::hear().expect_err("nothing is told in a container");
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            return;
        }
        let heard = Heard(Events::hear().expect("root, and the first network namespace"));
        std::thread::spawn(|| {}).join().expect("no panic");
        let mut child = Command::new("true").spawn().expect("started");
        let process = child.id();
        assert!(child.wait().expect("waited").success());
        let mut seen = Vec::new();
        // Others begin and end meanwhile.
        while !seen.contains(&Event::Exit(process)) {
            let message = heard.0.next(Some(Duration::from_mins(1))).expect("heard");
            // Those of before the filter was there are not of interest.
            let event = event(&message.expect("in time"));
            let me = std::process::id();
            assert!(!matches!(event, Some(Event::Exit(one) | Event::Exec(one)) if one == me));
            seen.extend(event);
        }
        let of = |event| seen.iter().position(|seen| *seen == event);
        assert!(of(Event::Exec(process)) < of(Event::Exit(process)));
        assert!(of(Event::Exec(process)).is_some());
    }
}
