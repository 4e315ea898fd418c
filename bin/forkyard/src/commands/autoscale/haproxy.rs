//! The HAProxy in front: its configuration, its process, and its runtime API.
//!
//! Servers are declared once, a slot each, in maintenance. From then on the runtime API turns them on
//! and off; nothing is reloaded, so no connection is lost. It runs as its own user, never as root, and
//! ends with this program however that ends. It writes to a file what it says, whose end is shown if it fails.

use super::{
    Autoscale,
    stat::{self, BACKEND, PREFIX, Stat},
    way::socket,
};
use anyhow::{Context, bail, ensure};
use forkyard_autoscale::SlotNo;
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, User, chown, geteuid},
};
use std::{
    fs::{self, File},
    path::Path,
    process::Stdio,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

/// User that Debian's package makes for it.
const USER: &str = "haproxy";
/// Time that it may take to begin, and to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Lines of what it said that are shown if it fails.
const TAIL: usize = 4;

/// A running HAProxy and its folder.
#[derive(Debug)]
pub struct Balancer {
    child: Child,
    folder: TempDir,
}

/// Admission of a server to requests.
#[derive(Clone, Copy, Debug)]
pub enum State {
    /// Checked, without requests until a check passes.
    Checked,
    /// Given requests while its checks pass.
    Ready,
    /// Checked, answering what it has been asked, without new requests.
    Drain,
    /// There is none.
    Off,
}

impl Balancer {
    /// Starts it with all servers off.
    pub async fn start(wanted: &Autoscale) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("forkyard-autoscale.")
            .tempdir()
            .context("cannot make a folder")?;
        let path = folder.path();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if geteuid().is_root() {
            let user = User::from_name(USER).ok().flatten();
            let user = user
                .context("there is no user haproxy: install HAProxy (apt-get install haproxy)")?;
            chown(path, Some(user.uid), Some(user.gid)).context("cannot give its folder away")?;
            command.args(["--reuid", USER, "--regid", USER, "--init-groups"]);
            let bind = "-all,+net_bind_service";
            command.args([
                "--inh-caps",
                bind,
                "--ambient-caps",
                bind,
                "--bounding-set",
                bind,
            ]);
            command.arg("--no-new-privs");
        }
        let config = path.join("haproxy.cfg");
        fs::write(&config, text(wanted, path)).context("cannot write HAProxy's configuration")?;
        command.args(["haproxy", "-db", "-f"]).arg(&config);
        for more in &wanted.haproxy_config {
            let more = std::path::absolute(more).context("HAProxy's configuration")?;
            command.arg("-f").arg(more);
        }
        let log = File::create(path.join("log")).context("cannot write HAProxy's log")?;
        let child = command
            // Its user may not enter the folder that this program was started in, root's home say.
            .current_dir(path)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A Ctrl-C is this program's to pass on.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start HAProxy: setpriv cannot be run")?;
        let mut balancer = Self { child, folder };
        balancer.wait_until_it_answers().await?;
        Ok(balancer)
    }

    async fn wait_until_it_answers(&mut self) -> anyhow::Result<()> {
        let answers = async {
            while self.tell("show info").await.is_err() {
                if self.child.try_wait()?.is_some() {
                    return Err(self.failure());
                }
                sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        };
        match timeout(PATIENCE, answers).await {
            Ok(done) => done,
            Err(_) => bail!("HAProxy does not answer on its socket"),
        }
    }

    /// Folder that it reads, which is removed with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns why it has ended, in its own words.
    fn failure(&self) -> anyhow::Error {
        let said = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<_> = said.lines().filter(|it| !it.contains("[NOTICE]")).collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].join("; ");
        match tail.contains("failed to execute") {
            true => anyhow::anyhow!("HAProxy cannot be run: install it (apt-get install haproxy)"),
            false => anyhow::anyhow!("HAProxy has ended: {tail}"),
        }
    }

    /// Returns if it ends, with what it said. Cancel-safe.
    pub async fn ended(&mut self) -> anyhow::Error {
        let _ = self.child.wait().await;
        self.failure()
    }

    /// Turns a server on or off.
    pub async fn set(&self, slot: SlotNo, state: State) -> anyhow::Result<()> {
        let server = format!("{BACKEND}/{PREFIX}{slot}");
        let commands = match state {
            // What it is told to be holds until the next check, which is done at once.
            State::Checked => {
                format!("set server {server} state drain;set server {server} health down")
            }
            State::Ready => format!("set server {server} state ready"),
            State::Drain => format!("set server {server} state drain"),
            State::Off => format!("set server {server} state maint"),
        };
        let said = self.tell(&commands).await?;
        ensure!(said.trim().is_empty(), "HAProxy refused: {}", said.trim());
        Ok(())
    }

    /// Reads its statistics.
    pub async fn stat(&self) -> anyhow::Result<Stat> {
        stat::parse(&self.tell("show stat").await?)
    }

    /// Says something on its socket, and returns the answer.
    async fn tell(&self, command: &str) -> anyhow::Result<String> {
        let talk = async {
            let mut socket = UnixStream::connect(self.folder.path().join("haproxy.sock")).await?;
            socket.write_all(format!("{command}\n").as_bytes()).await?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        let answer = timeout(PATIENCE, talk).await;
        let answer = answer.context("HAProxy does not answer on its socket")?;
        answer.context("HAProxy's socket cannot be used")
    }

    /// Has it take no more connections and end when it has answered all.
    pub async fn stop(&mut self) {
        if let Some(id) = self.child.id().and_then(|id| i32::try_from(id).ok()) {
            let _ = kill(Pid::from_raw(id), Signal::SIGUSR1);
        }
        let _ = self.child.wait().await;
    }
}

/// Text of its configuration file.
fn text(wanted: &Autoscale, folder: &Path) -> String {
    let folder_text = folder.display();
    let (listen, check, most) = (wanted.listen, &wanted.check, wanted.concurrency);
    let servers: String = (0..wanted.max)
        .map(|no| {
            let at = socket(folder, SlotNo(no));
            format!("    server {PREFIX}{no} unix@{} disabled\n", at.display())
        })
        .collect();
    format!(
        "global
    stats socket {folder_text}/haproxy.sock mode 600 level admin
    # One order of what happens: a server that is to get no more requests gets none.
    nbthread 1

defaults
    mode http
    timeout connect 10s
    timeout client 60s
    timeout server 120s
    timeout queue 60s
    timeout check 10s
    timeout http-keep-alive 5s
    timeout tunnel 1h
    option redispatch 1
    retries 5

frontend web
    bind {listen}
    option forwardfor
    # Others may have been carried out by a server that then broke.
    http-request disable-l7-retry unless {{ method GET HEAD OPTIONS PUT DELETE }}
    default_backend {BACKEND}

backend {BACKEND}
    balance leastconn
    retry-on conn-failure empty-response
    # A connection costs a process in the guest: those that are idle are used again.
    http-reuse always
    option httpchk
    http-check send meth GET uri {check} ver HTTP/1.1 hdr host localhost
    http-check expect rstatus ^[23]
    default-server check inter 1s fall 3 rise 1 observe layer4 error-limit 1 on-error mark-down maxconn {most} pool-max-conn {most} pool-purge-delay 2s
{servers}"
    )
}
