//! Starting the daemon when none runs, and seeing it go.

use crate::NoDaemon;
use anyhow::Context;
use forkyard_api_client::{Client, ClientError, Place, TokenSecret, Trust, check_run_dir};
use std::{
    ffi::OsString,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Time a daemon may take to answer; adopting many VMs takes a while.
const START: Duration = Duration::from_secs(60);
/// Time it may take to stop, and to begin to.
const STOP: Duration = Duration::from_secs(20);
const STAYS: Duration = Duration::from_secs(1);
/// Lines of its log that are shown if it does not start.
const LINES: usize = 12;
const POLL: Duration = Duration::from_millis(10);

/// A client of a daemon that answers, started here if there was none. A
/// daemon started here ends by itself when it has no VM and no request.
pub async fn ensure(run_dir: &Path) -> anyhow::Result<Client> {
    ensure_with(run_dir, &[]).await
}

/// Ensures that a daemon runs, with more in its environment if it is started
/// here.
pub async fn ensure_with(run_dir: &Path, variables: &[(&str, OsString)]) -> anyhow::Result<Client> {
    // Before anything is made.
    check_run_dir(run_dir)?;
    forkyard_sys_host::private::check_owner(run_dir)?;
    let client = Client::new(run_dir);
    match client.ping(START).await {
        Ok(()) => return Ok(client),
        // Another one could not be started beside it.
        Err(error @ ClientError::Hangs { .. }) => return Err(error.into()),
        Err(error) if error.is_forbidden() => return Err(error.into()),
        Err(_) => {}
    }
    let log = run_dir.join("daemon.log");
    let mut child = start(run_dir, &log, variables)?;
    let begun = Instant::now();
    while !client.answers().await {
        let ended = child.try_wait().context("cannot watch the daemon")?;
        // Another command may have started one at the same time: the one of
        // the two that lost the race ends, and the winner answers soon.
        if ended.is_some_and(|status| !status.success()) || begun.elapsed() > START {
            if client.answers().await {
                break;
            }
            return Err(NoDaemon(format!(
                "the daemon did not start:\n{}",
                told(&log, ended.is_some())
            ))
            .into());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(client)
}

/// Finds the daemon that runs, and starts none: one started here would be no node, and stand in the
/// way of the node's own.
pub async fn running(run_dir: &Path) -> anyhow::Result<Client> {
    check_run_dir(run_dir)?;
    let client = Client::new(run_dir);
    match client.ping(START).await {
        Err(error @ ClientError::NoDaemon { .. }) if !error.is_forbidden() => {
            Err(NoDaemon(
                "no daemon runs on this host: start the node's own (systemctl start forkyardd, or forkyardd --cluster … or --join …); its log says why if it has ended"
                    .to_owned(),
            )
            .into())
        }
        answer => Ok(answer.map(|()| client)?),
    }
}

/// A client of a daemon that another program has started.
pub fn elsewhere(place: Place, trust: Option<Trust>) -> anyhow::Result<Client> {
    // Not a word of the command line: others can see those.
    let token = std::env::var("FORKYARD_TOKEN").ok().map(TokenSecret);
    Ok(Client::at(place, token, &trust.unwrap_or(Trust::System))?)
}

fn start(run_dir: &Path, log: &Path, variables: &[(&str, OsString)]) -> anyhow::Result<Child> {
    let program = std::env::current_exe()
        .context("cannot find the programs")?
        .with_file_name("forkyardd");
    forkyard_sys_host::private::create_folder(run_dir)
        .with_context(|| format!("cannot create {} (are you root?)", run_dir.display()))?;
    let log = forkyard_sys_host::private::create(log)
        .with_context(|| format!("cannot write {} (are you root?)", log.display()))?;
    Command::new(&program)
        .args(["--detach", "--exit-when-idle", "--run-dir"])
        .arg(run_dir)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))
}

/// Waits until a daemon that goes with its last VM has gone, and all that it
/// has with it: until its folder's lock is free. One that was started to stay
/// still takes connections after a while, and is not waited for.
pub async fn gone(client: &Client, run_dir: &Path) {
    if client.place() != Client::new(run_dir).place() {
        return;
    }
    let begun = Instant::now();
    let Ok(lock) = fs::File::open(run_dir.join("lock")) else {
        return;
    };
    while lock.try_lock_shared().is_err() && begun.elapsed() < STOP {
        if begun.elapsed() > STAYS && client.answers().await {
            return;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The last that a daemon said. One that has ended leaves no log, unless there is more in it.
fn told(log: &Path, ended: bool) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    if ended && lines.len() <= LINES {
        let _ = fs::remove_file(log);
    }
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
