//! Commands and files in guests.

use super::{
    bounded::Bounded,
    words::{Encoding, Exec, Read, Write},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use forkyard_client::{Client, ClientError, UploadError, of_files};
use forkyard_types::{ExecEvent, ExecRequest, ExitStatus, FilesWritten};
use serde::Serialize;
use serde_json::json;

/// Seconds a command may take, unless it is given more, and the most it may be.
const SECONDS: u32 = 60;
const MOST_SECONDS: u32 = 600;
/// Bytes read of a file, unless more are wanted, and the most there are at once.
const BYTES: u64 = 64 << 10;
const MOST_BYTES: u64 = 256 << 10;

/// Why nothing came of it.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The daemon refused, or failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Not a name of a VM.
    #[error("{0}")]
    Name(String),
    /// The daemon went away.
    #[error("the daemon closed the connection before the command ended")]
    Broke,
    /// Not base64.
    #[error("not base64")]
    Base64(#[from] base64::DecodeError),
}

/// What a command came to.
#[derive(Debug, Serialize)]
pub struct Ran {
    exit: ExitStatus,
    stdout: String,
    stderr: String,
}

/// Runs a command.
pub async fn exec(client: &Client, words: Exec) -> Result<Ran, GuestError> {
    let request = ExecRequest {
        argv: words.argv,
        env: Vec::new(),
        stdin: words.stdin.map(|text| BASE64_STANDARD.encode(text)),
        timeout_s: Some(words.timeout_s.unwrap_or(SECONDS).min(MOST_SECONDS)),
    };
    let (mut stdout, mut stderr) = (Bounded::default(), Bounded::default());
    let exit = follow(client, &words.vm, &request, |out, err| {
        stdout.push(out);
        stderr.push(err);
    })
    .await?;
    Ok(Ran {
        exit,
        stdout: stdout.into_text(),
        stderr: stderr.into_text(),
    })
}

/// Reads a file, or a part of it.
pub async fn read_file(client: &Client, words: Read) -> Result<serde_json::Value, GuestError> {
    let limit = words.limit.unwrap_or(BYTES).min(MOST_BYTES);
    let offset = words.offset.unwrap_or(0).to_string();
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
        Ok(_) => Ok(json!({ "path": words.path, "bytes": content.len() })),
        Err(UploadError::Client(error)) => Err(error.into()),
        Err(_) => Err(GuestError::Broke),
    }
}

/// Runs a command to its end, and passes on what it writes.
async fn follow(
    client: &Client,
    vm: &str,
    request: &ExecRequest,
    mut heard: impl FnMut(&[u8], &[u8]),
) -> Result<ExitStatus, GuestError> {
    super::path(vm, "").map_err(GuestError::Name)?;
    let mut events = client.exec(vm, request).await?;
    loop {
        match events.next().await?.ok_or(GuestError::Broke)? {
            ExecEvent::Stdout(data) => heard(&BASE64_STANDARD.decode(data)?, &[]),
            ExecEvent::Stderr(data) => heard(&[], &BASE64_STANDARD.decode(data)?),
            ExecEvent::Exit(status) => return Ok(status),
            ExecEvent::Error(error) => return Err(ClientError::from(error).into()),
        }
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
