//! `vmfork scatter` and `vmfork gather`: files to and from the clones that are the
//! hosts of a job, over the family's network.
//!
//! ```text
//! scatter  files send PATH --rsh, input--> files receive  on each host
//! gather   files send PATH on each host --rsh, output--> files receive DIR/NUMBER
//! ```
//!
//! A failure on one host leaves the others their copies; it is told, and the code is 1.

use super::{Failure, remote::Job, report::Ended};
use forkyard_types::ExitStatus;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
};

/// Copies each path to a host, in turn, or to all; to the place that it has here.
pub fn scatter(words: &[&str]) -> Result<ExitCode, Failure> {
    let (to_all, paths) = match words {
        ["--all", paths @ ..] => (true, paths),
        paths => (false, paths),
    };
    let paths = absolute(paths, "scatter")?;
    let (job, hosts) = hosts_of("scatter")?;
    let count = hosts.len();
    let copies = hosts.into_iter().enumerate().map(|(number, host)| {
        let dealt = paths.iter().enumerate();
        let its = dealt.filter(|(at, _)| to_all || at % count == number);
        let its: Vec<_> = its.map(|(_, path)| path.clone()).collect();
        let job = job.clone();
        thread::spawn(move || report(number, &its, |path| put(&job, &host, path)))
    });
    Ok(code(copies.collect()))
}

/// Copies each path of every host to a folder of that host's number.
pub fn gather(words: &[&str]) -> Result<ExitCode, Failure> {
    let Some((folder, paths)) = words.split_first() else {
        return Err(Failure::Usage("gather takes a folder and paths".into()));
    };
    let paths = absolute(paths, "gather")?;
    let (job, hosts) = hosts_of("gather")?;
    let copies = hosts.into_iter().enumerate().map(|(number, host)| {
        let home = Path::new(folder).join((number + 1).to_string());
        let (job, paths) = (job.clone(), paths.clone());
        thread::spawn(move || report(number, &paths, |path| fetch(&job, &host, path, &home)))
    });
    Ok(code(copies.collect()))
}

fn absolute(words: &[&str], command: &str) -> Result<Vec<PathBuf>, Failure> {
    if words.is_empty() {
        return Err(Failure::Usage(format!("{command}: no paths")));
    }
    let paths = words.iter().map(std::path::absolute);
    let paths: io::Result<_> = paths.collect();
    paths.map_err(|error| Failure::Failed(format!("cannot tell where a path is: {error}")))
}

fn hosts_of(command: &str) -> Result<(Job, Vec<String>), Failure> {
    let job = Job::of(command)?;
    let hosts = job.hosts();
    let hosts = hosts.map_err(|error| Failure::Failed(format!("cannot list hosts: {error}")))?;
    Ok((job, hosts))
}

/// Copies paths of one host, and tells of those that fail; returns whether none did.
fn report(host: usize, paths: &[PathBuf], copy: impl Fn(&Path) -> io::Result<()>) -> bool {
    let mut is_whole = true;
    for path in paths {
        if let Err(error) = copy(path) {
            eprintln!("vmfork: [{}] {}: {error}", host + 1, path.display());
            is_whole = false;
        }
    }
    is_whole
}

fn code(copies: Vec<thread::JoinHandle<bool>>) -> ExitCode {
    // All are waited for, whichever fails.
    let outcomes: Vec<_> = copies.into_iter().map(|copy| copy.join()).collect();
    match outcomes
        .iter()
        .all(|outcome| matches!(outcome, Ok(is_whole) if *is_whole))
    {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn put(job: &Job, host: &str, path: &Path) -> io::Result<()> {
    let mut sender = Command::new(crate::PROGRAM)
        .args(["files", "send"])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let above = quoted(path.parent().unwrap_or(Path::new("/")))?;
    let files = format!("{} files", crate::PROGRAM);
    let command = format!("{files} folder {above} && exec {files} receive {above}/. >/dev/null");
    let ended = job.run(host, command, sender.stdout.take(), &mut io::sink());
    // Its output is closed: it ends, whether or not all was taken.
    let is_sent = sender.wait()?.success();
    done(ended?)?;
    match is_sent {
        true => Ok(()),
        false => Err(io::Error::other("it could not be read")),
    }
}

fn fetch(job: &Job, host: &str, path: &Path, home: &Path) -> io::Result<()> {
    fs::create_dir_all(home)?;
    let mut receiver = Command::new(crate::PROGRAM)
        .args(["files", "receive"])
        .arg(fs::canonicalize(home)?)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let command = format!("exec {} files send {}", crate::PROGRAM, quoted(path)?);
    let stdin = receiver.stdin.take();
    let mut stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
    let ended = job.run(host, command, None::<io::Empty>, &mut stdin);
    drop(stdin);
    let is_whole = receiver.wait()?.success();
    done(ended?)?;
    match is_whole {
        true => Ok(()),
        false => Err(io::Error::other("it did not come home whole")),
    }
}

fn done(ended: Ended) -> io::Result<()> {
    match ended {
        Ended::Exited(ExitStatus::Code(0)) => Ok(()),
        Ended::Failed(why) => Err(io::Error::other(why)),
        Ended::Exited(_) | Ended::TimedOut => Err(io::Error::other("not copied")),
    }
}

/// A path as one word of a shell's.
fn quoted(path: &Path) -> io::Result<String> {
    let path = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
    Ok(format!("'{}'", path.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_whatever_is_in_it() {
        for path in ["/a b", "/it's", "/$(x)\"\\\n"] {
            let word = quoted(Path::new(path)).expect("text");
            let shell = Command::new("sh")
                .args(["-c", &format!("printf %s {word}")])
                .output()
                .expect("a shell");
            assert_eq!(shell.stdout, path.as_bytes());
        }
    }
}
