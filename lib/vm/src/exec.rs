//! Running a command in a guest.
//!
//! ```text
//! ExecInput --hear--+-- bytes --queue--> pass_on --> guest     bytes wait for the command,
//!                   +-- signals, sizes ------------> guest     these do not
//! ExecEvent <------------------ relay <------------- guest
//! ```

use crate::{InUse, Used, VmError, lock};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use forkyard_agent_link::{
    CHUNK, Command, Exec, ExecControls as Controls, ExecOut, LinkError, Stream,
};
use forkyard_types::{
    ApiError, Attach, ExecEvent, ExecInput, ExecRequest, ExecStarted, ExecTimedOut,
};
use std::{future::pending, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::sleep,
};

/// Events on their way to a client that reads slowly; more and the guest's
/// command waits.
const WAITING: usize = 16;
const SIGKILL: u8 = 9;
/// Most bytes of a tag.
const TAG: usize = 256;

/// Input of a command that follows its request.
#[derive(Debug)]
pub enum Following {
    /// Nothing: its input ends with what the request has.
    Nothing,
    /// Input, whose end is said: one that ends otherwise has lost its client, and the command's input stays
    /// open. An error hangs the command up.
    Input(mpsc::Receiver<Result<ExecInput, ApiError>>),
}

impl Used {
    /// Starts a command; what it does arrives on the channel, its end last.
    /// Dropping the channel hangs the command up. If cancelled, a command that has started is hung up on,
    /// unless it is kept or left to itself.
    pub async fn exec(
        self,
        request: ExecRequest,
        following: Following,
    ) -> Result<mpsc::Receiver<ExecEvent>, VmError> {
        let input = checked(&request)?;
        let body = self.answering()?;
        let own = lock(&self.vm.terms).env.clone();
        let env = own.into_iter().chain(request.env).collect();
        let running = body
            .guest
            .exec(Command {
                argv: request.argv,
                env,
                workdir: request.workdir,
                user: request.user,
                tty: request.tty,
                detach: request.detach,
                keep: request.keep,
                tag: request.tag,
            })
            .await?;
        let (events, receiver) = mpsc::channel(WAITING);
        let feeder = match (request.detach, request.keep) {
            (true, _) => Feeder(Vec::new()),
            (false, _) => feed(running.input(), input, following, events.clone()),
        };
        let limit = request.timeout_s.filter(|_| !request.detach);
        let lost = self.lost();
        tokio::spawn(relay(running, events, limit, lost, (feeder, self.in_use)));
        Ok(receiver)
    }

    /// Follows a command that is kept. Dropping the channel leaves it to itself again. Cancel-safe.
    pub async fn attach(
        self,
        pid: u32,
        wanted: Attach,
        following: Following,
    ) -> Result<mpsc::Receiver<ExecEvent>, VmError> {
        self.find_session(pid).await?;
        let running = self.answering()?.guest.attach(pid, wanted.output).await?;
        let (events, receiver) = mpsc::channel(WAITING);
        let feeder = match following {
            // Its input stays open for others.
            Following::Nothing => Feeder(Vec::new()),
            Following::Input(_) => feed(running.input(), Vec::new(), following, events.clone()),
        };
        let lost = self.lost();
        tokio::spawn(relay(running, events, None, lost, (feeder, self.in_use)));
        Ok(receiver)
    }
}

/// Refuses what makes no sense; the first bytes of its input.
fn checked(request: &ExecRequest) -> Result<Vec<u8>, VmError> {
    let wrong = |why: &str| Err(VmError::Invalid(why.into()));
    let texts = [&request.workdir, &request.user].into_iter().flatten();
    let of_env = request.env.iter().flat_map(|(name, value)| [name, value]);
    let mut words = request.argv.iter().chain(texts).chain(of_env);
    if request.argv.is_empty() {
        return wrong("no command");
    }
    if words.any(|word| word.contains('\0')) {
        return wrong("the command, its environment, user or working directory has a zero byte");
    }
    if request
        .user
        .as_ref()
        .is_some_and(|user| user.is_empty() || user.starts_with(':'))
    {
        return wrong("the user is empty: wanted USER or USER:GROUP, or none to have the image's");
    }
    let named = |name: &str| !name.is_empty() && !name.contains('=');
    if !request.env.iter().all(|(name, _)| named(name)) {
        return wrong("a name in the environment is empty, or has a `=`");
    }
    if request.timeout_s == Some(0) {
        return wrong("a timeout of 0 seconds");
    }
    let extra = request.tty.is_some() || request.stdin.is_some() || request.timeout_s.is_some();
    if request.detach && request.keep {
        return wrong("a command is either left to itself or kept and followed");
    }
    if request
        .tag
        .as_ref()
        .is_some_and(|tag| tag.len() > TAG || tag.contains('\0'))
    {
        return wrong("a tag longer than 256 bytes, or with a zero byte");
    }
    if request.detach && extra {
        return wrong("a command that is left to itself has no terminal, input or timeout");
    }
    decoded(request.stdin.as_deref().unwrap_or_default())
}

fn decoded(text: &str) -> Result<Vec<u8>, VmError> {
    BASE64_STANDARD
        .decode(text)
        .map_err(|_| VmError::Invalid("stdin is not base64".into()))
}

/// The tasks that bring a command its input; they end with this.
struct Feeder(Vec<JoinHandle<()>>);

impl Drop for Feeder {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

fn feed(
    controls: Controls,
    first: Vec<u8>,
    following: Following,
    events: mpsc::Sender<ExecEvent>,
) -> Feeder {
    // Counted in bytes, as clients count them: however small their pieces are, a signal passes by.
    let (queue, queued) = duplex(usize::try_from(ExecInput::WINDOW).unwrap_or(usize::MAX));
    let (telling, input) = match following {
        Following::Nothing => (None, None),
        Following::Input(input) => (Some(events.clone()), Some(input)),
    };
    let (ends, ended) = oneshot::channel();
    let passing = tokio::spawn(pass_on(controls.clone(), first, queued, ended, telling));
    let queue = Queue { bytes: queue, ends };
    let hearing = match input {
        Some(input) => Some(tokio::spawn(hear(input, controls, queue, events))),
        None => {
            queue.end();
            None
        }
    };
    Feeder([Some(passing), hearing].into_iter().flatten().collect())
}

/// Bytes on their way to a command. One that is dropped ends nothing: the client may have gone, or this
/// daemon be ending, and the command must not take what came until then for the whole.
struct Queue {
    bytes: DuplexStream,
    ends: oneshot::Sender<()>,
}

impl Queue {
    /// Ends the command's input after what was written.
    fn end(self) {
        // Nothing is left to be told that has no reader.
        let _ = self.ends.send(());
    }
}

/// Passes bytes on as fast as the command reads them, and tells of them; then its input's end, if that
/// was said.
async fn pass_on(
    controls: Controls,
    first: Vec<u8>,
    mut queued: DuplexStream,
    ended: oneshot::Receiver<()>,
    telling: Option<mpsc::Sender<ExecEvent>>,
) {
    // A command that ends without reading all of it is no error; a link that breaks is told of by
    // the process that reads from it.
    if controls.send(first).await.is_err() {
        return;
    }
    let mut piece = vec![0; CHUNK];
    while let Ok(length @ 1..) = queued.read(&mut piece).await {
        let taken = u32::try_from(length).unwrap_or(u32::MAX);
        if controls.send(piece[..length].to_vec()).await.is_err() {
            return;
        }
        if let Some(events) = &telling
            && events.send(ExecEvent::Taken(taken)).await.is_err()
        {
            return;
        }
    }
    if ended.await.is_ok()
        && controls.end().await.is_ok()
        && let Some(events) = &telling
    {
        let _ = events.send(ExecEvent::Taken(0)).await;
    }
}

/// Acts on what comes, in its order but for bytes, which wait for the command.
async fn hear(
    mut input: mpsc::Receiver<Result<ExecInput, ApiError>>,
    controls: Controls,
    queue: Queue,
    events: mpsc::Sender<ExecEvent>,
) {
    let mut queue = Some(queue);
    while let Some(heard) = input.recv().await {
        let acted: Result<(), ApiError> = match heard {
            Ok(ExecInput::Stdin(text)) => match (decoded(&text), &mut queue) {
                (Ok(bytes), Some(queue)) => match queue.bytes.write_all(&bytes).await {
                    Ok(()) => Ok(()),
                    Err(_) => return,
                },
                (Ok(_), None) => Err(VmError::Invalid("input after its end".into()).to_api()),
                (Err(error), _) => Err(error.to_api()),
            },
            Ok(ExecInput::Eof) => {
                if let Some(queue) = queue.take() {
                    queue.end();
                }
                Ok(())
            }
            Ok(ExecInput::Resize(size)) => controls.resize(size).await.map_err(told),
            Ok(ExecInput::Signal(signal)) => match signal {
                1..=64 => controls.signal(signal).await.map_err(told),
                _ => Err(VmError::Invalid(format!("there is no signal {signal}")).to_api()),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = acted {
            // Its client reads this as the end.
            let _ = events.send(ExecEvent::Error(error)).await;
            return;
        }
    }
}

fn told(error: LinkError) -> ApiError {
    VmError::from(error).to_api()
}

async fn relay(
    mut running: Exec,
    events: mpsc::Sender<ExecEvent>,
    limit: Option<u32>,
    lost: impl Future<Output = VmError>,
    _held: (Feeder, InUse),
) {
    let too_long = async {
        match limit {
            Some(limit) => {
                sleep(Duration::from_secs(limit.into())).await;
                limit
            }
            None => pending().await,
        }
    };
    tokio::pin!(too_long, lost);
    loop {
        let out = tokio::select! {
            out = running.next() => out,
            // Dropped, the command is hung up on, though it may never write.
            () = events.closed() => return,
            error = &mut lost => {
                let _ = events.send(ExecEvent::Error(error.to_api())).await;
                return;
            }
            after_s = &mut too_long => {
                // With no link there is nothing to be killed.
                let _ = running.input().signal(SIGKILL).await;
                let _ = events.send(ExecEvent::TimedOut(ExecTimedOut { after_s })).await;
                return;
            }
        };
        let event = match out {
            Some(ExecOut::Output {
                stream: Stream::Out,
                data,
            }) => ExecEvent::Stdout(BASE64_STANDARD.encode(data)),
            Some(ExecOut::Output {
                stream: Stream::Err,
                data,
            }) => ExecEvent::Stderr(BASE64_STANDARD.encode(data)),
            Some(ExecOut::Ended(status)) => ExecEvent::Exit(status),
            Some(ExecOut::NotStarted(why)) => ExecEvent::NotStarted(why),
            Some(ExecOut::Started { pid }) => ExecEvent::Started(ExecStarted { pid }),
            // Nothing of a command.
            Some(ExecOut::Kept(_)) => continue,
            Some(ExecOut::Lost(error)) => ExecEvent::Error(VmError::from(error).to_api()),
            None => return,
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}
