//! QEMU's monitor, as much of it as the baseline takes.

use crate::{BenchError, qemu::PATIENCE};
use serde_json::{Value, json};
use std::{io, path::Path, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    time::{sleep, timeout},
};

const POLL: Duration = Duration::from_millis(1);

/// A connection to one QEMU.
#[derive(Debug)]
pub struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// Waits for the socket and greets.
    pub async fn connect(socket: &Path) -> Result<Self, BenchError> {
        let connect = async {
            loop {
                match UnixStream::connect(socket).await {
                    Ok(stream) => return stream,
                    Err(_) => sleep(POLL).await,
                }
            }
        };
        let stream = within(connect, "QEMU's monitor").await?;
        let mut monitor = Self(BufReader::new(stream));
        monitor.line().await?;
        monitor.ask("qmp_capabilities", json!({})).await?;
        Ok(monitor)
    }

    /// One command, and what it returns.
    pub async fn ask(
        &mut self,
        command: &'static str,
        arguments: Value,
    ) -> Result<Value, BenchError> {
        let request = json!({"execute": command, "arguments": arguments});
        let request = format!("{request}\n");
        let sent = self.0.get_mut().write_all(request.as_bytes()).await;
        sent.map_err(BenchError::host("write to QEMU's monitor"))?;
        loop {
            let mut answer = self.line().await?;
            if let Some(error) = answer.get("error") {
                let answer = error.to_string();
                return Err(BenchError::Qemu { command, answer });
            }
            // Whatever else it says is news of events.
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Asks until the field of the answer has this value.
    pub async fn until(
        &mut self,
        command: &'static str,
        field: &str,
        value: &str,
    ) -> Result<(), BenchError> {
        let asking = async {
            loop {
                let answer = self.ask(command, json!({})).await?;
                match answer.get(field).and_then(Value::as_str) {
                    Some(now) if now == value => return Ok(()),
                    Some("failed" | "guest-panicked" | "internal-error") => {
                        let answer = answer.to_string();
                        return Err(BenchError::Qemu { command, answer });
                    }
                    Some(_) | None => sleep(POLL).await,
                }
            }
        };
        within(asking, "QEMU to finish").await?
    }

    async fn line(&mut self) -> Result<Value, BenchError> {
        let failed = BenchError::host("read from QEMU's monitor");
        let mut line = String::new();
        let read = within(self.0.read_line(&mut line), "QEMU's monitor").await?;
        match read {
            Ok(0) => Err(failed(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => serde_json::from_str(&line).map_err(|error| failed(error.into())),
            Err(error) => Err(failed(error)),
        }
    }
}

async fn within<T>(what: impl Future<Output = T>, name: &'static str) -> Result<T, BenchError> {
    timeout(PATIENCE, what)
        .await
        .map_err(|_| BenchError::Silent { what: name })
}
