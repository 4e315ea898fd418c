//! Front-ends of a host's, and a real name server for them.

use crate::{Cluster, Host, Outcome, Running, cluster::API, eventually};
use forkyard_types::TokenGrant;
use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

/// Secret that the name server and front-ends share.
pub const SECRET: &str = "c2l4dGVlbiBieXRlcyBhdCBsZWFzdCwgaW4gYmFzZTY0";
/// Address of a name server.
const DNS: &str = "127.0.0.1";
const DNS_PORT: u16 = 5300;

/// A front-end that runs on a host.
#[derive(Debug)]
pub struct Frontend {
    running: Running,
    _folder: TempDir,
}

impl Frontend {
    /// Writes down the hosts of a cluster, each with a token of its own, for a configuration.
    #[track_caller]
    pub fn hosts(cluster: &Cluster) -> String {
        let entries = (0..cluster.hosts.len()).map(|number| {
            let words = ["token", "create", &format!("front-end-{number}")];
            let grant: TokenGrant = cluster.host(number).json(words);
            let remote = grant.remote.expect("it listens");
            format!(
                "[host.h{number}]\nurl = \"https://{}:{API}\"\ntoken = \"{}\"\ntrust = \"{}\"\n",
                cluster.address(number),
                grant.token.0,
                remote.fingerprint
            )
        });
        entries.collect()
    }

    /// Starts one, and waits until it listens at so many addresses, all of the loopback.
    #[track_caller]
    pub fn start(host: &Host, config: &str, listens: usize) -> Self {
        host.with_loopback();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("frontend.toml");
        let mut file = File::create(&path).expect("a file");
        file.set_permissions(fs::Permissions::from_mode(0o600))
            .expect("its own");
        file.write_all(config.as_bytes()).expect("written");
        let words = ["--config".as_ref(), path.as_os_str()];
        let running = host.start_program("forkyard-frontend", words, "");
        let frontend = Self {
            running,
            _folder: folder,
        };
        eventually("the front-end to listen", || {
            assert!(!frontend.running.is_over(), "{}", frontend.said());
            frontend.said().matches("listening what=").count() == listens
        });
        frontend
    }

    /// Returns the port at which it listens for this.
    #[track_caller]
    pub fn port(&self, what: &str) -> u16 {
        let said = self.said();
        let begin = format!("listening what=\"{what}\" address=127.0.0.1:");
        let line = said.lines().find_map(|line| line.split(&begin).nth(1));
        let port = line.and_then(|port| port.trim().parse().ok());
        port.unwrap_or_else(|| panic!("it listens for no {what}: {said}"))
    }

    /// Returns its log so far.
    pub fn said(&self) -> String {
        self.running.complaints()
    }

    /// True if its metrics have this line.
    pub fn counts(&self, host: &Host, line: &str) -> bool {
        let told = get(host, self.port("metrics"), "/metrics", "x");
        told.lines().any(|it| it == line)
    }

    /// Tells it to take nothing new, and to end.
    pub fn interrupt(&self) {
        self.running.interrupt();
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(self) -> Outcome {
        self.running.wait()
    }
}

/// Asks at a port of the host's by HTTP; the whole answer.
#[track_caller]
pub fn get(host: &Host, port: u16, path: &str, name: &str) -> String {
    let mut stream = host.connect(port).expect("it listens");
    let head = format!("GET {path} HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

/// Knot DNS on a host's loopback, with the zone `test` and a key `forkyard` that may update it.
/// Dropped, it ends.
#[derive(Debug)]
pub struct NameServer {
    server: Child,
    _folder: TempDir,
}

impl NameServer {
    /// Starts it, and waits until it answers.
    #[track_caller]
    pub fn start(host: &Host) -> Self {
        host.with_loopback();
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().display();
        let conf = format!(
            "server:\n  listen: {DNS}@{DNS_PORT}\n  rundir: {at}\n\
             log:\n  - target: stderr\n    any: warning\n\
             database:\n  storage: {at}\n\
             key:\n  - id: forkyard\n    algorithm: hmac-sha256\n    secret: {SECRET}\n\
             acl:\n  - id: update\n    key: forkyard\n    action: update\n\
             zone:\n  - domain: test\n    storage: {at}\n    file: test.zone\n    acl: update\n"
        );
        let zone = "$ORIGIN test.\n$TTL 60\n@ SOA ns hostmaster 1 3600 600 86400 60\n\
                    @ NS ns\nns A 127.0.0.1\n";
        fs::write(folder.path().join("knot.conf"), conf).expect("written");
        fs::write(folder.path().join("test.zone"), zone).expect("written");
        let mut command = Command::new("knotd");
        command.arg("-c").arg(folder.path().join("knot.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let server = host.within(move || command.spawn());
        let server = Self {
            server: server.expect("knotd: scripts/setup installs it"),
            _folder: folder,
        };
        eventually("the name server to answer", || {
            server.asked(host, "ns.test") == "127.0.0.1"
        });
        server
    }

    /// Returns what front-ends are configured with.
    pub fn config(&self) -> String {
        format!(
            "[dns]\nserver = \"{DNS}:{DNS_PORT}\"\nzone = \"test\"\nkey = \"forkyard\"\nsecret = \"{SECRET}\"\n"
        )
    }

    /// Returns the addresses of a name, as a client of others reads them.
    pub fn asked(&self, host: &Host, name: &str) -> String {
        let mut command = Command::new("kdig");
        command.args(["+short", "+timeout=1", "+retry=0", "-p"]);
        command.args([&DNS_PORT.to_string(), &format!("@{DNS}"), name, "A"]);
        let output = host.within(move || command.output()).expect("kdig");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = said.lines().filter(|line| !line.starts_with(";;"));
        lines.collect::<Vec<_>>().join(" ")
    }

    /// Has another program write an address in place of those of a name.
    #[track_caller]
    pub fn write(&self, host: &Host, name: &str, address: &str) {
        let script = format!(
            "server {DNS} {DNS_PORT}\nzone test.\nupdate delete {name}. A\nupdate add {name}. 60 A {address}\nsend\n"
        );
        let mut command = Command::new("knsupdate");
        command
            .arg("-y")
            .arg(format!("hmac-sha256:forkyard:{SECRET}"));
        command.stdin(Stdio::piped());
        let mut child = host.within(move || command.spawn()).expect("knsupdate");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(script.as_bytes()).expect("told");
        drop(stdin);
        assert!(child.wait().expect("a child of ours").success());
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A client of a server that greets by its guest's name and says what it hears.
#[derive(Debug)]
pub struct Caller(TcpStream);

impl Caller {
    /// Connects, and is greeted.
    #[track_caller]
    pub fn connect(host: &Host, port: u16, name: &str) -> Self {
        let mut caller = Self(host.connect(port).expect("it listens"));
        caller.hears(&format!("{name}\n"));
        caller
    }

    /// Connects, and is refused by a reset.
    #[track_caller]
    pub fn refused(host: &Host, port: u16) {
        Self(host.connect(port).expect("it listens")).is_reset();
    }

    /// Reads exactly this.
    #[track_caller]
    pub fn hears(&mut self, wanted: &str) {
        let mut came = vec![0; wanted.len()];
        self.0.read_exact(&mut came).expect("it speaks");
        assert_eq!(String::from_utf8_lossy(&came), wanted);
    }

    /// Says something, and hears it.
    #[track_caller]
    pub fn says(&mut self, words: &str) {
        self.0.write_all(words.as_bytes()).expect("heard");
        self.hears(words);
    }

    /// Reads to the end, which is a reset.
    #[track_caller]
    pub fn is_reset(mut self) {
        let mut came = Vec::new();
        let error = self.0.read_to_end(&mut came).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}
