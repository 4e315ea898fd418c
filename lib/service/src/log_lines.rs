//! Lines of the daemon's log.
//!
//! An event is one line, whatever a user or a guest sent that it tells of: what they send
//! begins no line. A reader that does not read, a terminal that was halted or a pipe
//! that is full, holds up the log and nothing else: lines are left out then, and counted.

use forkyard_types::{cut, shown};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    fmt::Write as _,
    io::{self, Write},
    os::fd::AsFd,
    sync::{Mutex, PoisonError},
};

/// Most bytes written at once: a pipe that has room for any takes so many without waiting.
const AT_ONCE: usize = 4096;

/// Most bytes of an event.
const LONGEST: usize = 16 << 10;

/// Writer of events to standard error, one event a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogLines;

/// Lines left out since the last that was written.
static LEFT_OUT: Mutex<u64> = Mutex::new(0);

impl Write for LogLines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let mut left_out = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
        write_line(&io::stderr(), event, &mut left_out);
        // An error would be written to standard error, too.
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes an event as a line, and before it how many were left out; or counts it, if `to` takes
/// nothing now.
fn write_line(to: &impl AsFd, event: &[u8], left_out: &mut u64) {
    let text = String::from_utf8_lossy(event);
    let mut line = String::new();
    if *left_out > 0 {
        // Writing to a string does not fail.
        let _ = writeln!(
            line,
            "({left_out} lines were left out: this log was not read)"
        );
    }
    line.push_str(&shown(&cut(text.trim_end_matches('\n'), LONGEST), |c| {
        c == '\t'
    }));
    line.push('\n');
    for (at, piece) in line.as_bytes().chunks(AT_ONCE).enumerate() {
        if !has_room(to) {
            *left_out += u64::from(at == 0);
            return;
        }
        if write_all(to, piece).is_err() {
            return;
        }
    }
    *left_out = 0;
}

fn write_all(to: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = nix::unistd::write(to, bytes)?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// True if a write of [`AT_ONCE`] bytes will not wait. One that cannot be asked about, or whose
/// reader has gone, says so when it is written.
fn has_room(output: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(output.as_fd(), PollFlags::POLLOUT)];
    poll(&mut asked, PollTimeout::ZERO) != Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Read};

    #[test]
    fn an_event_is_one_line_whatever_it_tells_of() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut left_out = 0;
        write_line(
            file.as_file(),
            b"a path /x\n2026 INFO forged\x1b[2J\n",
            &mut left_out,
        );
        write_line(file.as_file(), b"next\n", &mut left_out);
        let log = fs::read_to_string(file.path()).expect("read");
        assert_eq!(log, "a path /x\\u000a2026 INFO forged\\u001b[2J\nnext\n");
    }

    #[test]
    fn a_log_that_is_not_read_holds_nothing_up_and_says_later_what_it_lacks() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let mut left_out = 0;
        let event = [b'x'; 1000];
        while left_out < 5 {
            write_line(&writer, &event, &mut left_out);
        }
        let mut read = vec![0; 60_000];
        reader.read_exact(&mut read).expect("read");
        write_line(&writer, b"again", &mut left_out);
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("text");
        assert!(rest.ends_with("(5 lines were left out: this log was not read)\nagain\n"));
        assert_eq!(left_out, 0);
    }
}
