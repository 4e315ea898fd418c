//! Finding the pager, or starting it.
//!
//! The pager outlives the daemon: VMs map its files. So it is started as a
//! process group of its own, found again by its socket, and told to go only
//! when no VM is left.

use crate::{Folders, HostError};
use forkyard_pager::PagerClient;
use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

/// A client of this host's pager, started if there is none. Blocks.
pub(crate) fn ensure(folders: &Folders) -> Result<PagerClient, HostError> {
    let socket = folders.pager_socket();
    if let Ok(pager) = PagerClient::connect(&socket)
        && pager.ping().is_ok()
    {
        return Ok(pager);
    }
    let mount = folders.pages();
    let program = folders.bin.join("forkyard-pager");
    let log = folders.run.join("pager.log");
    let file = File::create(&log).map_err(HostError::io("write", &log))?;
    let mut child = Command::new(&program)
        .arg("--mount")
        .arg(&mount)
        .arg("--socket")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file)
        .process_group(0)
        .spawn()
        .map_err(HostError::io("run", &program))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        // End of file, too, is an answer: it has ended.
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    if line.trim_end() != "ready" {
        let _ = child.kill();
        let _ = child.wait();
        let said = fs::read_to_string(&log).unwrap_or_default();
        return Err(HostError::PagerDidNotStart {
            said: said.trim_end().to_owned(),
        });
    }
    // Reaped when it ends, which is rarely before this process does.
    std::thread::spawn(move || child.wait());
    Ok(PagerClient::connect(&socket)?)
}
