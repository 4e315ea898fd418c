//! Commands in the background: sessions that the guest's agent keeps, by their process ids.
//!
//! Nothing is kept here. Output is counted from the command's beginning, so that a caller reads on
//! where it left off, whatever became of this server meanwhile.

use super::{
    guest::GuestError,
    progress::cut_letter,
    words::{Exec, SessionEnd, SessionRead, SessionWrite},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use forkyard_api_client::{Client, ClientError, Events, of_vm};
use forkyard_types::{Attach, ExecEvent, ExecInput, ExecRequest, ExitStatus, KeptCommand};
use hyper::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

/// Bytes of output in one answer.
const MOST: usize = 64 << 10;
/// Bytes of input in one piece.
const PIECE: usize = 32 << 10;
/// Time in which a command has to take its input.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which all is there that was kept when it was asked for.
const KEPT: Duration = Duration::from_secs(30);
/// Most attempts to attach to a command before it has lost more output.
const TRIES: u32 = 3;

/// Starts a command in the background; its process id.
pub async fn start(client: &Client, words: Exec) -> Result<u32, GuestError> {
    let (vm, stdin) = (words.vm.clone(), words.stdin.clone());
    let request = ExecRequest {
        keep: true,
        ..words.request()
    };
    // By lines: without them the command's input would end with what the request has.
    let (input, coming) = mpsc::channel(1);
    let mut events = client.exec_with(&vm, &request, coming).await?;
    let pid = loop {
        match events.next().await?.ok_or(GuestError::Broke)? {
            ExecEvent::Started(started) => break started.pid,
            event @ (ExecEvent::Stdout(_)
            | ExecEvent::Stderr(_)
            | ExecEvent::Exit(_)
            | ExecEvent::Error(_)
            | ExecEvent::Taken(_)
            | ExecEvent::NotStarted(_)
            | ExecEvent::TimedOut(_)) => ended_early(event)?,
        }
    };
    drop((events, input));
    if let Some(text) = stdin {
        write(client, &vm, pid, &text, AtEnd::Open).await?;
    }
    Ok(pid)
}

/// Ends a command that was started for a call that is given up.
pub async fn undo(client: &Client, vm: &str, pid: u32) -> Result<(), ClientError> {
    let path = of_vm(vm, &format!("sessions/{pid}"));
    client.call(Method::DELETE, &path).await
}

/// Commands that a VM keeps.
pub async fn list(client: &Client, vm: &str) -> Result<Vec<KeptCommand>, GuestError> {
    Ok(client.call(Method::GET, &of_vm(vm, "sessions")).await?)
}

/// Output of a command on its way into an answer.
#[derive(Debug, Default)]
struct Output {
    /// Bytes to pass over: the caller has them.
    skip: usize,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Set if the last byte is of standard error.
    ends_on_stderr: bool,
    more: bool,
}

impl Output {
    fn taken(&self) -> usize {
        self.stdout.len() + self.stderr.len()
    }

    fn push(&mut self, data: &[u8], is_stderr: bool) {
        let skipped = self.skip.min(data.len());
        self.skip -= skipped;
        let data = &data[skipped..];
        let room = (MOST - self.taken()).min(data.len());
        self.more |= room < data.len();
        if room > 0 {
            let to = match is_stderr {
                true => &mut self.stderr,
                false => &mut self.stdout,
            };
            to.extend_from_slice(&data[..room]);
            self.ends_on_stderr = is_stderr;
        }
    }

    /// Leaves a letter that was cut in two to the next answer.
    fn cut(&mut self) {
        let last = match self.ends_on_stderr {
            true => &mut self.stderr,
            false => &mut self.stdout,
        };
        let whole = last.len() - cut_letter(last);
        if whole > 0 {
            last.truncate(whole);
        }
    }
}

/// Attaches to a command. What it is told to have lost is what comes before the first byte.
async fn attached(
    client: &Client,
    vm: &str,
    pid: u32,
) -> Result<(KeptCommand, Events), GuestError> {
    let mut tries = TRIES;
    let mut before = find(client, vm, pid).await?;
    loop {
        let (_, none) = mpsc::channel(1);
        let following = Attach { output: true };
        let mut events = client.attach(vm, pid, following, none).await?;
        while !matches!(
            events.next().await?.ok_or(GuestError::Broke)?,
            ExecEvent::Started(_)
        ) {}
        let now = find(client, vm, pid).await?;
        tries -= 1;
        // One that writes without a pause loses some at any time.
        if now.lost == before.lost || tries == 0 {
            return Ok((now, events));
        }
        before = now;
    }
}

async fn find(client: &Client, vm: &str, pid: u32) -> Result<KeptCommand, GuestError> {
    let mut all = list(client, vm).await?.into_iter();
    let none = || GuestError::NoSession {
        vm: vm.to_owned(),
        pid,
    };
    all.find(|command| command.pid == pid).ok_or_else(none)
}

/// Reads what a command has written since `from`, and waits for something if that is nothing.
pub async fn read(client: &Client, words: SessionRead) -> Result<Value, GuestError> {
    let pid = words.pid.as_a::<u32>();
    let from = words.from.map_or(0, |it| it.as_a::<u64>());
    let wait = Duration::from_secs(words.wait_s.map_or(0, |it| it.as_a()));
    let (command, mut events) = attached(client, &words.vm, pid).await?;
    let there = command.lost + u64::from(command.kept);
    let first = from.clamp(command.lost, there);
    let mut output = Output {
        skip: usize::try_from(first - command.lost).unwrap_or(usize::MAX),
        ..Output::default()
    };
    let mut exit = command.exit;
    let wanted = usize::try_from(there - first).unwrap_or(usize::MAX);
    // What is there comes at once; what is still to be written is waited for.
    let deadline = match wanted {
        0 => Instant::now() + wait,
        _ => Instant::now() + KEPT,
    };
    if wanted > 0 || (exit.is_none() && !wait.is_zero()) {
        while output.taken() < wanted.clamp(1, MOST) && !output.more {
            let Ok(event) = timeout_at(deadline, events.next()).await else {
                break;
            };
            match event?.ok_or(GuestError::Broke)? {
                ExecEvent::Stdout(data) => output.push(&BASE64_STANDARD.decode(data)?, false),
                ExecEvent::Stderr(data) => output.push(&BASE64_STANDARD.decode(data)?, true),
                ExecEvent::Exit(status) => {
                    exit = Some(status);
                    break;
                }
                ExecEvent::Started(_) | ExecEvent::Taken(_) => {}
                event @ (ExecEvent::Error(_)
                | ExecEvent::NotStarted(_)
                | ExecEvent::TimedOut(_)) => ended_early(event)?,
            }
        }
    }
    output.more |= wanted > output.taken();
    if output.more || exit.is_none() {
        output.cut();
    }
    Ok(told(&output, first, first - from.min(first), exit))
}

fn told(output: &Output, first: u64, missed: u64, exit: Option<ExitStatus>) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    json!({
        "stdout": text(&output.stdout),
        "stderr": text(&output.stderr),
        "next": first + output.taken() as u64,
        "more": output.more,
        "missed": missed,
        "exit": exit,
    })
}

/// The input of a command after what is written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtEnd {
    /// More may follow.
    Open,
    /// Ends.
    Eof,
}

/// Writes to a command's standard input, and ends that if it is asked for.
pub async fn type_in(client: &Client, words: SessionWrite) -> Result<Value, GuestError> {
    let pid = words.pid.as_a();
    let input = words.input.unwrap_or_default();
    let at_end = match words.eof {
        Some(true) => AtEnd::Eof,
        Some(false) | None => AtEnd::Open,
    };
    write(client, &words.vm, pid, &input, at_end).await?;
    Ok(json!({ "pid": pid, "bytes": input.len() }))
}

/// Returns once the guest has it.
async fn write(
    client: &Client,
    vm: &str,
    pid: u32,
    input: &str,
    at_end: AtEnd,
) -> Result<(), GuestError> {
    let pieces = input.as_bytes().chunks(PIECE);
    let mut pieces: Vec<_> = pieces
        .map(|piece| ExecInput::Stdin(BASE64_STANDARD.encode(piece)))
        .collect();
    if at_end == AtEnd::Eof {
        pieces.push(ExecInput::Eof);
    }
    if pieces.is_empty() {
        return Ok(());
    }
    // What is sent to one that has ended goes nowhere, without a word.
    if find(client, vm, pid).await?.exit.is_some() {
        return Err(GuestError::Ended { pid });
    }
    let (sender, coming) = mpsc::channel(pieces.len());
    for piece in pieces {
        // There is room for all of them.
        let _ = sender.try_send(piece);
    }
    let without_output = Attach { output: false };
    let mut events = client.attach(vm, pid, without_output, coming).await?;
    let mut left = input.len();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let event = timeout_at(deadline, events.next());
        let event = event.await.map_err(|_| GuestError::NotRead { left })?;
        match event?.ok_or(GuestError::Broke)? {
            ExecEvent::Taken(bytes) => {
                left = left.saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
                // The end is told of as no bytes.
                if left == 0 && (at_end == AtEnd::Open || bytes == 0) {
                    return Ok(());
                }
            }
            ExecEvent::Exit(_) if left == 0 => return Ok(()),
            ExecEvent::Exit(_) => return Err(GuestError::Ended { pid }),
            ExecEvent::Stdout(_) | ExecEvent::Stderr(_) | ExecEvent::Started(_) => {}
            event @ (ExecEvent::Error(_) | ExecEvent::NotStarted(_) | ExecEvent::TimedOut(_)) => {
                ended_early(event)?
            }
        }
    }
}

/// Ends a command and all that it started, or sends it another signal.
pub async fn end(client: &Client, words: SessionEnd) -> Result<Value, GuestError> {
    let pid = words.pid.as_a::<u32>();
    let signal: u8 = words.signal.map_or(9, |it| it.as_a());
    let path = of_vm(&words.vm, &format!("sessions/{pid}?signal={signal}"));
    client.call::<()>(Method::DELETE, &path).await?;
    Ok(json!({ "pid": pid, "signal": signal }))
}

/// Refuses what comes in place of a command.
fn ended_early(event: ExecEvent) -> Result<(), GuestError> {
    match event {
        ExecEvent::NotStarted(why) => Err(GuestError::NotStarted(why)),
        ExecEvent::Error(error) => Err(ClientError::from(error).into()),
        ExecEvent::Stdout(_)
        | ExecEvent::Stderr(_)
        | ExecEvent::Exit(_)
        | ExecEvent::Started(_)
        | ExecEvent::Taken(_)
        | ExecEvent::TimedOut(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_read_on_where_it_was_left_and_letters_are_whole() {
        let mut output = Output {
            skip: 3,
            ..Output::default()
        };
        output.push(b"ab", false);
        output.push(b"cd", true);
        output.push("e\u{e9}".as_bytes().split_last().expect("some").1, false);
        output.cut();
        let told = told(&output, 3, 0, None);
        assert_eq!(
            (&told["stdout"], &told["stderr"]),
            (&"e".into(), &"d".into())
        );
        assert_eq!((&told["next"], &told["more"]), (&5.into(), &false.into()));
    }

    #[test]
    fn an_answer_has_a_bound_and_says_that_there_is_more() {
        let mut output = Output::default();
        output.push(&vec![b'x'; MOST - 1], false);
        assert!(!output.more);
        output.push(b"yz", true);
        assert_eq!((output.taken(), output.more), (MOST, true));
        output.push(b"z", true);
        assert_eq!(output.stderr, b"y");
    }
}
