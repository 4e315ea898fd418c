//! Programs outside of guests, written against a host as a user's are.

use crate::{Host, Running};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

impl Host {
    /// Has a VM run a command that it cannot be told of; what is said of it.
    #[track_caller]
    pub fn exec_refused(&self, vm: &str) -> String {
        self.start(["exec", vm, "--", "true"], "")
            .wait()
            .exited(125)
            .stderr
    }

    /// Runs a Python program against this host, with the SDK of this tree; what
    /// it printed. It must succeed.
    #[track_caller]
    pub fn python(&self, program: &str) -> String {
        self.program(Command::new("python3").arg("-"), program)
    }

    /// Runs one of the examples of this tree; what it printed. It must succeed.
    #[track_caller]
    pub fn example<const N: usize>(&self, name: &str, words: [&str; N], input: &str) -> String {
        let program = tree().join("examples").join(name);
        self.program(Command::new(program).args(words), input)
    }

    /// Starts a command with a terminal for what it complains of, which is printed; what it
    /// prints goes to a file.
    pub fn on_terminal(&self, words: &str, out: &Path) -> Running {
        let program = self.dist.join("bin/forkyard");
        let line = format!("{} {words} >{}", program.display(), out.display());
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]);
        script.envs(self.variables()).env("TERM", "xterm");
        self.spawn(&mut script, Vec::new())
    }

    /// Runs a program with this on its standard input; what it printed. It must succeed.
    #[track_caller]
    pub fn program(&self, program: &mut Command, input: &str) -> String {
        let mut path = self.dist.join("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        program
            .envs(self.variables())
            .env("PATH", path)
            .env("PYTHONPATH", tree().join("sdk/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        self.spawn(program, input.into()).wait().exited(0).text()
    }
}

/// The tree of sources.
pub(crate) fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
