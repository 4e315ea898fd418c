//! Processes: commands that the guest keeps.
//!
//! A client that goes away leaves its command running. When the time is up that it gave, the command
//! is killed, whether a client follows it or not, unless the daemon has ended meanwhile.

use super::{
    envd::{Call, understood},
    reply::{self, Failure},
};
use axum::{body::Body, response::Response};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use forkyard_e2b::{
    Data, End, EnvelopeDecoder, ListResponse, OfProcess, ProcessConfig, ProcessEvent, ProcessInfo,
    ProcessInput, ProcessResponse, Selector, SendInputRequest, SendSignalRequest, StartRequest,
    StreamInputRequest, UpdateRequest, end, frame,
};
use forkyard_fork::{Following, HostError};
use forkyard_types::{
    Attach, ErrorKind, ExecEvent, ExecRequest, ExitStatus, KeptCommand, NotStarted, WindowSize,
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::{convert::Infallible, time::Duration};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

const SIGKILL: u8 = 9;
/// Shell that clients want for every command, and the one where a guest does not have it.
const BASH: &str = "/bin/bash";
const SHELL: &str = "/bin/sh";

/// Output of a process on its way to a client.
struct Followed {
    call: Call,
    pid: u32,
    events: mpsc::Receiver<ExecEvent>,
    tty: bool,
    until: Option<Instant>,
    /// Kills it at that time.
    killer: Option<JoinHandle<()>>,
}

/// Between two attempts at a guest that does not answer.
const AGAIN: Duration = Duration::from_secs(2);
/// Time for which a command that has had its time is killed again.
const RETRIED: Duration = Duration::from_secs(600);

/// `Start`.
pub async fn start(call: Call, asked: StartRequest) -> Result<Body, Failure> {
    let StartRequest {
        process,
        pty,
        tag,
        stdin,
    } = asked;
    let tty = pty.map(|pty| WindowSize {
        rows: pty.size.rows,
        cols: pty.size.cols,
    });
    let mut program = process.cmd.clone();
    let until = call.deadline.map(|deadline| Instant::now() + deadline);
    loop {
        let request = ExecRequest {
            argv: std::iter::once(&program)
                .chain(&process.args)
                .cloned()
                .collect(),
            env: process.envs.clone().into_iter().collect(),
            workdir: process.cwd.clone(),
            user: call.user.clone(),
            tty,
            keep: true,
            tag: tag.clone(),
            ..ExecRequest::default()
        };
        let following = match tty.is_some() || stdin.unwrap_or(true) {
            // Nothing comes this way: others send it.
            true => Following::Input(mpsc::channel(1).1),
            false => Following::Nothing,
        };
        let mut events = call.used().await?.exec(request, following).await?;
        match begun(&mut events).await? {
            Ok(pid) => {
                let killer =
                    until.map(|until| tokio::spawn(kill_at(call.clone(), pid, program, until)));
                let followed = Followed {
                    call,
                    pid,
                    events,
                    tty: tty.is_some(),
                    until,
                    killer,
                };
                return Ok(followed.body());
            }
            Err(why) if why.code == NotStarted::NOT_FOUND && program == BASH => {
                SHELL.clone_into(&mut program);
            }
            Err(why) => return Err(Failure::invalid(why.message)),
        }
    }
}

/// `Connect`.
pub async fn connect(call: Call, asked: OfProcess) -> Result<Body, Failure> {
    let found = running(&call, &asked.process).await?;
    let wanted = Attach { output: true };
    let mut events = call
        .used()
        .await?
        .attach(found.pid, wanted, Following::Nothing)
        .await?;
    let pid = begun(&mut events)
        .await?
        .map_err(|why| Failure::not_found(why.message))?;
    let until = call.deadline.map(|deadline| Instant::now() + deadline);
    let followed = Followed {
        call,
        pid,
        events,
        tty: found.tty,
        until,
        killer: None,
    };
    Ok(followed.body())
}

/// Kills a command that was just started if it still runs at that time. A client that waits no
/// longer may have gone by then.
async fn kill_at(call: Call, pid: u32, program: String, until: Instant) {
    let give_up = until + RETRIED;
    let find = || found(&call, pid, give_up);
    // Numbers are given again, to others and after a reboot.
    let is_it = |it: &KeptCommand| it.argv.first() == Some(&program) && it.exit.is_none();
    let Some(first) = find().await.filter(&is_it) else {
        return;
    };
    sleep_until(until).await;
    while let Some(it) = find().await
        && is_it(&it)
        && it.started == first.started
    {
        let killed = async {
            let used = call.used().await?;
            Ok::<_, HostError>(used.signal_session(pid, SIGKILL).await?)
        };
        if let Err(error) = killed.await {
            tracing::info!(vm = %call.vm.name, pid, error = &error as &dyn std::error::Error, "not killed in time");
        }
        // The signal is on its way, and a link that breaks would lose it.
        sleep(AGAIN).await;
        if Instant::now() > give_up {
            return;
        }
    }
}

/// A command of a VM. A guest that does not answer is asked again until then; none if there is no such
/// command, or the VM is paused, stopped, elsewhere or gone.
async fn found(call: &Call, pid: u32, give_up: Instant) -> Option<KeptCommand> {
    loop {
        let all = async {
            let used = call.used().await?;
            Ok::<_, HostError>(used.sessions().await?)
        };
        match all.await {
            Ok(all) => return all.into_iter().find(|command| command.pid == pid),
            Err(error) => {
                let silent = [ErrorKind::Timeout, ErrorKind::Guest].contains(&error.kind());
                if !silent || Instant::now() > give_up {
                    return None;
                }
                sleep(AGAIN).await;
            }
        }
    }
}

/// Waits until a command runs.
async fn begun(events: &mut mpsc::Receiver<ExecEvent>) -> Result<Result<u32, NotStarted>, Failure> {
    loop {
        return match events.recv().await {
            Some(ExecEvent::Started(started)) => Ok(Ok(started.pid)),
            Some(ExecEvent::NotStarted(why)) => Ok(Err(why)),
            Some(ExecEvent::Error(error)) => Err(error.into()),
            Some(ExecEvent::Taken(_)) => continue,
            Some(
                ExecEvent::Stdout(_)
                | ExecEvent::Stderr(_)
                | ExecEvent::Exit(_)
                | ExecEvent::TimedOut(_),
            )
            | None => Err(Failure::not_found("the guest's agent gave the command up")),
        };
    }
}

/// Next step of the stream.
enum Step {
    Event(ProcessEvent),
    Last(Vec<u8>),
}

impl Followed {
    fn body(self) -> Body {
        let first = frame(&ProcessResponse {
            event: ProcessEvent::Start { pid: self.pid },
        });
        let rest = stream::unfold(Some(self), |followed| async {
            let mut followed = followed?;
            Some(match followed.step().await {
                Step::Event(event @ ProcessEvent::End(_)) => {
                    let mut last = frame(&ProcessResponse { event });
                    last.extend(end());
                    (last, None)
                }
                Step::Event(event) => (frame(&ProcessResponse { event }), Some(followed)),
                Step::Last(last) => (last, None),
            })
        });
        let all = stream::once(async { first }).chain(rest);
        Body::from_stream(all.map(Ok::<_, Infallible>))
    }

    async fn step(&mut self) -> Step {
        let until = self.until;
        let too_late = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            event = self.events.recv() => event,
            () = too_late => return Step::Last(Failure::too_late().end()),
            () = sleep(self.call.sign) => return Step::Event(ProcessEvent::Keepalive {}),
        };
        match event {
            Some(ExecEvent::Stdout(text)) if self.tty => data(Data::Pty(text)),
            Some(ExecEvent::Stdout(text)) => data(Data::Stdout(text)),
            Some(ExecEvent::Stderr(text)) => data(Data::Stderr(text)),
            Some(ExecEvent::Exit(status)) => {
                if let Some(killer) = self.killer.take() {
                    killer.abort();
                }
                Step::Event(ProcessEvent::End(match status {
                    ExitStatus::Code(code) => End::exited(code),
                    ExitStatus::Signal(signal) => End::signalled(signal),
                }))
            }
            Some(ExecEvent::Error(error)) => Step::Last(Failure::from(error).end()),
            Some(ExecEvent::NotStarted(why)) => Step::Last(Failure::invalid(why.message).end()),
            Some(ExecEvent::TimedOut(_)) => Step::Last(Failure::too_late().end()),
            Some(ExecEvent::Taken(_) | ExecEvent::Started(_)) => {
                Step::Event(ProcessEvent::Keepalive {})
            }
            None => Step::Last(Failure::not_found("the sandbox has gone").end()),
        }
    }
}

fn data(data: Data) -> Step {
    Step::Event(ProcessEvent::Data(data))
}

/// A process that runs.
async fn running(call: &Call, wanted: &Selector) -> Result<KeptCommand, Failure> {
    let all = call.used().await?.sessions().await?;
    let mut all = all.into_iter().filter(|command| command.exit.is_none());
    let found = match wanted {
        Selector::Pid(pid) => all.find(|command| command.pid == *pid),
        Selector::Tag(tag) => all.find(|command| command.tag.as_ref() == Some(tag)),
    };
    found.ok_or_else(|| {
        Failure::not_found(match wanted {
            Selector::Pid(pid) => format!("process with pid {pid} not found"),
            Selector::Tag(tag) => format!("process with tag {tag:?} not found"),
        })
    })
}

/// `List`.
pub async fn list(call: Call, _: Value) -> Result<ListResponse, Failure> {
    let all = call.used().await?.sessions().await?;
    let running = all.into_iter().filter(|command| command.exit.is_none());
    let told = running.map(|command| {
        let mut words = command.argv.into_iter();
        ProcessInfo {
            config: ProcessConfig {
                cmd: words.next().unwrap_or_default(),
                args: words.collect(),
                envs: std::collections::BTreeMap::new(),
                cwd: command.workdir,
            },
            pid: command.pid,
            tag: command.tag,
        }
    });
    Ok(ListResponse {
        processes: told.collect(),
    })
}

/// `Update`.
pub async fn update(call: Call, asked: UpdateRequest) -> Result<Value, Failure> {
    let found = running(&call, &asked.process).await?;
    if let Some(pty) = asked.pty {
        let size = WindowSize {
            rows: pty.size.rows,
            cols: pty.size.cols,
        };
        call.used().await?.resize_session(found.pid, size).await?;
    }
    Ok(json!({}))
}

/// `SendSignal`.
pub async fn send_signal(call: Call, asked: SendSignalRequest) -> Result<Value, Failure> {
    let found = running(&call, &asked.process).await?;
    let signal = asked.signal.number();
    call.used().await?.signal_session(found.pid, signal).await?;
    Ok(json!({}))
}

/// `SendInput`.
pub async fn send_input(call: Call, asked: SendInputRequest) -> Result<Value, Failure> {
    let found = running(&call, &asked.process).await?;
    type_in(&call, found.pid, &asked.input).await?;
    Ok(json!({}))
}

async fn type_in(call: &Call, pid: u32, input: &ProcessInput) -> Result<(), Failure> {
    let bytes = BASE64_STANDARD.decode(input.text());
    let bytes = bytes.map_err(|_| Failure::invalid("the input is not base64"))?;
    match bytes.is_empty() {
        // No bytes would be the end of its input.
        true => Ok(()),
        false => Ok(call.used().await?.type_to_session(pid, bytes).await?),
    }
}

/// `CloseStdin`.
pub async fn close_stdin(call: Call, asked: OfProcess) -> Result<Value, Failure> {
    let found = running(&call, &asked.process).await?;
    if found.tty {
        return Err(Failure::invalid(
            "a terminal has no end of its input: send Ctrl-D (0x04)",
        ));
    }
    call.used()
        .await?
        .type_to_session(found.pid, Vec::new())
        .await?;
    Ok(json!({}))
}

/// `StreamInput`: messages as they come, then one answer.
pub async fn stream_input(call: Call, body: Body) -> Response {
    let typed = async {
        let mut pieces = body.into_data_stream();
        let (mut decoder, mut pid) = (EnvelopeDecoder::default(), None);
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| Failure::invalid("the input did not come in whole"))?;
            decoder.push(&piece);
            let wrong = |wrong: forkyard_e2b::EnvelopeError| Failure::invalid(wrong.to_string());
            while let Some(message) = decoder.message().map_err(wrong)? {
                match understood(&message)? {
                    StreamInputRequest::Start(of) => {
                        pid = Some(running(&call, &of.process).await?.pid);
                    }
                    StreamInputRequest::Data(data) => {
                        let pid = pid.ok_or_else(|| Failure::invalid("input before `start`"))?;
                        type_in(&call, pid, &data.input).await?;
                    }
                    StreamInputRequest::Keepalive(_) => {}
                }
            }
        }
        Ok(())
    };
    let limit = call.deadline.unwrap_or(Duration::MAX);
    let typed = tokio::time::timeout(limit, typed).await;
    reply::stream(Body::from(
        match typed.unwrap_or_else(|_| Err(Failure::too_late())) {
            Ok(()) => [frame(&json!({})), end()].concat(),
            Err(failure) => failure.end(),
        },
    ))
}
