//! Running other programs, cargo above all.

use anyhow::{Context, Result, bail};
use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, PipeReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// A program to run in the workspace's root.
#[derive(Debug)]
pub struct Run(Command);

/// The program at `path`, to be run in `dir`.
pub fn program(path: &Path, dir: &Path) -> Run {
    let mut command = Command::new(path);
    command.current_dir(dir);
    // What cargo tells the program it runs is not meant for another cargo: it
    // would take the crate's variables for changed inputs and build anew.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|n| n.starts_with("CARGO_PKG_")) {
            command.env_remove(name);
        }
    }
    command.env_remove("CARGO_MANIFEST_DIR");
    command.env_remove("CARGO_MANIFEST_PATH");
    Run(command)
}

/// The cargo that runs us.
pub fn cargo(root: &Path) -> Run {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    program(Path::new(&cargo), root)
}

impl Run {
    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item: AsRef<OsStr>>) -> Self {
        self.0.args(args);
        self
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.0.arg(arg);
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// Has it run at the lowest priority.
    pub fn low(self) -> Self {
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(self.0.get_program());
        self.onto(command)
    }

    /// Another of the same.
    pub fn copy(&self) -> Self {
        self.onto(Command::new(self.0.get_program()))
    }

    /// Another of these arguments, variables and folder, by `command`.
    fn onto(&self, mut command: Command) -> Self {
        command.args(self.0.get_args());
        for (name, value) in self.0.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(dir) = self.0.get_current_dir() {
            command.current_dir(dir);
        }
        Self(command)
    }

    /// Runs it to its end, unheard: gives what it prints to standard error and then to
    /// standard output, and whether it failed.
    pub fn heard_afterwards(mut self) -> (String, Result<()>) {
        let output = self.0.stdin(Stdio::null()).output();
        let output = match output.with_context(|| self.name()) {
            Ok(output) => output,
            Err(error) => return (String::new(), Err(error)),
        };
        let said = [output.stderr, output.stdout].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        (said, self.judge(output.status))
    }

    /// Runs it to its end; an exit status other than 0 is an error.
    pub fn done(mut self) -> Result<()> {
        let status = self.0.status().with_context(|| self.name())?;
        self.judge(status)
    }

    /// Runs it, and returns its standard output.
    pub fn printed(mut self) -> Result<String> {
        let output = self
            .0
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| self.name())?;
        self.judge(output.status)?;
        String::from_utf8(output.stdout).with_context(|| self.name())
    }

    /// Runs it to its end, passing on each line of its standard output and showing it to
    /// `see` as well.
    pub fn done_seeing(self, mut see: impl FnMut(&str)) -> Result<()> {
        self.each_line(|line| {
            println!("{line}");
            see(line);
        })
    }

    /// Runs it to its end; `see` has each line of its standard output.
    pub fn each_line(mut self, mut see: impl FnMut(&str)) -> Result<()> {
        let mut child = self
            .0
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| self.name())?;
        let lines = child.stdout.take().map(BufReader::new);
        for line in lines.into_iter().flat_map(|l| l.split(b'\n')) {
            let line = line.with_context(|| self.name())?;
            see(&String::from_utf8_lossy(&line));
        }
        let status = child.wait().with_context(|| self.name())?;
        self.judge(status)
    }

    /// Starts it. What it prints, to either output, comes out of the pipe in the order in
    /// which it was printed.
    pub fn started(mut self) -> Result<(Child, PipeReader)> {
        let (reader, writer) = std::io::pipe().context("a pipe")?;
        let both = writer.try_clone().context("a pipe")?;
        let command = self.0.stdin(Stdio::null()).stdout(both).stderr(writer);
        let child = command.spawn().with_context(|| self.name())?;
        Ok((child, reader))
    }

    fn judge(&self, status: std::process::ExitStatus) -> Result<()> {
        if !status.success() {
            bail!("{}: {status}", self.name());
        }
        Ok(())
    }

    fn name(&self) -> String {
        let mut words = vec![self.0.get_program()];
        words.extend(self.0.get_args());
        let words: Vec<_> = words.iter().map(|w| w.to_string_lossy()).collect();
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Run {
        program(Path::new("sh"), Path::new("/")).args(["-c", script])
    }

    #[test]
    fn lines_are_seen_even_of_a_program_that_fails() {
        let mut seen = Vec::new();
        let run = shell("echo one; echo two; exit 3");
        let error = run.done_seeing(|line| seen.push(line.to_owned()));
        let error = error.expect_err("it exits with 3").to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        assert_eq!(seen, ["one", "two"]);
    }

    #[test]
    fn who_is_heard_afterwards_may_fail() {
        let own = shell("nice").0.output().expect("run").stdout;
        let own: i32 = String::from_utf8_lossy(&own)
            .trim()
            .parse()
            .expect("a number");
        let run = shell("nice; echo said; echo wrong >&2; exit 4").low();
        let (said, outcome) = run.env("A", "B").heard_afterwards();
        let low = (own + 19).min(19);
        assert_eq!(said, format!("wrong\n{low}\nsaid\n"));
        let error = outcome.expect_err("it exits with 4").to_string();
        assert!(error.contains("exit status: 4"), "{error}");
    }

    #[test]
    fn failure_is_an_error_that_names_the_command() {
        shell("exit 0").done().expect("it exits with 0");
        let error = shell("exit 1").done().expect_err("it exits with 1");
        assert!(error.to_string().starts_with("sh -c exit 1"), "{error}");
    }
}
