//! A command under way, and what it came to.

use std::{
    io::{Read, Write},
    process::Child,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// No command takes longer than this, or something hangs. Booting an image
/// that has to be built first takes longest.
const LIMIT: Duration = Duration::from_secs(600);

/// What a command came to.
#[derive(Debug)]
pub struct Outcome {
    /// What was asked.
    pub words: String,
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
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
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<Vec<u8>>,
}

impl Running {
    /// Follows a child whose three standard streams are pipes, and feeds it.
    pub fn of(words: String, mut child: Child, input: Vec<u8>) -> Self {
        let mut stdin = child.stdin.take().expect("a pipe");
        // One that does not read all of it is no error of ours.
        thread::spawn(move || stdin.write_all(&input));
        let stdout = collect(child.stdout.take().expect("a pipe"));
        let stderr = collect(child.stderr.take().expect("a pipe"));
        Self {
            words,
            child,
            stdout,
            stderr,
        }
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.stdout.is_finished() && self.stderr.is_finished()
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
        let stderr = self.stderr.join().expect("reader");
        Outcome {
            words: self.words,
            code: status.code(),
            stdout: self.stdout.join().expect("reader"),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        // What was read before it broke is what there is.
        let _ = from.read_to_end(&mut all);
        all
    })
}
