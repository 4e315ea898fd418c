//! Finding the pager, or starting it.
//!
//! The pager outlives the daemon: VMs map its files. So it is started as a
//! process group of its own, found again by its socket, and told to go only
//! when no VM is left. One of another version makes way for ours; VMs do not
//! notice.

use crate::{Folders, Options, PartsError};
use forkyard_pager::{PagerClient, is_mounted};
use forkyard_sys_host::private;
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// Time that a pager whose mount has gone takes to end, at most, and time between two looks.
const ENDING: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// A client of this host's pager, started if there is none. Blocks.
pub fn ensure(folders: &Folders, options: Options) -> Result<PagerClient, PartsError> {
    let socket = folders.pager_socket();
    let program = folders.bin.join("forkyard-pager");
    let mount = folders.pages();
    if let Some(pager) = found(&socket, &mount, &program, options)? {
        return Ok(pager);
    }
    let log = folders.run.join("pager.log");
    let file = private::create(&log).map_err(PartsError::io("write", &log))?;
    let mut child = Command::new(&program)
        .arg("--mount")
        .arg(&mount)
        .arg("--socket")
        .arg(&socket)
        .args((!options.prefetch).then_some("--no-prefetch"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file)
        .process_group(0)
        .spawn()
        .map_err(PartsError::io("run", &program))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        // End of file, too, is an answer: it has ended.
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    if line.trim_end() != "ready" {
        let _ = child.kill();
        let _ = child.wait();
        let said = fs::read_to_string(&log).unwrap_or_default();
        return Err(PartsError::PagerDidNotStart {
            said: said.trim_end().to_owned(),
        });
    }
    // Reaped when it ends, which is rarely before this process does.
    std::thread::spawn(move || child.wait());
    Ok(PagerClient::connect_with(&socket, options.patience)?)
}

/// Finds the pager that runs, of our version. One that is ending, whose mount has gone, is waited for.
fn found(
    socket: &Path,
    mount: &Path,
    program: &Path,
    options: Options,
) -> Result<Option<PagerClient>, PartsError> {
    let begun = Instant::now();
    loop {
        let pager = match PagerClient::connect_with(socket, options.patience) {
            Ok(pager) if pager.ping().is_ok() => pager,
            Ok(_) | Err(_) => return Ok(None),
        };
        let refused = match is_mounted(mount) {
            true if !is_another(&pager, program) => return Ok(Some(pager)),
            true => {
                tracing::info!(program = %program.display(), "replacing the pager");
                match pager.replace(program) {
                    Ok(()) => return Ok(Some(pager)),
                    Err(error) => error.to_string(),
                }
            }
            false => "its mount is gone".to_owned(),
        };
        if begun.elapsed() > ENDING {
            let said = format!(
                "another pager runs and cannot be used: {refused}; `forkyard doctor` says more"
            );
            return Err(PartsError::PagerDidNotStart { said });
        }
        sleep(LOOK);
    }
}

/// Tells whether the running pager is of another program than this daemon's:
/// one from before an upgrade. If that cannot be known it is left alone.
fn is_another(pager: &PagerClient, program: &Path) -> bool {
    let Ok(pid) = pager.pid() else { return false };
    let running = fs::metadata(format!("/proc/{pid}/exe"));
    let (Ok(running), Ok(ours)) = (running, fs::metadata(program)) else {
        return false;
    };
    (running.dev(), running.ino()) != (ours.dev(), ours.ino())
}
