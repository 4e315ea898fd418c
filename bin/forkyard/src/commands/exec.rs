//! `exec`: the guest's command as if it ran here.
//!
//! ```text
//! standard input --a thread--+
//! signals, size -------------+--> input --> daemon --> command
//! standard output, error <------- events <-- daemon <-----+
//! ```

mod termination;

use self::termination::Termination;
use super::{silence::Silence, terminal};
use crate::{args::Format, output};
use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use forkyard_api_client::{Client, ClientError};
use forkyard_types::{Attach, ExecEvent, ExecInput, ExecRequest, ExecTimedOut};
use nix::libc;
use std::{
    env,
    future::pending,
    io::{IsTerminal, Read, Write, stdin},
    process::ExitCode,
    sync::Arc,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{Semaphore, mpsc, oneshot},
};

/// The exit code where not the command failed but this program.
pub const FAILED: u8 = 125;
/// As timeout(1) has it.
const TOOK_TOO_LONG: u8 = 124;
/// Bytes of standard input in one piece.
const PIECE: usize = 32 << 10;
/// Words on a command in a VM that does not answer.
const WAITS: &str = "the command is waited for. Ctrl-C twice gives it up";
/// The terminal's kind, which programs on it want to know.
const TERM: &str = "TERM";

/// `exec`
#[derive(Debug, Args)]
pub struct Exec {
    /// Pass standard input on to the command, as it comes.
    #[arg(long, short)]
    pub interactive: bool,
    /// Give the command a terminal. Standard error is standard output then.
    #[arg(long, short)]
    pub tty: bool,
    /// Leave the command to itself: start it, print its process id and return. It reads nothing; the
    /// last of what it writes is kept for `forkyard sessions attach`.
    #[arg(long, short, conflicts_with_all = ["interactive", "tty", "timeout"])]
    pub detach: bool,
    /// Label of a command that is left to itself.
    #[arg(long, requires = "detach", value_name = "TEXT")]
    pub tag: Option<String>,
    /// Set a variable for the command: NAME=VALUE.
    #[arg(long, short, value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Working directory of the command.
    #[arg(long, short, value_name = "DIR")]
    pub workdir: Option<String>,
    /// User of the command: USER or USER:GROUP, names of the guest's or numbers.
    #[arg(long, short)]
    pub user: Option<String>,
    /// Kill the command and all that it started after so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: Option<u32>,
    /// Name or id of the VM.
    pub vm: String,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub argv: Vec<String>,
}

/// A variable or a label: NAME=VALUE.
pub fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("wanted NAME=VALUE".to_owned()),
    }
}

/// Runs the command and exits as it did.
pub async fn exec(client: &Client, format: Format, command: Exec) -> anyhow::Result<ExitCode> {
    let on_terminal = stdin().is_terminal();
    anyhow::ensure!(
        !(command.tty && command.interactive) || on_terminal,
        "standard input is not a terminal: leave out -t, or -i"
    );
    let mut env = command.env;
    if let (true, Ok(kind)) = (command.tty, env::var(TERM))
        && !env.iter().any(|(name, _)| name == TERM)
    {
        env.insert(0, (TERM.to_owned(), kind));
    }
    let request = ExecRequest {
        argv: command.argv,
        env,
        workdir: command.workdir,
        user: command.user,
        tty: command.tty.then(terminal::size),
        stdin: None,
        timeout_s: command.timeout,
        detach: command.detach,
        keep: false,
        tag: command.tag,
    };
    let (input, coming) = mpsc::channel(1);
    let window = Arc::new(Semaphore::new(0));
    window.add_permits(usize::try_from(ExecInput::WINDOW).unwrap_or(Semaphore::MAX_PERMITS));
    let mut events = client.exec_with(&command.vm, &request, coming).await?;
    let raw = (command.tty && command.interactive).then(terminal::Raw::enter);
    let raw = raw.transpose().context("cannot set the terminal")?;
    let mut broken = match command.interactive {
        true => pass_input_on(input.clone(), window.clone(), AtEnd::End),
        false => {
            // With the channel still open for signals.
            let _ = input.send(ExecInput::Eof).await;
            Broken::never()
        }
    };
    let mut signals = pass_signals_on(input, command.tty)?;
    let mut silence = Silence::of(client, &command.vm, WAITS);
    let mut termination = Termination::of(client, &command.vm);
    loop {
        let event = tokio::select! {
            event = events.next() => event?,
            // The command is hung up on: it does not take what it got for the whole.
            error = broken.happens() => return Err(error),
            never = silence.watch() => match never {},
            Some(passed) = signals.recv() => match passed {
                Passed::Terminate => {
                    termination.begin();
                    continue;
                }
                // The command is hung up on with the connection.
                Passed::End(code) => return Ok(ExitCode::from(code)),
            },
            code = termination.fails() => {
                let start = if raw.is_some() { "\r" } else { "" };
                tell!("forkyard: {} does not answer: SIGTERM may not have reached the command, which is given up{start}", command.vm);
                return Ok(ExitCode::from(code));
            }
        };
        let event = event.context("the daemon closed the connection before the command ended")?;
        silence.broken();
        if let ExecEvent::Taken(bytes) = event {
            window.add_permits(usize::try_from(bytes).unwrap_or_default());
            continue;
        }
        termination.reached();
        let code = match format {
            Format::Json => show_as_json(&event)?,
            Format::Text => show(event, raw.is_some())?,
        };
        if let Some(code) = code {
            return Ok(ExitCode::from(code));
        }
    }
}

/// Attaches to a command that a VM keeps, and exits as it does.
pub async fn attach(
    client: &Client,
    format: Format,
    interactive: bool,
    vm: &str,
    pid: u32,
) -> anyhow::Result<ExitCode> {
    let (input, coming) = mpsc::channel(1);
    let window = Arc::new(Semaphore::new(0));
    window.add_permits(usize::try_from(ExecInput::WINDOW).unwrap_or(Semaphore::MAX_PERMITS));
    let mut events = client
        .attach(vm, pid, Attach { output: true }, coming)
        .await?;
    // Held: signals end this program, and not the command.
    let _open = input.clone();
    let mut broken = match interactive {
        true => pass_input_on(input, window.clone(), AtEnd::Leave),
        false => Broken::never(),
    };
    let mut silence = Silence::of(client, vm, WAITS);
    loop {
        let event = tokio::select! {
            event = events.next() => event?,
            error = broken.happens() => return Err(error),
            never = silence.watch() => match never {},
        };
        let event = event.context("the daemon closed the connection before the command ended")?;
        silence.broken();
        if let ExecEvent::Taken(bytes) = event {
            window.add_permits(usize::try_from(bytes).unwrap_or_default());
            continue;
        }
        if matches!(event, ExecEvent::Started(_)) {
            continue;
        }
        let code = match format {
            Format::Json => show_as_json(&event)?,
            Format::Text => show(event, false)?,
        };
        if let Some(code) = code {
            return Ok(ExitCode::from(code));
        }
    }
}

/// Meaning of the end of standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtEnd {
    /// The command's input ends as well.
    End,
    /// The command's input stays open for others.
    Leave,
}

/// The wait for standard input to fail.
struct Broken(Option<oneshot::Receiver<std::io::Error>>);

impl Broken {
    fn never() -> Self {
        Self(None)
    }

    /// Resolves if reading fails. Cancel-safe.
    async fn happens(&mut self) -> anyhow::Error {
        if let Some(failed) = &mut self.0
            && let Ok(error) = failed.await
        {
            return anyhow::Error::new(error).context("cannot read standard input");
        }
        // It has ended well.
        self.0 = None;
        pending().await
    }
}

/// Passes standard input on, no more than there is room for. Read by a thread, for reading a
/// terminal cannot be given up. Of input that cannot be read the end is not passed on.
fn pass_input_on(input: mpsc::Sender<ExecInput>, window: Arc<Semaphore>, at_end: AtEnd) -> Broken {
    let (sender, mut pieces) = mpsc::channel::<Vec<u8>>(1);
    let (ended, end) = oneshot::channel::<Option<std::io::Error>>();
    let (fails, failed) = oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = vec![0; PIECE];
        loop {
            match stdin().lock().read(&mut buffer) {
                Ok(read @ 1..) => {
                    if sender.blocking_send(buffer[..read].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => {
                    let _ = ended.send(read.err());
                    return;
                }
            }
        }
    });
    tokio::spawn(async move {
        while let Some(piece) = pieces.recv().await {
            let bytes = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            match window.acquire_many(bytes).await {
                Ok(room) => room.forget(),
                Err(_) => return,
            }
            let piece = ExecInput::Stdin(BASE64_STANDARD.encode(piece));
            if input.send(piece).await.is_err() {
                return;
            }
        }
        match end.await {
            Ok(Some(error)) => _ = fails.send(error),
            // A command that has ended needs no end of its input.
            Ok(None) if at_end == AtEnd::End => _ = input.send(ExecInput::Eof).await,
            Ok(None) | Err(_) => {}
        }
    });
    Broken(Some(failed))
}

/// Meaning of a signal for this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    /// The command has been told to end.
    Terminate,
    /// End with this status.
    End(u8),
}

/// Forwards signals and changes of the window size. Returns where it is told if this program is to
/// end, at the second signal or when its terminal is gone, or is to look after the command's end.
fn pass_signals_on(
    input: mpsc::Sender<ExecInput>,
    tty: bool,
) -> anyhow::Result<mpsc::Receiver<Passed>> {
    let of = |kind| signal(kind).context("cannot handle signals");
    let (mut interrupt, mut quit) = (of(SignalKind::interrupt())?, of(SignalKind::quit())?);
    let (mut terminate, mut hang_up) = (of(SignalKind::terminate())?, of(SignalKind::hangup())?);
    let mut resized = of(SignalKind::window_change())?;
    let (end, ended) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut told = false;
        loop {
            let number = tokio::select! {
                _ = interrupt.recv() => libc::SIGINT,
                _ = quit.recv() => libc::SIGQUIT,
                _ = terminate.recv() => libc::SIGTERM,
                _ = hang_up.recv() => libc::SIGHUP,
                _ = resized.recv() => {
                    if tty {
                        send(&input, ExecInput::Resize(terminal::size()));
                    }
                    continue;
                }
            };
            let number = u8::try_from(number).unwrap_or_default();
            if told || i32::from(number) == libc::SIGHUP {
                // Nothing receives it if the command has just ended.
                let _ = end.send(Passed::End(number.saturating_add(128))).await;
                return;
            }
            told = true;
            send(&input, ExecInput::Signal(number));
            if i32::from(number) == libc::SIGTERM {
                let _ = end.send(Passed::Terminate).await;
            }
        }
    });
    Ok(ended)
}

/// Sends without waiting: a daemon that reads nothing must not hide the next signal.
fn send(input: &mpsc::Sender<ExecInput>, what: ExecInput) {
    let input = input.clone();
    tokio::spawn(async move { input.send(what).await });
}

/// Passes output on. Returns the exit code once the command has ended, or the output has no reader.
fn show(event: ExecEvent, is_raw: bool) -> anyhow::Result<Option<u8>> {
    let code = code_of(&event);
    // A raw terminal does not return to the first column by itself.
    let start = if is_raw { "\r" } else { "" };
    match event {
        ExecEvent::Stdout(data) => return write(&mut std::io::stdout(), &decoded(&data)?),
        ExecEvent::Stderr(data) => return write(&mut std::io::stderr(), &decoded(&data)?),
        ExecEvent::Taken(_) | ExecEvent::Exit(_) => {}
        // By this it is known to `forkyard sessions`.
        ExecEvent::Started(started) => {
            return Ok(write(
                &mut std::io::stdout(),
                format!("{}\n", started.pid).as_bytes(),
            )?
            .or(code));
        }
        ExecEvent::NotStarted(why) => tell!("forkyard: {}{start}", why.message),
        ExecEvent::TimedOut(ExecTimedOut { after_s }) => {
            tell!("forkyard: the command took longer than {after_s} s and was killed{start}");
        }
        ExecEvent::Error(error) => return Err(ClientError::from(error).into()),
    }
    Ok(code)
}

/// Prints the event as the API has it.
fn show_as_json(event: &ExecEvent) -> anyhow::Result<Option<u8>> {
    let line = serde_json::to_string(event)? + "\n";
    Ok(write(&mut std::io::stdout(), line.as_bytes())?.or(code_of(event)))
}

fn code_of(event: &ExecEvent) -> Option<u8> {
    Some(match event {
        ExecEvent::Stdout(_) | ExecEvent::Stderr(_) | ExecEvent::Taken(_) => return None,
        ExecEvent::Exit(status) => status.shell_code(),
        ExecEvent::Started(_) => 0,
        ExecEvent::NotStarted(why) => why.code,
        ExecEvent::TimedOut(_) => TOOK_TOO_LONG,
        ExecEvent::Error(_) => FAILED,
    })
}

fn decoded(data: &str) -> anyhow::Result<Vec<u8>> {
    BASE64_STANDARD
        .decode(data)
        .context("the daemon's answer is not what was expected")
}

/// Writes to a stream. Returns the exit code if that fails; the terminal is restored before this
/// program ends.
fn write(stream: &mut impl Write, data: &[u8]) -> anyhow::Result<Option<u8>> {
    let written = stream.write_all(data).and_then(|()| stream.flush());
    let failed = written.err().map(|error| output::cannot_write(&error));
    // Its own failure is none of the command's.
    Ok(failed.map(|code| match code {
        1 => FAILED,
        code => u8::try_from(code).unwrap_or(FAILED),
    }))
}
