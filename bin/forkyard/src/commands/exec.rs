//! `exec`: the guest's command as if it ran here.

use crate::{args::Exec, output};
use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use forkyard_client::{Client, ClientError};
use forkyard_types::{ExecEvent, ExecRequest};
use std::{
    io::{Read, Write},
    process::ExitCode,
};

/// Runs the command and exits as it did.
pub async fn exec(client: &Client, command: Exec) -> anyhow::Result<ExitCode> {
    let stdin = match command.interactive {
        true => {
            let mut input = Vec::new();
            std::io::stdin()
                .read_to_end(&mut input)
                .context("cannot read standard input")?;
            Some(BASE64_STANDARD.encode(input))
        }
        false => None,
    };
    let request = ExecRequest {
        argv: command.argv,
        env: command.env,
        stdin,
        timeout_s: command.timeout,
    };
    let mut events = client.exec(&command.vm, &request).await?;
    while let Some(event) = events.next().await? {
        if let Some(code) = show(event)? {
            return Ok(code);
        }
    }
    anyhow::bail!("the daemon closed the connection before the command ended")
}

/// Passes output on; the exit code once the command has ended.
fn show(event: ExecEvent) -> anyhow::Result<Option<ExitCode>> {
    match event {
        ExecEvent::Stdout(data) => write(&mut std::io::stdout(), &data)?,
        ExecEvent::Stderr(data) => write(&mut std::io::stderr(), &data)?,
        ExecEvent::Exit(status) => return Ok(Some(ExitCode::from(status.shell_code()))),
        ExecEvent::Error(error) => return Err(ClientError::from(error).into()),
    }
    Ok(None)
}

fn write(stream: &mut impl Write, data: &str) -> anyhow::Result<()> {
    let data = BASE64_STANDARD
        .decode(data)
        .context("the daemon's answer is not what was expected")?;
    let written = stream.write_all(&data).and_then(|()| stream.flush());
    if let Err(error) = written {
        // The command is hung up on with the connection.
        std::process::exit(output::cannot_write(&error));
    }
    Ok(())
}
