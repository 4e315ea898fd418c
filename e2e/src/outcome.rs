//! A command under way, and what it came to.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    io::{ErrorKind, Read, Write},
    process::Child,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// No command takes longer than this, or something hangs. Booting an image
/// that has to be built first takes longest.
const LIMIT: Duration = Duration::from_secs(600);

/// Result of a command.
#[derive(Debug)]
pub struct Outcome {
    /// Words of the command.
    pub words: String,
    /// Exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Standard output of the command.
    pub stdout: Vec<u8>,
    /// Standard error of the command.
    pub stderr: String,
}

impl Outcome {
    /// Standard output as text, without the line's end.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }

    /// Panics unless it exited with `code`.
    #[track_caller]
    pub fn exited(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "{}\n-- stdout\n{}\n-- stderr\n{}",
            self.words,
            self.text(),
            self.stderr
        );
        self
    }
}

/// A command under way.
#[derive(Debug)]
pub struct Running {
    words: String,
    child: Child,
    stdout: Stream,
    stderr: Stream,
}

/// Output of a pipe.
#[derive(Debug)]
struct Stream {
    reader: JoinHandle<()>,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Running {
    /// Follows a child whose three standard streams are pipes, and feeds it.
    pub fn of(words: String, mut child: Child, input: Vec<u8>) -> Self {
        let mut stdin = child.stdin.take().expect("a pipe");
        // One that does not read all of it is no error of ours.
        thread::spawn(move || stdin.write_all(&input));
        let stdout = Stream::of(child.stdout.take().expect("a pipe"));
        let stderr = Stream::of(child.stderr.take().expect("a pipe"));
        Self {
            words,
            child,
            stdout,
            stderr,
        }
    }

    /// Tells whether it has ended.
    pub fn is_over(&self) -> bool {
        self.stdout.reader.is_finished() && self.stderr.reader.is_finished()
    }

    /// Returns its standard output so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.stdout.so_far()).into_owned()
    }

    /// Says whether it handles being interrupted by now, in place of being ended by it.
    #[track_caller]
    pub fn handles_interrupts(&self) -> bool {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).expect("a child of ours");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.expect("a mask").trim(), 16).expect("a mask");
        caught & (1 << (Signal::SIGINT as u32 - 1)) != 0
    }

    /// Asks it to end, as Ctrl-C does.
    #[track_caller]
    pub fn interrupt(&self) {
        self.signal(Signal::SIGINT);
    }

    /// Sends it a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("a child of ours");
    }

    /// Returns its standard error so far.
    pub fn complaints(&self) -> String {
        String::from_utf8_lossy(&self.stderr.so_far()).into_owned()
    }

    /// Waits for its end; one that takes too long is ended, and is a failure.
    #[track_caller]
    pub fn wait(mut self) -> Outcome {
        let begun = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("a child of ours") {
                Some(status) => break status,
                None if begun.elapsed() < LIMIT => thread::sleep(Duration::from_millis(2)),
                None => {
                    self.child.kill().expect("ended");
                    self.child.wait().expect("reaped");
                    panic!("{} took longer than {LIMIT:?}", self.words);
                }
            }
        };
        let stderr = self.stderr.whole();
        Outcome {
            words: self.words,
            code: status.code(),
            stdout: self.stdout.whole(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }
}

impl Stream {
    fn of(mut from: impl Read + Send + 'static) -> Self {
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = said.clone();
        let reader = thread::spawn(move || {
            let mut some = [0; 4096];
            loop {
                match from.read(&mut some) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // What was read before it broke is what there is.
                    Ok(0) | Err(_) => return,
                    Ok(count) => heard.lock().expect("a buffer").extend(&some[..count]),
                }
            }
        });
        Self { reader, said }
    }

    fn so_far(&self) -> Vec<u8> {
        self.said.lock().expect("a buffer").clone()
    }

    fn whole(self) -> Vec<u8> {
        self.reader.join().expect("reader");
        std::mem::take(&mut self.said.lock().expect("a buffer"))
    }
}
