//! A host of a test's own.
//!
//! Dropped, it is ended and removed whatever state it is in; if the test is
//! failing, its logs are shown first.

mod knock;
mod processes;
pub(crate) mod woken;

use crate::{
    Outcome, Outside, Place, Running, guest, outside, remains,
    slot::Slot,
    steps::Steps,
    waiting::{SOON, eventually},
};
use forkyard_fake_engine::faults::Faults;
use forkyard_guest_image::{Cache, Recipe};
use forkyard_types::{CloneResult, ForkResponse, VmInspect, VmState, VmView};
use nix::mount::{MsFlags, mount};
use serde::de::DeserializeOwned;
use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};
use tempfile::{NamedTempFile, TempDir};

/// Lines of a log that are shown when a test fails.
const TAIL: usize = 60;

/// A host. It has no VM, and no daemon runs, until the first command.
#[derive(Debug)]
pub struct Host {
    // Dropped in this order: what runs in it, its files, the right to another.
    place: Place,
    folder: TempDir,
    pub(crate) dist: PathBuf,
    pub(crate) cache: PathBuf,
    /// The cache, if it is the host's own.
    pub(crate) own_cache: Option<TempDir>,
    /// Of its daemons, if they are counted.
    pub(crate) steps: Option<Steps>,
    /// Variables of its daemons and commands beside those of its place.
    pub(crate) told: Vec<(&'static str, OsString)>,
    /// Wakes VMs from the kept boot of the cache, of which it keeps files.
    woken: bool,
    _slot: Arc<Slot>,
}

impl Host {
    /// Waits until a host may be had. Panics where there is nothing to test:
    /// without root, or without the programs that `cargo xtask test` builds.
    pub fn new() -> Self {
        Self::on(Arc::new(Slot::wait()))
    }

    /// A host whose machines are made up (`lib/fake-engine`): its daemon is the users', its
    /// pager, network, disks and records are real, and a boot takes milliseconds.
    pub fn fake() -> Self {
        let mut host = Self::on(Arc::new(Slot::wait_fake()));
        host.dist = host.dist.with_file_name("fake");
        host
    }

    /// Such a host with a VM `p`.
    pub fn fake_with_p() -> Self {
        let host = Self::fake();
        host.ok(["run", "tiny", "--name", "p"]);
        host
    }

    /// Has the host keep first boots.
    pub fn keeping_boots(self) -> Self {
        self.telling("FORKYARD_KEEP_BOOTS", "true")
    }

    /// Sets a variable in the environment of the host's daemon and commands.
    pub fn telling(mut self, name: &'static str, value: &str) -> Self {
        self.told.push((name, value.into()));
        self
    }

    /// Faults of the engine of a host whose machines are made up.
    pub fn faults(&self) -> Faults {
        Faults::of(&self.folder.path().join("run"))
    }

    /// One of several that share a slot.
    pub(crate) fn on(slot: Arc<Slot>) -> Self {
        let variable = |name: &str| {
            let value = env::var_os(name).map(PathBuf::from);
            value.unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test`"))
        };
        let (dist, cache) = (variable("FORKYARD_DIST"), variable("FORKYARD_CACHE"));
        let folder = tempfile::Builder::new()
            .prefix(&slot.prefix())
            .tempdir()
            .expect("a folder");
        // QEMUs run as users without rights and must find their files.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).expect("opened up");
        let name = folder
            .path()
            .file_name()
            .and_then(OsStr::to_str)
            .expect("text");
        Self {
            place: Place::new(name),
            folder,
            dist,
            cache,
            own_cache: None,
            steps: None,
            told: Vec::new(),
            woken: false,
            _slot: slot,
        }
    }

    /// A host whose daemons can be killed at any step. None runs yet.
    pub fn with_steps() -> Self {
        Self::new().counted()
    }

    /// Has the host's daemons counted, so that they can be killed at any step.
    pub fn counted(mut self) -> Self {
        self.steps = Some(Steps::new());
        self
    }

    /// The steps of its daemons.
    #[track_caller]
    pub fn steps(&self) -> &Steps {
        self.steps.as_ref().expect("a host made for it")
    }

    /// Starts a host with a VM `p` of the smallest image, and `options` of
    /// `run`.
    pub fn with_p<const N: usize>(options: [&str; N]) -> Self {
        Self::new().running_p(&options)
    }

    fn running_p(self, options: &[&str]) -> Self {
        let host = self;
        let words = ["run", "tiny", "--name", "p"];
        host.start(words.iter().chain(options), "").wait().exited(0);
        // Memory that is known to be memory, and disk that is known to be disk.
        host.sh("p", "mkdir -p /m /d && mount -t tmpfs m /m");
        host
    }

    /// Connects this host with the rest of the world, where alone there is
    /// a server to ask for names. Before any VM is run that is to know.
    pub fn outside(&self) -> Outside {
        let mut resolvers = NamedTempFile::new().expect("a file");
        let line = format!("nameserver {}\n", outside::RESOLVER);
        resolvers.write_all(line.as_bytes()).expect("written");
        self.within(move || {
            let (none, bind) = (None::<&str>, MsFlags::MS_BIND);
            mount(Some(resolvers.path()), "/etc/resolv.conf", none, bind, none).expect("mounted");
            Outside::join()
        })
    }

    /// Does something where this host's processes are, and waits for it.
    pub fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.place.within(work)
    }

    /// Builds an image as the first `run` would, which can take a minute; but
    /// from here, for the host's own network reaches no other host.
    pub fn build_image(&self, name: &str) {
        let path = self.dist.join("share/forkyard/images").join(name);
        let recipe = Recipe::load(&path.with_extension("toml")).expect("a recipe");
        Cache::new(&self.cache)
            .image(&recipe, |_| {})
            .expect("an image");
    }

    /// Starts a command with this on its standard input.
    pub fn start(
        &self,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
        input: impl Into<Vec<u8>>,
    ) -> Running {
        self.start_program("forkyard", words, input)
    }

    /// Starts another of the programs that are installed.
    pub fn start_program(
        &self,
        name: &str,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
        input: impl Into<Vec<u8>>,
    ) -> Running {
        let program = self.dist.join("bin").join(name);
        self.spawn(
            Command::new(program).args(words).envs(self.variables()),
            input.into(),
        )
    }

    /// Starts a command with more variables in its environment.
    pub fn start_with<'a>(
        &self,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Running {
        let program = self.dist.join("bin/forkyard");
        let mut command = Command::new(program);
        command.args(words).envs(self.variables()).envs(variables);
        self.spawn(&mut command, Vec::new())
    }

    /// Starts a command to talk to: its standard input and output are pipes,
    /// and its complaints are the test's.
    pub fn talk_to<const N: usize>(&self, words: [&str; N]) -> Child {
        let mut command = Command::new(self.dist.join("bin/forkyard"));
        command
            .args(words)
            .envs(self.variables())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let child = self.place.within(move || command.spawn());
        child.expect("started")
    }

    /// Has the host reach itself at 127.0.0.1, which otherwise it does not.
    pub fn with_loopback(&self) {
        let mut command = Command::new("ip");
        command.args(["link", "set", "lo", "up"]);
        let status = self.place.within(move || command.status()).expect("ip");
        assert!(status.success(), "{status}");
    }

    /// A connection to a port of the host's at 127.0.0.1.
    pub fn connect(&self, port: u16) -> std::io::Result<TcpStream> {
        self.place
            .within(move || TcpStream::connect(("127.0.0.1", port)))
    }

    /// Returns the body of the daemon's answer to a GET on its socket.
    #[track_caller]
    pub fn get(&self, path: &str) -> String {
        let socket = self.folder.path().join("run/api.sock");
        let mut socket = UnixStream::connect(socket).expect("a daemon");
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("asked");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("answered");
        let (head, body) = answer.split_once("\r\n\r\n").expect("HTTP");
        assert!(head.contains(" 200 "), "{answer}");
        body.to_owned()
    }

    /// Returns the variables that tell a command which host is meant.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let folder = self.folder.path();
        let mut variables = vec![
            ("FORKYARD_STATE_DIR", folder.join("state").into()),
            ("FORKYARD_RUN_DIR", folder.join("run").into()),
            ("FORKYARD_CACHE_DIR", self.cache.clone().into()),
            ("FORKYARD_ACCEL", accelerator()),
            // A VM boots unless a test is about those that are woken.
            ("FORKYARD_KEEP_BOOTS", "false".into()),
        ];
        variables.extend(self.steps.iter().flat_map(Steps::variables));
        variables.extend(self.told.iter().cloned());
        variables
    }

    pub(crate) fn spawn(&self, command: &mut Command, input: Vec<u8>) -> Running {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let words: Vec<_> = command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let mut moved = std::mem::replace(command, Command::new("true"));
        let child = self.place.within(move || moved.spawn()).expect("started");
        Running::of(format!("forkyard {}", words.join(" ")), child, input)
    }

    /// Runs a command that must succeed; what it printed.
    #[track_caller]
    pub fn ok<const N: usize>(&self, words: [&str; N]) -> String {
        self.start(words, "").wait().exited(0).text()
    }

    /// Runs a command that must fail in the usual way; what it complained of.
    #[track_caller]
    pub fn fails<const N: usize>(&self, words: [&str; N]) -> String {
        let outcome = self.start(words, "").wait().exited(1);
        assert!(!outcome.stderr.is_empty(), "{} says nothing", outcome.words);
        outcome.stderr
    }

    /// Runs a command that must succeed, for its answer.
    #[track_caller]
    pub fn json<'a, T: DeserializeOwned>(&self, words: impl AsRef<[&'a str]>) -> T {
        parse(
            &self
                .start(words.as_ref().iter().chain(&["-o", "json"]), "")
                .wait()
                .exited(0),
        )
    }

    /// Runs a shell script in a VM; what it printed. Ends at the first command
    /// that fails, which is a failure.
    #[track_caller]
    pub fn sh(&self, vm: &str, script: &str) -> String {
        self.ok(["exec", vm, "--", "sh", "-e", "-c", script])
    }

    /// Checksums of files in a VM, none of which is empty.
    #[track_caller]
    pub fn sums(&self, vm: &str, files: &str) -> String {
        self.sh(
            vm,
            &format!("for f in {files}; do test -s $f; md5sum $f; done"),
        )
    }

    /// Puts an executable file into a VM.
    #[track_caller]
    pub fn put(&self, vm: &str, path: &str, content: impl Into<Vec<u8>>) {
        let script = format!("cat > {path} && chmod +x {path}");
        self.start(["exec", "-i", vm, "--", "sh", "-c", &script], content)
            .wait()
            .exited(0);
    }

    /// Compiles `guest/NAME.c` and puts it into a VM as `/bin/NAME`.
    #[track_caller]
    pub fn put_program(&self, vm: &str, name: &str, dist: Option<&Path>) {
        let program = guest::compile(name, self.folder.path(), dist);
        let content = fs::read(&program).expect("compiled");
        fs::remove_file(program).expect("removed");
        self.put(vm, &format!("/bin/{name}"), content);
    }

    /// Puts a program into a VM that prints the process id of the agent's
    /// worker.
    #[track_caller]
    pub fn put_agent_worker(&self, vm: &str) {
        let program = "#!/bin/sh\n\
            for p in /proc/[0-9]*; do\n\
            case \"$(tr '\\0' ' ' <$p/cmdline 2>/dev/null)\" in\n\
            '@forkyard-guest worker '*) echo ${p#/proc/};;\n\
            esac\ndone\n";
        self.put(vm, "/bin/agent-worker", program);
    }

    /// Forks a VM; every clone must be made.
    #[track_caller]
    pub fn fork(&self, vm: &str, count: u16) -> Vec<VmView> {
        let count = count.to_string();
        let words = ["fork", vm, "-n", &count, "-o", "json"];
        let answer: ForkResponse = parse(&self.start(words, "").wait().exited(0));
        answer
            .clones
            .into_iter()
            .map(|clone| match clone {
                CloneResult::Vm(vm) => *vm,
                CloneResult::Error(error) => panic!("a clone was not made: {error}"),
            })
            .collect()
    }

    /// Every VM.
    #[track_caller]
    pub fn vms(&self) -> Vec<VmView> {
        self.json(["ps"])
    }

    /// One VM of those that are listed.
    #[track_caller]
    pub fn vm(&self, name: &str) -> VmView {
        let vms = self.vms();
        let found = vms.into_iter().find(|vm| vm.name.as_str() == name);
        found.unwrap_or_else(|| panic!("{name} is not listed"))
    }

    /// Waits until so many clones of a VM are warm.
    #[track_caller]
    pub fn wait_warm(&self, vm: &str, count: u16) {
        eventually("warm shells", || {
            let seen: VmInspect = self.json(["inspect", vm]);
            seen.warm == count
        });
    }

    /// Waits until a VM counts as stopped.
    #[track_caller]
    pub fn wait_stopped(&self, name: &str) {
        eventually("a stop", || self.vm(name).state == VmState::Stopped);
    }

    /// Everything that is left behind.
    pub fn left(&self) -> Vec<String> {
        let mut left = remains::find(&self.place, self.folder.path());
        if self.woken {
            left.retain(|it| !self.is_of_the_kept_boot(it));
        }
        left
    }

    /// Removes every VM; after that there must be nothing.
    #[track_caller]
    pub fn end(self) {
        self.ok(["rm", "--all"]);
        self.nothing_left();
    }

    /// Panics unless everything is gone, or goes soon.
    #[track_caller]
    pub fn nothing_left(&self) {
        self.nothing_left_but(&[]);
    }

    /// Checks that nothing is left but this.
    #[track_caller]
    pub(crate) fn nothing_left_but(&self, stays: &[String]) {
        let left = || {
            let mut left = self.left();
            left.retain(|it| !stays.contains(it));
            left
        };
        let begun = Instant::now();
        while !left().is_empty() && begun.elapsed() < SOON {
            sleep(Duration::from_millis(20));
        }
        let left = left();
        assert!(left.is_empty(), "left behind:\n{}", left.join("\n"));
    }

    /// The folder of everything that is laid out for installation.
    pub fn dist(&self) -> &Path {
        &self.dist
    }

    /// The host's own folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn show_logs(&self) {
        let run = self.folder.path().join("run");
        let of_vms = fs::read_dir(run.join("vms"))
            .into_iter()
            .flatten()
            .flatten()
            .flat_map(|vm| ["qemu.log", "console.log"].map(|name| vm.path().join(name)));
        let logs = [run.join("daemon.log"), run.join("pager.log")];
        for log in logs.into_iter().chain(of_vms) {
            let text = fs::read(&log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<_> = text.lines().collect();
            if !lines.is_empty() {
                let tail = &lines[lines.len().saturating_sub(TAIL)..];
                eprintln!("-- {}\n{}", log.display(), tail.join("\n"));
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

/// The accelerator of guests: emulation, unless the tests are told of another.
fn accelerator() -> OsString {
    env::var_os("FORKYARD_E2E_ACCEL").unwrap_or_else(|| "tcg".into())
}

fn parse<T: DeserializeOwned>(outcome: &Outcome) -> T {
    serde_json::from_slice(&outcome.stdout)
        .unwrap_or_else(|e| panic!("{}: {e}:\n{}", outcome.words, outcome.text()))
}
