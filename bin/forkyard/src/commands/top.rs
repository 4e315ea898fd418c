//! `top`: what the VMs use of the host, live.
//!
//! ```text
//! daemon --usage--> sample, sample --> rows (tree, rates) --> terminal, text or JSON
//! ```

mod draw;
mod rows;

use crate::{args::Format, output};
use anyhow::Context;
use clap::Args as ClapArgs;
use forkyard_api_client::Client;
use forkyard_types::Usage;
use hyper::Method;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use rows::{Row, rows};
use std::{io::IsTerminal, process::ExitCode, time::Duration};
use tokio::task::spawn_blocking;

/// Between the two samples that one answer takes.
const GLANCE: Duration = Duration::from_millis(500);

/// `top`
#[derive(Debug, ClapArgs)]
pub struct Top {
    /// Seconds between two looks.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Print one table and end; so it does where there is no terminal, and with
    /// -o json.
    #[arg(long)]
    once: bool,
}

/// Shows it.
pub async fn top(client: &Client, format: Format, options: Top) -> anyhow::Result<ExitCode> {
    let once = options.once || format == Format::Json || !std::io::stdout().is_terminal();
    if once {
        let before = sample(client).await?;
        tokio::time::sleep(GLANCE).await;
        let rows = rows(&before, &sample(client).await?);
        match format {
            Format::Json => output::json(&rows)?,
            Format::Text => {
                let cells: Vec<_> = rows.iter().map(Row::cells).collect();
                output::table(rows::HEADS, &cells);
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let outcome = watch(client, &mut terminal, Duration::from_secs(options.interval)).await;
    ratatui::restore();
    outcome?;
    Ok(ExitCode::SUCCESS)
}

async fn watch(
    client: &Client,
    terminal: &mut ratatui::DefaultTerminal,
    interval: Duration,
) -> anyhow::Result<()> {
    let mut before = sample(client).await?;
    let mut shown = Vec::new();
    loop {
        terminal.draw(|frame| draw::table(frame, &shown, before.cpus))?;
        // The first numbers soon; the others when they were asked for.
        let pause = if shown.is_empty() { GLANCE } else { interval };
        if over(pause).await? {
            return Ok(());
        }
        let now = sample(client).await?;
        shown = rows(&before, &now);
        before = now;
    }
}

/// Waits for so long; true if the user wants to leave.
async fn over(pause: Duration) -> anyhow::Result<bool> {
    spawn_blocking(move || {
        let begun = std::time::Instant::now();
        while let Some(left) = pause.checked_sub(begun.elapsed()) {
            if event::poll(left)?
                && let Event::Key(key) = event::read()?
            {
                let interrupt =
                    key.modifiers == KeyModifiers::CONTROL && key.code == KeyCode::Char('c');
                if interrupt || [KeyCode::Char('q'), KeyCode::Esc].contains(&key.code) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    })
    .await?
}

async fn sample(client: &Client) -> anyhow::Result<Usage> {
    Ok(client.call(Method::GET, "/v1/usage").await?)
}
