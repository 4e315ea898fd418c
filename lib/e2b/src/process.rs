//! `process.Process`, as JSON. Fields that have their default may be absent.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Program to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessConfig {
    /// Program.
    pub cmd: String,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Environment.
    pub envs: BTreeMap<String, String>,
    /// Working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Size of a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PtySize {
    /// Characters in a line.
    pub cols: u16,
    /// Lines.
    pub rows: u16,
}

/// A terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pty {
    /// Size of the terminal.
    pub size: PtySize,
}

/// `Start`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StartRequest {
    /// Program to run.
    pub process: ProcessConfig,
    /// On a terminal.
    pub pty: Option<Pty>,
    /// Label.
    pub tag: Option<String>,
    /// With its standard input open; if not said, it is.
    pub stdin: Option<bool>,
}

/// A process, by its number or by its label.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// Process id.
    Pid(u32),
    /// Label of the process.
    Tag(String),
}

/// `Connect`, `CloseStdin`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct OfProcess {
    /// Process.
    pub process: Selector,
}

/// `Update`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct UpdateRequest {
    /// Process.
    pub process: Selector,
    /// The terminal as it is to be.
    #[serde(default)]
    pub pty: Option<Pty>,
}

/// Bytes for a process, base64.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessInput {
    /// For its standard input.
    Stdin(String),
    /// For its terminal.
    Pty(String),
}

impl ProcessInput {
    /// The bytes, still as base64.
    pub fn text(&self) -> &str {
        match self {
            Self::Stdin(text) | Self::Pty(text) => text,
        }
    }
}

/// `SendInput`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SendInputRequest {
    /// Process.
    pub process: Selector,
    /// Input to write.
    pub input: ProcessInput,
}

/// A message of `StreamInput`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamInputRequest {
    /// The first: which process.
    Start(OfProcess),
    /// Bytes for it.
    Data(InputData),
    /// Nothing, so that the connection is not taken for dead.
    Keepalive(serde_json::Value),
}

/// Bytes of `StreamInput`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct InputData {
    /// Input to write.
    pub input: ProcessInput,
}

/// A signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum ProcessSignal {
    /// SIGTERM.
    #[serde(rename = "SIGNAL_SIGTERM")]
    Term,
    /// SIGKILL.
    #[serde(rename = "SIGNAL_SIGKILL")]
    Kill,
}

impl ProcessSignal {
    /// Returns the signal's number.
    pub fn number(self) -> u8 {
        match self {
            Self::Term => 15,
            Self::Kill => 9,
        }
    }
}

/// `SendSignal`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SendSignalRequest {
    /// Process.
    pub process: Selector,
    /// Signal to send.
    pub signal: ProcessSignal,
}

/// A process of `List`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessInfo {
    /// Program that it runs.
    pub config: ProcessConfig,
    /// Process id.
    pub pid: u32,
    /// Label of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Answer to `List`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListResponse {
    /// Those that run.
    pub processes: Vec<ProcessInfo>,
}

/// A message of `Start` and `Connect`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessResponse {
    /// Event of the process.
    pub event: ProcessEvent,
}

/// Event of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessEvent {
    /// The process runs, under this number.
    Start {
        /// The number.
        pid: u32,
    },
    /// The process wrote something.
    Data(Data),
    /// The process ended.
    End(End),
    /// Nothing, so that the connection is not taken for dead.
    Keepalive {},
}

/// Output of a process, base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// To standard output.
    Stdout(String),
    /// To standard error.
    Stderr(String),
    /// To its terminal.
    Pty(String),
}

/// End of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// Exit code; -1 if a signal ended it.
    pub exit_code: i32,
    /// True if it ended by itself.
    pub exited: bool,
    /// In words.
    pub status: String,
    /// Set if a signal ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl End {
    /// By itself.
    pub fn exited(code: u8) -> Self {
        Self {
            exit_code: code.into(),
            exited: true,
            status: format!("exit status {code}"),
            error: (code != 0).then(|| format!("exit status {code}")),
        }
    }

    /// By a signal.
    pub fn signalled(signal: u8) -> Self {
        let name = match signal {
            9 => "killed".to_owned(),
            15 => "terminated".to_owned(),
            other => other.to_string(),
        };
        Self {
            exit_code: -1,
            exited: false,
            status: format!("signal: {name}"),
            error: Some(format!("signal: {name}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_read_as_the_sdk_writes_them() {
        let start: StartRequest = serde_json::from_value(json!({
            "process": {"cmd": "/bin/bash", "args": ["-l", "-c", "id"]}, "stdin": false
        }))
        .expect("start");
        assert_eq!(start.process.args[2], "id");
        assert_eq!(start.stdin, Some(false));
        let pty: StartRequest = serde_json::from_value(json!({
            "process": {"cmd": "sh", "envs": {"A": "1"}}, "pty": {"size": {"cols": 80, "rows": 24}}
        }))
        .expect("pty");
        assert_eq!(pty.pty.map(|pty| pty.size.cols), Some(80));
        let input: SendInputRequest = serde_json::from_value(json!({
            "process": {"pid": 7}, "input": {"stdin": "aGk="}
        }))
        .expect("input");
        assert_eq!(
            (input.process, input.input.text()),
            (Selector::Pid(7), "aGk=")
        );
        let signal: SendSignalRequest = serde_json::from_value(json!({
            "process": {"tag": "web"}, "signal": "SIGNAL_SIGKILL"
        }))
        .expect("signal");
        assert_eq!(
            (signal.process, signal.signal.number()),
            (Selector::Tag("web".into()), 9)
        );
        let first: StreamInputRequest =
            serde_json::from_value(json!({"start": {"process": {"pid": 7}}})).expect("first");
        assert!(matches!(first, StreamInputRequest::Start(_)));
    }

    #[test]
    fn events_are_written_as_the_sdk_reads_them() {
        let of = |event| serde_json::to_value(ProcessResponse { event }).expect("JSON");
        assert_eq!(
            of(ProcessEvent::Start { pid: 3 }),
            json!({"event": {"start": {"pid": 3}}})
        );
        let data = ProcessEvent::Data(Data::Stdout("aGk=".into()));
        assert_eq!(of(data), json!({"event": {"data": {"stdout": "aGk="}}}));
        assert_eq!(
            of(ProcessEvent::Keepalive {}),
            json!({"event": {"keepalive": {}}})
        );
        assert_eq!(
            of(ProcessEvent::End(End::signalled(9))),
            json!({"event": {"end": {"exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed"}}})
        );
    }
}
