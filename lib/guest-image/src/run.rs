//! Running the programs that do the work, and keeping their last words.

use crate::{
    error::BuildError,
    import::Cancel,
    progress::{BuildEvent, Progress},
};
use forkyard_confine::{Building, Confinement, confine, confine_builder};
use forkyard_sys_host::process::{PidFd, spawn_first_and_stay};
use std::{
    collections::VecDeque,
    ffi::OsStr,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};

/// Lines of output an error shows, and bytes of each.
const TAIL: usize = 12;
const LINE: u64 = 4096;
/// Most bytes of output that are kept.
const OUTPUT: u64 = 64 << 20;
/// Time between two looks at whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// A program, and the Debian package it comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    name: &'static str,
    package: &'static str,
}

pub(crate) const APT_CACHE: Program = Program::new("apt-cache", "apt");
pub(crate) const APT_CONFIG: Program = Program::new("apt-config", "apt");
pub(crate) const APT_GET: Program = Program::new("apt-get", "apt");
pub(crate) const BUILDAH: Program = Program::new("buildah", "buildah");
pub(crate) const DEBUGFS: Program = Program::new("debugfs", "e2fsprogs");
pub(crate) const DPKG_DEB: Program = Program::new("dpkg-deb", "dpkg");
pub(crate) const E2FSCK: Program = Program::new("e2fsck", "e2fsprogs");
pub(crate) const MKE2FS: Program = Program::new("mke2fs", "e2fsprogs");
pub(crate) const MMDEBSTRAP: Program = Program::new("mmdebstrap", "mmdebstrap");
pub(crate) const QEMU_IMG: Program = Program::new("qemu-img", "qemu-utils");
pub(crate) const SKOPEO: Program = Program::new("skopeo", "skopeo");
pub(crate) const TAR: Program = Program::new("tar", "tar");
pub(crate) const XZ: Program = Program::new("xz", "xz-utils");

impl Program {
    pub(crate) const fn new(name: &'static str, package: &'static str) -> Self {
        Self { name, package }
    }

    /// A call of it, without arguments as yet.
    pub(crate) fn call(self) -> Call<'static> {
        Call::of(self, OsStr::new(self.name))
    }

    /// A call of it, as root, with mounts and processes of its own: whatever it
    /// mounts, the host never sees, and nothing of it outlives it, even if it
    /// is killed before it can clean up.
    pub(crate) fn call_apart(self) -> Call<'static> {
        let mut call = Call::of(self, OsStr::new("unshare"));
        call.apart = true;
        call.args(["--mount", "--mount-proc", "--pid", "--fork", "--kill-child"])
            .arg(self.name)
    }

    /// A call of it that says all on standard error, in the order in which it says it.
    pub(crate) fn call_in_one_stream(self) -> Call<'static> {
        let mut call = Call::of(self, OsStr::new("sh"));
        call.apart = true;
        call.args(["-c", r#"exec "$0" "$@" >&2"#, self.name])
    }

    /// A call of the copy of it at `path`.
    pub(crate) fn call_at(self, path: &Path) -> Call<'static> {
        Call::of(self, path.as_os_str())
    }
}

/// One call of a program.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    program: Program,
    command: Command,
    lock: Option<&'a File>,
    cancel: Option<&'a Cancel>,
    apart: bool,
    confined: bool,
    tail: usize,
}

/// Status of a program that has ended, its output, and its last lines.
type Done = (ExitStatus, io::Result<Vec<u8>>, VecDeque<String>);

/// Exit status of `unshare`, and of a shell, when there is no program to run.
const NOTHING_TO_RUN: i32 = 127;

impl<'a> Call<'a> {
    fn of(program: Program, path: &OsStr) -> Self {
        let mut command = Command::new(path);
        // What they say is parsed here and shown to people: in one language.
        command.env("LC_ALL", "C.UTF-8");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        Self {
            program,
            command,
            lock: None,
            cancel: None,
            apart: false,
            confined: false,
            tail: TAIL,
        }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args(mut self, args: impl IntoIterator<Item: AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// Gives it another variable.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn current_dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Has it run confined, as a user that parses what others have made. Takes root.
    pub(crate) fn confined(mut self, to: Confinement<'_>) -> Result<Self, BuildError> {
        confine(&mut self.command, to).map_err(|source| BuildError::Spawn {
            program: self.program.name,
            source,
        })?;
        self.confined = true;
        Ok(self)
    }

    /// Has it run as a builder of container images does. Takes root.
    pub(crate) fn contained(mut self, to: Building<'_>) -> Result<Self, BuildError> {
        confine_builder(&mut self.command, to).map_err(|source| BuildError::Spawn {
            program: self.program.name,
            source,
        })?;
        self.confined = true;
        Ok(self)
    }

    /// Has an error show this many lines of its output.
    pub(crate) fn keeping(self, tail: usize) -> Self {
        Self { tail, ..self }
    }

    /// Lets the program and its children hold this lock too, as their standard
    /// input: should we be killed, they go on for a while, and no other process may
    /// work in the same directory until they are gone.
    pub(crate) fn holding(self, lock: &'a File) -> Self {
        Self {
            lock: Some(lock),
            ..self
        }
    }

    /// Has it ended as soon as it is no longer wanted.
    pub(crate) fn until(self, cancel: &'a Cancel) -> Self {
        Self {
            cancel: Some(cancel),
            ..self
        }
    }

    /// Runs it to its end; returns what it wrote to standard output. Lines on
    /// standard error are reported as they come.
    pub(crate) fn run(mut self, progress: Progress<'_>) -> Result<Vec<u8>, BuildError> {
        let name = self.program.name;
        let failed = |source| BuildError::Spawn {
            program: name,
            source,
        };
        let stdin = match self.lock {
            Some(lock) => lock.try_clone().map_err(failed)?.into(),
            None => Stdio::null(),
        };
        self.command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let missing = BuildError::MissingProgram {
            program: name,
            package: self.program.package,
        };
        let (cancel, tail) = (self.cancel, self.tail);
        let done = match self.confined {
            true => spawn_first_and_stay(&mut self.command, |child| {
                see(child, (cancel, tail), progress)
            }),
            false => self
                .command
                .spawn()
                .map(|child| see(child, (cancel, tail), progress)),
        };
        let (status, output, tail) = match done {
            Ok(done) => done.map_err(failed)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(missing),
            Err(e) => return Err(failed(e)),
        };
        let output = output.map_err(failed)?;
        if status.success() {
            return Ok(output);
        }
        if self.apart && status.code() == Some(NOTHING_TO_RUN) {
            return Err(missing);
        }
        Err(BuildError::Program {
            program: name,
            status,
            tail: Vec::from(tail).join("\n"),
        })
    }
}

/// Sees a program to its end.
fn see(
    mut child: Child,
    (cancel, lines): (Option<&Cancel>, usize),
    progress: Progress<'_>,
) -> io::Result<Done> {
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let process = match cancel {
        Some(cancel) => Some((PidFd::open(child.id())?, cancel)),
        None => None,
    };
    let (ended, until_ended) = mpsc::channel::<()>();
    let (output, tail, status) = std::thread::scope(|scope| {
        let output = scope.spawn(move || {
            let mut bytes = Vec::new();
            stdout.map_or(Ok(0), |o| o.take(OUTPUT).read_to_end(&mut bytes))?;
            Ok::<_, io::Error>(bytes)
        });
        if let Some((process, cancel)) = process {
            scope.spawn(move || {
                while until_ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    if cancel.is_set() {
                        // One that has ended by itself is as good.
                        let _ = process.kill();
                        return;
                    }
                }
            });
        }
        let tail = stderr.map_or_else(VecDeque::new, |e| report(e, lines, progress));
        let output = output.join();
        let status = child.wait();
        drop(ended);
        (output, tail, status)
    });
    let output =
        output.unwrap_or_else(|_| Err(io::Error::other("the reader of its output panicked")));
    Ok((status?, output, tail))
}

/// Passes lines on until end of file; keeps the last ones. A stream that
/// breaks ends early: the program's exit status is what counts.
fn report(stderr: impl Read, lines: usize, progress: Progress<'_>) -> VecDeque<String> {
    let mut tail = VecDeque::new();
    let mut from = BufReader::new(stderr);
    loop {
        let mut line = Vec::new();
        match from.by_ref().take(LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return tail,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line);
        // A progress bar redraws its line: only what it ended as is of interest.
        let line = line.trim_end().rsplit('\r').next().unwrap_or_default();
        if line.is_empty() {
            continue;
        }
        progress(BuildEvent::Output(line));
        if tail.len() == lines {
            tail.pop_front();
        }
        tail.push_back(line.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_confine::{Lifespan, NOBODY, Network, Who};
    use std::os::unix::fs::MetadataExt;

    const SH: Program = Program::new("sh", "dash");

    #[test]
    fn missing_program_names_its_package() {
        let program = Program::new("no-such-program", "some-package");
        for call in [program.call(), program.call_apart()] {
            let error = call.run(&mut |_| {}).expect_err("there is no such program");
            assert!(
                matches!(
                    error,
                    BuildError::MissingProgram {
                        program: "no-such-program",
                        package: "some-package"
                    }
                ),
                "{error:?}"
            );
        }
    }

    #[test]
    fn mounts_of_a_program_run_apart_stay_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let script =
            "mount -t tmpfs none \"$0\" && touch \"$0/file\" && grep -c \"$0\" /proc/mounts";
        let call = SH.call_apart().args(["-c", script]).arg(dir.path());
        assert_eq!(call.run(&mut |_| {}).expect("runs"), b"1\n");
        assert!(!dir.path().join("file").exists());
    }

    #[test]
    fn a_program_that_is_confined_has_its_files_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let [reads, writes] = ["reads", "writes"].map(|name| dir.path().join(name));
        std::fs::write(&reads, "given\n").expect("written");
        std::fs::write(dir.path().join("beside"), "").expect("written");
        let kept = "read word <$0; echo $word; \
            [ -e /etc/passwd ] || echo homeless; \
            [ -e ${0%reads}beside ] || echo alone; \
            echo $$";
        let spoils = "echo x >$0";
        let forks = "(echo child)";
        let fills = "while echo 0123456789; do :; done >$1";
        for who in [Who::Nobody, Who::Reader] {
            std::fs::write(&writes, "").expect("written");
            let owner = (who == Who::Nobody).then_some(NOBODY);
            for path in [&reads, &writes] {
                std::os::unix::fs::chown(path, owner.or(Some(0)), None).expect("root");
            }
            let run = |script: &str| {
                let call = SH.call().args(["-c", script]).args([&reads, &writes]);
                let to = Confinement {
                    who,
                    reads: &[&reads],
                    writes: &[&writes],
                    largest: 4096,
                    network: Network::None,
                    ends: Lifespan::WithStarter,
                };
                call.confined(to).expect("root").run(&mut |_| {})
            };
            assert_eq!(run(kept).expect("runs"), b"given\nhomeless\nalone\n1\n");
            run(fills).expect("it notices nothing but that writes fail");
            for refused in [spoils, forks] {
                run(refused).expect_err(refused);
            }
            assert_eq!(std::fs::metadata(&writes).expect("there").len(), 4096);
            assert_eq!(std::fs::read(&reads).expect("there"), b"given\n");
        }
    }

    #[test]
    fn a_program_that_unpacks_makes_files_of_any_user_in_its_tree_and_reaches_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).expect("made");
        std::fs::write(dir.path().join("beside"), "").expect("written");
        let run = |script: &str| {
            let call = SH.call().args(["-c", script]).arg(&tree);
            let to = Confinement {
                who: Who::Unpacker,
                reads: &[],
                writes: &[&tree],
                largest: 4096,
                network: Network::None,
                ends: Lifespan::WithStarter,
            };
            call.confined(to).expect("root").run(&mut |_| {})
        };
        let alone = "echo x >$0/file && [ ! -e /etc/passwd ] && [ ! -e $0/../beside ]";
        run(alone).expect("it is alone");
        run("exec chown 1234:5 $0/file").expect("of any user");
        run("exec chmod 4755 $0/file").expect("whichever owns it");
        let facts = std::fs::metadata(tree.join("file")).expect("there");
        assert_eq!(
            (facts.uid(), facts.gid(), facts.mode() & 0o7777),
            (1234, 5, 0o4755)
        );
        for refused in [
            "exec mknod $0/null c 1 3",
            "exec mount -t tmpfs none $0",
            "exec chroot $0 /bin/true",
        ] {
            run(refused).expect_err(refused);
        }
        assert!(!tree.join("null").exists());
    }

    #[test]
    fn a_program_that_is_no_longer_wanted_ends_and_so_do_its_children() {
        let dir = tempfile::tempdir().expect("a directory");
        let cancel = Cancel::default();
        let begun = std::time::Instant::now();
        let error = SH
            .call_apart()
            .args(["-c", "sleep 600 & echo begun >&2; wait"])
            .current_dir(dir.path())
            .until(&cancel)
            .run(&mut |_| cancel.set())
            .expect_err("killed");
        assert!(matches!(error, BuildError::Program { .. }), "{error:?}");
        // Its children held its output open otherwise.
        assert!(begun.elapsed() < Duration::from_secs(300));
    }

    #[test]
    fn failure_keeps_the_last_lines_and_the_status() {
        let error = SH
            .call()
            .args(["-c", "seq 1 100 >&2; exit 7"])
            .run(&mut |_| {})
            .expect_err("it exits with 7");
        let BuildError::Program { status, tail, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(status.code(), Some(7));
        assert!(
            tail.starts_with("89\n") && tail.ends_with("\n100"),
            "{tail}"
        );
    }

    #[test]
    fn output_is_returned_and_errors_are_reported() {
        let mut said = Vec::new();
        let output = SH
            .call()
            .args(["-c", "echo out; echo one >&2; echo two >&2"])
            .run(&mut |e| {
                if let BuildEvent::Output(line) = e {
                    said.push(line.to_owned());
                }
            })
            .expect("runs");
        assert_eq!(output, b"out\n");
        assert_eq!(said, ["one", "two"]);
    }

    #[test]
    fn much_output_on_both_streams_does_not_block() {
        let output = SH
            .call()
            .args(["-c", "seq 1 50000 >&2; seq 1 50000; seq 1 50000 >&2"])
            .run(&mut |_| {})
            .expect("runs");
        assert!(output.ends_with(b"\n50000\n"));
    }
}
