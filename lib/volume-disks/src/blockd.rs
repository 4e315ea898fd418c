//! The server of volumes: found, or started.
//!
//! It outlives the daemon, as the pager does: VMs write through it. One of another program makes
//! way for ours, and one that died is started again; VMs wait for it meanwhile. Started when the
//! first volume is asked for.

use crate::{SENT_BYTES, VolumeError};
use forkyard_blockd::{
    Answer, BlockdClient, BlockdError, Counts, Hot, Need, Relayed, Request, Status, relay,
};
use forkyard_host::Folders;
use forkyard_sys_host::private;
use forkyard_types::{NbdDisk, PeerSupply, VM_UIDS, VmName, VolumeAt};
use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    net::Shutdown,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::UnixStream,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc::channel},
    time::Duration,
};

/// For how long a copy of a disk is waited for.
const COPIES: Duration = Duration::from_secs(3600);
/// File of the server's key, in its folder beside the volumes.
const KEY: &str = "passes.key";

/// Server of this host's volumes. All calls block.
#[derive(Clone, Debug)]
pub struct Blockd {
    program: PathBuf,
    folder: PathBuf,
    keys: PathBuf,
    control: PathBuf,
    nbd: PathBuf,
    log: PathBuf,
    /// For how long an answer is waited for that takes no copying.
    patience: Duration,
    /// Held while it is started.
    starting: Arc<Mutex<()>>,
}

impl Blockd {
    /// Returns the server of a host, found or not yet started.
    pub fn new(folders: &Folders, patience: Duration) -> Self {
        Self {
            program: folders.bin.join("forkyard-blockd"),
            folder: folders.volumes(),
            keys: folders.volume_keys(),
            control: folders.run.join("blockd.sock"),
            nbd: folders.sockets_of_volumes().join("nbd.sock"),
            log: folders.run.join("blockd.log"),
            patience,
            starting: Arc::default(),
        }
    }

    /// There may be volumes: one was made once.
    pub fn has_any(&self) -> bool {
        self.folder.exists()
    }

    /// Asks for something, of a server that is started if there is none.
    pub fn ask(&self, request: &Request) -> Result<Answer, VolumeError> {
        let mut client = self.connect()?;
        if let Request::Import { .. } | Request::Export { .. } = request {
            client.set_patience(COPIES).map_err(VolumeError::Socket)?;
        }
        Ok(client.ask(request)?)
    }

    /// Writes a snapshot to a socket, by what differs from an earlier one if that is given; of that, what
    /// is hot, if not all. Returns how many blocks were left out.
    pub fn send(
        &self,
        at: &VolumeAt,
        since: Option<String>,
        (hot, host): (Option<Hot>, String),
        mut to: impl Write,
    ) -> Result<u64, VolumeError> {
        let (is_whole, is_hot) = (since.is_none(), hot.is_some());
        let client = self.connect()?;
        client.set_patience(COPIES).map_err(VolumeError::Socket)?;
        let mut from = client.send(&Request::Send {
            name: at.volume.to_string(),
            snapshot: at.snapshot.clone(),
            hot,
            since,
            to: Some(host),
        })?;
        let why = match (is_hot, is_whole) {
            (true, _) => "hot",
            (false, true) => "all",
            (false, false) => "changed",
        };
        let Relayed { bytes, left } = relay(&mut from, &mut to).map_err(VolumeError::Stream)?;
        let volume = at.volume.to_string();
        metrics::counter!(SENT_BYTES, "volume" => volume, "why" => why).increment(bytes);
        Ok(left.0)
    }

    /// Has a snapshot taken from the stream that `write` writes.
    pub fn receive(
        &self,
        volume: &VmName,
        epoch: Option<u32>,
        write: impl FnOnce(&mut UnixStream) -> io::Result<()>,
    ) -> Result<(), VolumeError> {
        let mut client = self.connect()?;
        client.set_patience(COPIES).map_err(VolumeError::Socket)?;
        let name = volume.to_string();
        let mut to = client.receive(&Request::Receive { name, epoch })?;
        // It does not read on where it has found something wrong, and says what.
        let written = write(&mut to).and_then(|()| to.shutdown(Shutdown::Write));
        client.finish()?;
        written.map_err(VolumeError::Socket)
    }

    /// Needs of other hosts; none if there are no volumes.
    pub fn needs(&self) -> Result<Vec<Need>, VolumeError> {
        match self.has_any() {
            true => { self.ask(&Request::Needs {})? }
                .needs()
                .ok_or(VolumeError::Answer),
            false => Ok(Vec::new()),
        }
    }

    /// Has questions for blocks of a snapshot answered over a connection.
    pub fn serve(&self, need: &Need, fill: bool) -> Result<(UnixStream, Vec<u8>), VolumeError> {
        Ok(self.connect()?.line(&Request::Serve {
            name: need.volume.clone(),
            snapshot: need.snapshot.clone(),
            to: Some(need.by.clone()),
            fill,
        })?)
    }

    /// Has the server answer by a stream, both ways.
    pub fn line(&self, request: &Request) -> Result<(UnixStream, Vec<u8>), VolumeError> {
        Ok(self.connect()?.line(request)?)
    }

    /// Has blocks that a volume lacks fetched over a connection.
    pub fn supply(
        &self,
        volume: &VmName,
        PeerSupply { id, snapshot, fill }: PeerSupply,
    ) -> Result<(UnixStream, Vec<u8>), VolumeError> {
        Ok(self.connect()?.line(&Request::Supply {
            name: volume.to_string(),
            id,
            snapshot,
            fill,
        })?)
    }

    /// Tells what is counted of volumes; of none if there is no server.
    pub fn counts(&self) -> Result<Vec<Counts>, VolumeError> {
        match self.reach() {
            Ok(mut client) => client
                .ask(&Request::Counts {})?
                .counts()
                .ok_or(VolumeError::Answer),
            Err(VolumeError::Server(BlockdError::Socket { .. })) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Describes a volume.
    pub fn inspect(&self, volume: &VmName) -> Result<Status, VolumeError> {
        let name = volume.to_string();
        let answer = self.ask(&Request::Inspect { name })?;
        answer.volume().ok_or(VolumeError::Answer)
    }

    /// Names of all volumes; of those that have a name of the API's.
    pub fn names(&self) -> Result<Vec<VmName>, VolumeError> {
        if !self.has_any() {
            return Ok(Vec::new());
        }
        let names = self.ask(&Request::List {})?.volumes();
        let names = names.ok_or(VolumeError::Answer)?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Begins a writer; its epoch.
    pub fn open(&self, volume: &VmName) -> Result<u32, VolumeError> {
        let open = Request::Open {
            name: volume.to_string(),
            takeover: false,
        };
        let export = self.ask(&open)?.export().ok_or(VolumeError::Answer)?;
        let epoch = export.rsplit_once(':').and_then(|it| it.1.parse().ok());
        epoch.ok_or(VolumeError::Answer)
    }

    /// Describes the disk that a QEMU opens to write a volume.
    pub fn writer(&self, volume: &VmName, epoch: u32) -> Result<NbdDisk, VolumeError> {
        self.pass(format!("{volume}:{epoch}"))
    }

    /// Describes the disk that a QEMU opens to read a snapshot, which need not
    /// exist before it is read.
    pub fn reader(&self, at: &VolumeAt) -> Result<NbdDisk, VolumeError> {
        self.pass(at.to_string())
    }

    fn pass(&self, export: String) -> Result<NbdDisk, VolumeError> {
        let pass = self.ask(&Request::Pass { export })?.export();
        Ok(NbdDisk {
            socket: self.nbd.clone(),
            export: pass.ok_or(VolumeError::Answer)?,
        })
    }

    /// Ends it, if it runs: all that was written is durable then. Nothing is left of it where
    /// there are no volumes.
    pub fn end(&self) -> Result<(), VolumeError> {
        if let Ok(client) = self.reach() {
            client.end()?;
        }
        let _ = self.nbd.parent().map(fs::remove_dir);
        // Without volumes there is nothing that a key opens.
        if let Ok(mut left) = fs::read_dir(&self.folder)
            && left.all(|entry| entry.is_ok_and(|it| it.file_name() == KEY))
        {
            let _ = fs::remove_file(self.folder.join(KEY));
            let _ = fs::remove_dir(&self.folder);
            // Not if any key is in it.
            let _ = fs::remove_dir(&self.keys);
        }
        Ok(())
    }

    /// Connects to it; starts it if there is none, or one of another program.
    fn connect(&self) -> Result<BlockdClient, VolumeError> {
        let _one = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        match self.reach() {
            Ok(client) if self.is_ours(&client) => return Ok(client),
            Ok(client) => {
                tracing::info!(program = %self.program.display(), "replacing the server of volumes");
                client.end()?;
            }
            Err(VolumeError::Server(BlockdError::Socket { .. })) => {}
            Err(error) => return Err(error),
        }
        self.start()?;
        self.reach()
    }

    /// Connects to one that listens.
    fn reach(&self) -> Result<BlockdClient, VolumeError> {
        let client = BlockdClient::connect(&self.control)?;
        client
            .set_patience(self.patience)
            .map_err(VolumeError::Socket)?;
        Ok(client)
    }

    fn start(&self) -> Result<(), VolumeError> {
        let failed = |source| VolumeError::Start {
            program: self.program.clone(),
            source,
        };
        // VMs that found it may still have it in their jails: it is made once.
        if let Some(folder) = self.nbd.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
            let passable = fs::Permissions::from_mode(0o711);
            fs::set_permissions(folder, passable).map_err(failed)?;
        }
        let log = private::create(&self.log).map_err(failed)?;
        let mut child = Command::new(&self.program)
            .arg("--socket")
            .arg(&self.control)
            .arg("serve")
            .arg("--folder")
            .arg(&self.folder)
            .arg("--keys")
            .arg(&self.keys)
            .arg("--nbd")
            .arg(&self.nbd)
            .arg("--users")
            .arg(format!("{}-{}", VM_UIDS.start, VM_UIDS.end))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (sender, told) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut line = String::new();
                // End of file, too, is an answer: it has ended.
                let _ = BufReader::new(stdout).read_line(&mut line);
                sender.send(line)
            });
        }
        let line = told.recv_timeout(self.patience).unwrap_or_default();
        if line.trim_end() != "ready" {
            let _ = child.kill();
            let _ = child.wait();
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            let said = said.trim_end().to_owned();
            return Err(VolumeError::DidNotStart { said });
        }
        // Reaped when it ends, which is rarely before this process does.
        std::thread::spawn(move || child.wait());
        Ok(())
    }

    /// False if it is of another program than ours: one from before an upgrade. One of which that
    /// cannot be known is left alone.
    fn is_ours(&self, client: &BlockdClient) -> bool {
        let Ok(pid) = client.pid() else { return true };
        is_of(pid, &self.program)
    }
}

fn is_of(pid: i32, program: &Path) -> bool {
    let running = fs::metadata(format!("/proc/{pid}/exe"));
    match (running, fs::metadata(program)) {
        (Ok(running), Ok(ours)) => (running.dev(), running.ino()) == (ours.dev(), ours.ino()),
        _ => true,
    }
}
