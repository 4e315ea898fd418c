//! Commands and files in guests.

use super::{
    arguments::Encoding,
    bounded::Bounded,
    progress::Said,
    words::{Exec, Read, Write},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use forkyard_api_client::{Client, ClientError, UploadError, of_files};
use forkyard_types::{
    ApiError, ErrorKind, ExecEvent, ExecTimedOut, ExitStatus, FilesWritten, NotStarted,
};
use serde::Serialize;
use serde_json::json;

/// Bytes read of a file, unless more are wanted.
const BYTES: u64 = 64 << 10;

/// Reason why nothing came of it.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The daemon refused, or failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The command did not end by itself.
    #[error("{error}{}{}", hinted(error), said_so_far(stdout, stderr))]
    Failed {
        /// Reason.
        error: ApiError,
        /// Standard output until then.
        stdout: String,
        /// Likewise.
        stderr: String,
    },
    /// The daemon went away.
    #[error("the daemon closed the connection before the command ended")]
    Broke,
    /// The command could not be started.
    #[error("{} (exit code {})", .0.message, .0.code)]
    NotStarted(NotStarted),
    /// None of that number, or it is forgotten.
    #[error("{vm} has no command {pid} in the background (`sessions` lists them)")]
    NoSession {
        /// The VM.
        vm: String,
        /// Command that was asked for.
        pid: u32,
    },
    /// The command has ended.
    #[error("command {pid} has ended, and reads nothing any more")]
    Ended {
        /// Process id of the command.
        pid: u32,
    },
    /// The command reads nothing.
    #[error("{left} bytes of the input are not read: the command does not read now")]
    NotRead {
        /// Bytes that wait, or are given up.
        left: usize,
    },
    /// Not base64.
    #[error("not base64")]
    Base64(#[from] base64::DecodeError),
}

impl GuestError {
    /// Advice, beyond what the error says itself.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Client(error) => error.hint(),
            Self::Failed { .. }
            | Self::Broke
            | Self::NotStarted(_)
            | Self::NoSession { .. }
            | Self::Ended { .. }
            | Self::NotRead { .. }
            | Self::Base64(_) => None,
        }
    }
}

/// Result of a command.
#[derive(Debug, Serialize)]
pub struct Ran {
    exit: ExitStatus,
    stdout: String,
    stderr: String,
}

/// Runs a command. Dropped halfway, it is hung up on.
pub async fn exec(client: &Client, words: Exec, said: &Said) -> Result<Ran, GuestError> {
    let vm = words.vm.clone();
    let (mut stdout, mut stderr) = (Bounded::default(), Bounded::default());
    let mut events = client.exec(&vm, &words.bounded_request()).await?;
    loop {
        match events.next().await?.ok_or(GuestError::Broke)? {
            ExecEvent::Stdout(data) => stdout.push(&said.heard(BASE64_STANDARD.decode(data)?)),
            ExecEvent::Stderr(data) => stderr.push(&said.heard(BASE64_STANDARD.decode(data)?)),
            ExecEvent::Exit(exit) => {
                return Ok(Ran {
                    exit,
                    stdout: stdout.into_text(),
                    stderr: stderr.into_text(),
                });
            }
            ExecEvent::NotStarted(why) => return Err(GuestError::NotStarted(why)),
            ExecEvent::TimedOut(ExecTimedOut { after_s }) => {
                let message = format!(
                    "the command took longer than {after_s} s and was killed (exit code 124)"
                );
                return Err(GuestError::Failed {
                    error: ApiError {
                        kind: ErrorKind::Timeout,
                        message,
                        hint: None,
                    },
                    stdout: stdout.into_text(),
                    stderr: stderr.into_text(),
                });
            }
            ExecEvent::Taken(_) | ExecEvent::Started(_) => {}
            ExecEvent::Error(error) => {
                return Err(GuestError::Failed {
                    error,
                    stdout: stdout.into_text(),
                    stderr: stderr.into_text(),
                });
            }
        }
    }
}

fn hinted(error: &ApiError) -> String {
    let hint = error.hint.iter();
    hint.map(|hint| format!("; {hint}")).collect()
}

fn said_so_far(stdout: &str, stderr: &str) -> String {
    let said = |stream: &str, text: &str| match text {
        "" => String::new(),
        _ => format!("\n{stream} until then:\n{text}"),
    };
    said("stdout", stdout) + &said("stderr", stderr)
}

/// Reads a file, or a part of it.
pub async fn read_file(client: &Client, words: Read) -> Result<serde_json::Value, GuestError> {
    let limit = words.limit.map_or(BYTES, |it| it.as_a());
    let offset = words.offset.map_or(0, |it| it.as_a::<u64>()).to_string();
    // One byte more than wanted tells whether that was all.
    let most = (limit + 1).to_string();
    let query = [
        ("path", words.path.as_str()),
        ("offset", &offset),
        ("limit", &most),
    ];
    let mut coming = client.disk(&of_files(&words.vm, "files", &query)).await?;
    let mut content = Vec::new();
    while let Some(piece) = coming.next().await?
        && content.len() as u64 <= limit
    {
        content.extend_from_slice(&piece);
    }
    let more = content.len() as u64 > limit;
    content.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(match text_of(&content, more) {
        Some(text) => json!({ "content": text, "bytes": text.len(), "more": more }),
        None => json!({
            "content": BASE64_STANDARD.encode(&content),
            "encoding": "base64",
            "bytes": content.len(),
            "more": more,
        }),
    })
}

/// The content as text. Where there is more of it a letter may have been cut
/// in two, and is left for the next part.
fn text_of(content: &[u8], more: bool) -> Option<&str> {
    match std::str::from_utf8(content) {
        Ok(text) => Some(text),
        Err(cut) if more && cut.error_len().is_none() && cut.valid_up_to() > 0 => {
            std::str::from_utf8(&content[..cut.valid_up_to()]).ok()
        }
        Err(_) => None,
    }
}

/// Replaces a file as a whole, with the folders above it.
pub async fn write_file(client: &Client, words: Write) -> Result<serde_json::Value, GuestError> {
    let content = match words.encoding {
        Some(Encoding::Base64) => BASE64_STANDARD.decode(&words.content)?,
        Some(Encoding::Text) | None => words.content.into_bytes(),
    };
    let mut query = vec![("path", words.path.as_str()), ("parents", "true")];
    // A file that is there keeps its mode.
    match words.executable {
        Some(true) => query.push(("mode", "755")),
        Some(false) => query.push(("mode", "644")),
        None => {}
    }
    let to = of_files(&words.vm, "files", &query);
    let size = Some(content.len() as u64);
    let sent = client.upload::<FilesWritten>(&to, size, content.as_slice(), |_| {});
    match sent.await {
        Ok(written) => Ok(json!({ "path": words.path, "bytes": written.bytes })),
        Err(UploadError::Client(error)) => Err(error.into()),
        Err(_) => Err(GuestError::Broke),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_cut_in_two_is_left_for_the_next_part_and_no_text_is_no_text() {
        let text = "aé".as_bytes();
        assert_eq!(text_of(text, false), Some("aé"));
        assert_eq!(text_of(&text[..2], true), Some("a"));
        assert_eq!(text_of(&text[..2], false), None);
        assert_eq!(text_of(b"a\xff\xffb", true), None);
    }
}
