//! `logs`.

use crate::args::{Format, Logs};
use forkyard_client::Client;
use serde_json::json;
use std::{io::Write, process::ExitCode};

/// Passes on what a guest says on its console.
pub async fn logs(client: &Client, format: Format, wanted: Logs) -> anyhow::Result<ExitCode> {
    let mut said = client.logs(&wanted.vm, wanted.follow).await?;
    let mut out = std::io::stdout();
    while let Some(piece) = said.next().await? {
        let written = match format {
            Format::Text => out.write_all(&piece),
            Format::Json => writeln!(
                out,
                "{}",
                json!({"console": String::from_utf8_lossy(&piece)})
            ),
        };
        if let Err(error) = written.and_then(|()| out.flush()) {
            std::process::exit(crate::output::cannot_write(&error));
        }
    }
    Ok(ExitCode::SUCCESS)
}
