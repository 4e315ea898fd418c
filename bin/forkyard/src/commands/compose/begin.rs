//! Commands of members, and the tests that they are well.

use super::{BEGUN, Is, SAID};
use anyhow::{Context as _, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use forkyard_api_client::{Client, ClientError, of_files};
use forkyard_compose::{ComposeMember, HealthCheck, MemberHealth, TestVerdict};
use forkyard_types::{ErrorKind, ExecEvent, ExecRequest, ExitStatus, FilesWritten, VmView};
use tokio::time::{Instant, sleep};

/// Begins a member's command and waits until it is well.
pub async fn become_well(client: &Client, member: &ComposeMember, is: &Is) -> anyhow::Result<()> {
    let vm = is.vm.id.as_str();
    if is.idle {
        begin(client, vm, member).await?;
    }
    let Some(health) = &member.health else {
        return Ok(());
    };
    let (begun, mut pulse) = (Instant::now(), MemberHealth::default());
    loop {
        let (passed, said) = tested(client, vm, health).await?;
        match pulse.take(health, passed, begun.elapsed()) {
            TestVerdict::Well => return Ok(()),
            TestVerdict::Again(after) => sleep(after).await,
            TestVerdict::Sick => bail!("it is not well: {} {said}", health.test.join(" ")),
        }
    }
}

/// Begins a member's command, and notes in the member that it has.
async fn begin(client: &Client, vm: &str, member: &ComposeMember) -> anyhow::Result<()> {
    if let Some(command) = member.command.clone() {
        let request = ExecRequest {
            detach: true,
            tag: Some("command".to_owned()),
            ..command_of(command)
        };
        let ran = run_in(client, vm, &request).await?;
        if let Ran::NotStarted(why) = ran {
            bail!("its command does not start: {why}");
        }
    }
    let noted = of_files(vm, "files", &[("path", BEGUN), ("parents", "true")]);
    let written = client.upload::<FilesWritten>(&noted, Some(0), &b""[..], |_| {});
    written.await.with_context(|| BEGUN)?;
    Ok(())
}

/// Tells whether a member's command has begun since it booted.
pub async fn has_begun(client: &Client, vm: &VmView) -> anyhow::Result<bool> {
    let noted = of_files(vm.id.as_str(), "files", &[("path", BEGUN)]);
    match client.disk(&noted).await {
        Ok(_) => Ok(true),
        Err(ClientError::Refused(error)) if error.kind == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Tests a member once; what was said if it failed.
async fn tested(client: &Client, vm: &str, health: &HealthCheck) -> anyhow::Result<(bool, String)> {
    let timeout_s = u32::try_from(health.timeout.as_secs()).unwrap_or(u32::MAX);
    let request = ExecRequest {
        timeout_s: Some(timeout_s.max(1)),
        ..command_of(health.test.clone())
    };
    Ok(match run_in(client, vm, &request).await? {
        Ran::Exit(ExitStatus::Code(0), _) => (true, String::new()),
        Ran::Exit(status, said) => (false, format!("ended with {status:?}: {}", said.trim())),
        Ran::NotStarted(why) => (false, format!("does not start: {why}")),
        Ran::Late => (false, format!("took longer than {timeout_s} s")),
        Ran::Started => (false, "was left to itself".to_owned()),
    })
}

/// End of a command.
enum Ran {
    Exit(ExitStatus, String),
    NotStarted(String),
    Late,
    Started,
}

async fn run_in(client: &Client, vm: &str, request: &ExecRequest) -> anyhow::Result<Ran> {
    let mut said = Vec::new();
    let mut events = client.exec(vm, request).await?;
    loop {
        let event = events.next().await?;
        match event.context("the daemon broke off")? {
            ExecEvent::Stdout(data) | ExecEvent::Stderr(data) => {
                said.extend(BASE64_STANDARD.decode(data)?);
                // Its end says why.
                said.drain(..said.len().saturating_sub(SAID));
            }
            ExecEvent::Exit(status) => {
                return Ok(Ran::Exit(status, String::from_utf8_lossy(&said).into()));
            }
            ExecEvent::NotStarted(why) => return Ok(Ran::NotStarted(why.message)),
            ExecEvent::TimedOut(_) => return Ok(Ran::Late),
            ExecEvent::Started(_) if request.detach => return Ok(Ran::Started),
            ExecEvent::Started(_) | ExecEvent::Taken(_) => {}
            ExecEvent::Error(error) => return Err(ClientError::from(error).into()),
        }
    }
}

fn command_of(argv: Vec<String>) -> ExecRequest {
    ExecRequest {
        argv,
        env: Vec::new(),
        workdir: None,
        user: None,
        tty: None,
        stdin: None,
        timeout_s: None,
        detach: false,
        keep: false,
        tag: None,
    }
}
