//! A server of the test's own, and a client that speaks as little NBD as it can.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forkyard-blockd");

/// Folder with a server, which is killed when it is dropped.
#[derive(Debug)]
pub struct Place {
    pub folder: tempfile::TempDir,
    server: Option<Child>,
}

impl Place {
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// Starts the server with more arguments.
    pub fn with(more: &[&str]) -> Self {
        let mut place = Self {
            folder: tempfile::tempdir().expect("a folder"),
            server: None,
        };
        place.start(more);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a server and waits until it is ready. The one before it is no longer looked after.
    pub fn start(&mut self, more: &[&str]) -> Option<Child> {
        let mut command = self.program();
        command
            .arg("serve")
            .arg("--folder")
            .arg(self.path("v"))
            .arg("--nbd")
            .arg(self.path("n.sock"))
            .args(more)
            .stdout(Stdio::piped());
        let mut server = command.spawn().expect("starts");
        let mut ready = String::new();
        let out = server.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut ready).expect("reads");
        assert_eq!(ready, "ready\n");
        self.server.replace(server)
    }

    pub fn program(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("--socket").arg(self.path("c.sock"));
        command
    }

    /// Runs a command of the program.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.program().args(arguments).output().expect("runs")
    }

    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        text.trim_end().to_owned()
    }

    /// Runs a command that must fail, and returns what it says.
    pub fn fails(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    pub fn uri(&self, export: &str) -> String {
        let socket = self.path("n.sock");
        format!("nbd+unix:///{export}?socket={}", socket.display())
    }

    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().expect("killed");
            server.wait().expect("ended");
        }
    }

    /// Process of the server.
    pub fn pid(&self) -> u32 {
        self.server.as_ref().map_or(0, Child::id)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a program that must succeed, and returns what it prints.
pub fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e} (`make setup` installs it)"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Client of one export.
#[derive(Debug)]
pub struct Plain(UnixStream);

impl Plain {
    pub fn open(place: &Place, export: &str) -> Option<Self> {
        let mut stream = UnixStream::connect(place.path("n.sock")).ok()?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).ok()?;
        let mut hello = vec![0, 0, 0, 3];
        hello.extend(b"IHAVEOPT\0\0\0\x01");
        hello.extend(u32::try_from(export.len()).ok()?.to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello).ok()?;
        let mut size = [0; 10];
        stream.read_exact(&mut size).ok()?;
        Some(Self(stream))
    }

    /// Sends a request and reads its reply. The number of an error, or `None` once the server
    /// is gone.
    fn request(&mut self, kind: u8, offset: u64, data: &[u8], out: &mut [u8]) -> Option<u32> {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, kind];
        bytes.extend(1u64.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        let length = data.len().max(out.len());
        bytes.extend(u32::try_from(length).ok()?.to_be_bytes());
        bytes.extend(data);
        self.0.write_all(&bytes).ok()?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).ok()?;
        let error = u32::from_be_bytes(reply[4..8].try_into().ok()?);
        if error == 0 {
            self.0.read_exact(out).ok()?;
        }
        Some(error)
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Option<u32> {
        self.request(1, offset, data, &mut [])
    }

    pub fn read(&mut self, offset: u64, out: &mut [u8]) -> Option<u32> {
        self.request(0, offset, &[], out)
    }

    pub fn flush(&mut self) -> Option<u32> {
        self.request(3, 0, &[], &mut [])
    }
}
