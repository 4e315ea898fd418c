//! QEMU's monitor, as much of it as the baseline takes.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::{path::Path, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    time::{sleep, timeout},
};

const PATIENCE: Duration = Duration::from_secs(120);

/// A connection to one QEMU.
#[derive(Debug)]
pub struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// Waits for the socket and greets.
    pub async fn connect(socket: &Path) -> Result<Self> {
        let connect = async {
            loop {
                match UnixStream::connect(socket).await {
                    Ok(stream) => return stream,
                    Err(_) => sleep(Duration::from_millis(1)).await,
                }
            }
        };
        let stream = timeout(PATIENCE, connect).await.context("no monitor")?;
        let mut monitor = Self(BufReader::new(stream));
        monitor.line().await?;
        monitor.ask("qmp_capabilities", json!({})).await?;
        Ok(monitor)
    }

    /// One command, and what it returns.
    pub async fn ask(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({"execute": command, "arguments": arguments});
        self.0
            .get_mut()
            .write_all(format!("{request}\n").as_bytes())
            .await?;
        loop {
            let answer = self.line().await.context(command.to_owned())?;
            if let Some(error) = answer.get("error") {
                bail!("{command}: {error}");
            }
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
        }
    }

    /// Asks until the field of the answer has this value.
    pub async fn until(&mut self, command: &str, field: &str, value: &str) -> Result<()> {
        let asking = async {
            loop {
                let answer = self.ask(command, json!({})).await?;
                match answer.get(field).and_then(Value::as_str) {
                    Some(now) if now == value => return Ok(()),
                    Some("failed" | "guest-panicked" | "internal-error") => {
                        bail!("{command}: {answer}")
                    }
                    Some(_) | None => sleep(Duration::from_millis(1)).await,
                }
            }
        };
        timeout(PATIENCE, asking)
            .await
            .with_context(|| format!("{command} never said {value}"))?
    }

    async fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = timeout(PATIENCE, self.0.read_line(&mut line))
            .await
            .context("no answer")??;
        if read == 0 {
            bail!("QEMU closed its monitor");
        }
        Ok(serde_json::from_str(&line)?)
    }
}
