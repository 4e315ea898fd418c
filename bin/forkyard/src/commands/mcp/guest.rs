//! Commands and files in guests. Files go through commands: every guest has a
//! shell, `cat`, `head` and `tail`.

use super::{
    bounded::Bounded,
    words::{Encoding, Exec, Read, Write},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use forkyard_client::{Client, ClientError};
use forkyard_types::{ExecEvent, ExecRequest, ExitStatus};
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
    /// The guest could not.
    #[error("the guest cannot {what} {path}: {said}")]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: String,
        /// What its shell said.
        said: String,
    },
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
    let first = words.offset.unwrap_or(0).saturating_add(1);
    // One byte more than wanted tells whether that was all.
    let script = "exec <\"$1\" && tail -c +\"$2\" | head -c \"$3\"";
    let arguments = [first.to_string(), (limit + 1).to_string()];
    let request = shell(script, &words.path, &arguments, None);
    let (mut content, mut said) = (Vec::new(), Bounded::default());
    let exit = follow(client, &words.vm, &request, |out, err| {
        content.extend_from_slice(out);
        said.push(err);
    })
    .await?;
    judge(exit, said, "read", &words.path)?;
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

/// Writes a file: beside it, then in its place.
pub async fn write_file(client: &Client, words: Write) -> Result<serde_json::Value, GuestError> {
    let content = match words.encoding {
        Some(Encoding::Base64) => BASE64_STANDARD.decode(&words.content)?,
        Some(Encoding::Text) | None => words.content.into_bytes(),
    };
    let mode = match words.executable {
        Some(true) => "755",
        Some(false) | None => "644",
    };
    let script = "mkdir -p \"$(dirname \"$1\")\" && cat >\"$1.new\" && chmod \"$2\" \"$1.new\" && mv \"$1.new\" \"$1\"";
    let request = shell(script, &words.path, &[mode.to_owned()], Some(&content));
    let mut said = Bounded::default();
    let exit = follow(client, &words.vm, &request, |_, err| said.push(err)).await?;
    judge(exit, said, "write", &words.path)?;
    Ok(json!({ "path": words.path, "bytes": content.len() }))
}

fn shell(script: &str, path: &str, more: &[String], stdin: Option<&[u8]>) -> ExecRequest {
    // A path that begins with a hyphen is a path all the same.
    let path = match path.starts_with('-') {
        true => format!("./{path}"),
        false => path.to_owned(),
    };
    let mut argv: Vec<_> = ["sh", "-c", script, "sh"].map(str::to_owned).into();
    argv.push(path);
    argv.extend_from_slice(more);
    ExecRequest {
        argv,
        env: Vec::new(),
        stdin: stdin.map(|content| BASE64_STANDARD.encode(content)),
        timeout_s: Some(SECONDS),
    }
}

fn judge(
    exit: ExitStatus,
    said: Bounded,
    what: &'static str,
    path: &str,
) -> Result<(), GuestError> {
    if exit == ExitStatus::Code(0) {
        return Ok(());
    }
    Err(GuestError::File {
        what,
        path: path.to_owned(),
        said: said.into_text().trim().to_owned(),
    })
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
