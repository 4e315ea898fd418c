//! A command's way to the clones that are its hosts: `vmfork rsh`.
//!
//! The job is found by a variable, and asked over a socket in its folder. Input is passed on
//! only if that is said: launchers would lose theirs to commands that read none.

use super::{
    Failure,
    report::{Ended, Input, Into},
};
use forkyard_agent_link::{CHUNK, FrameReader, send};
use serde::{Deserialize, Serialize};
use std::{
    env, fs,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
};

/// Variable with the folder of the job that a command belongs to.
pub const FOLDER: &str = "FORKYARD_HOSTS";
/// Name of the socket in that folder.
pub const SOCKET: &str = "socket";
/// Name of the list of hosts in that folder.
pub const HOSTS: &str = "hosts";

/// From `vmfork rsh` to the job. [`Piece`]s follow if there is input.
#[derive(Serialize, Deserialize)]
pub struct Call {
    pub host: String,
    pub command: String,
    pub input: Input,
}

/// Part of a command's input; empty at its end.
#[derive(Default, Serialize, Deserialize)]
pub struct Piece(pub Vec<u8>);

/// From the job to `vmfork rsh`.
#[derive(Serialize, Deserialize)]
pub enum Answer {
    Output { into: Into, data: Vec<u8> },
    End(Ended),
}

/// Job that a command belongs to.
#[derive(Clone)]
pub struct Job(PathBuf);

impl Job {
    /// Finds it by its variable, for a command of this name.
    pub fn of(command: &str) -> Result<Self, Failure> {
        let folder = env::var_os(FOLDER).ok_or_else(|| {
            Failure::Usage(format!(
                "{command} is for commands of `vmfork hosts` and `vmfork mpirun`"
            ))
        })?;
        Ok(Self(folder.into()))
    }

    /// Lists the addresses of its hosts, in the order of their numbers.
    pub fn hosts(&self) -> io::Result<Vec<String>> {
        let listed = fs::read_to_string(self.0.join(HOSTS))?;
        let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
        Ok(listed.lines().filter_map(first).collect())
    }

    /// Runs a shell command on a host; its output goes to `out` and to standard error. Blocks
    /// until it has ended. Input that it leaves unread is read no further.
    pub fn run(
        &self,
        host: &str,
        command: String,
        input: Option<impl Read + Send + 'static>,
        out: &mut dyn Write,
    ) -> io::Result<Ended> {
        let mut link = UnixStream::connect(Path::new(&self.0).join(SOCKET))?;
        let call = Call {
            host: host.to_owned(),
            command,
            input: match input {
                Some(_) => Input::Sent,
                None => Input::Empty,
            },
        };
        send(&mut link, &call)?;
        if let Some(input) = input {
            let link = link.try_clone()?;
            thread::spawn(move || pass_on(input, link));
        }
        let mut answers = FrameReader::new(link);
        while let Ok(Some(answer)) = answers.read_message() {
            match answer {
                // As for any program: a reader that went away ends it.
                Answer::Output {
                    into: Into::Out,
                    data,
                } => out.write_all(&data)?,
                Answer::Output { data, .. } => io::stderr().write_all(&data)?,
                Answer::End(ended) => return Ok(ended),
            }
        }
        Err(io::Error::other("the job has ended"))
    }
}

fn pass_on(mut input: impl Read, mut link: UnixStream) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = input.read(&mut buffer).unwrap_or_default();
        let sent = send(&mut link, &Piece(buffer[..read].to_vec()));
        if read == 0 || sent.is_err() {
            return;
        }
    }
}

/// Runs a command on a host of the job this belongs to, as rsh and ssh do.
pub fn rsh(words: &[&str]) -> Result<ExitCode, Failure> {
    let (input, host, command) = split(words)?;
    let job = Job::of("rsh")?;
    let input = match input {
        Input::Sent => Some(io::stdin()),
        Input::Empty => None,
    };
    let ended = job.run(host, command.join(" "), input, &mut io::stdout());
    let ended = ended.map_err(|error| Failure::Failed(format!("cannot reach the job: {error}")))?;
    if let Ended::Failed(why) = &ended {
        eprintln!("vmfork: {why}");
    }
    Ok(ExitCode::from(ended.code()))
}

/// Skips options of rsh's and ssh's that mean nothing here.
fn split<'a>(words: &'a [&'a str]) -> Result<(Input, &'a str, &'a [&'a str]), Failure> {
    let (mut input, mut rest) = (Input::Empty, words);
    loop {
        rest = match rest {
            ["--input", rest @ ..] => {
                input = Input::Sent;
                rest
            }
            ["-n" | "-q" | "-x" | "-T", rest @ ..] => rest,
            ["-l", _user, rest @ ..] => rest,
            [host, command @ ..] if !host.starts_with('-') && !command.is_empty() => {
                return Ok((input, host, command));
            }
            _ => return Err(Failure::Usage("rsh takes a host and a command".into())),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rsh_and_ssh_would_be_told_is_understood() {
        let words = split(&["-x", "-l", "root", "10.0.0.2", "echo", "a"]).expect("good words");
        assert_eq!(words, (Input::Empty, "10.0.0.2", &["echo", "a"][..]));
        let words = split(&["--input", "h", "cat"]).expect("good words");
        assert_eq!(words, (Input::Sent, "h", &["cat"][..]));
        for words in [&["10.0.0.2"][..], &["-X", "h", "c"], &[]] {
            assert!(split(words).is_err(), "{words:?}");
        }
    }
}
