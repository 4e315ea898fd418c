//! A connection to the process of a machine.

use crate::{
    control::{EngineOrder, MachineEvent, OrderRefusal, Reply, Word},
    faults::{Fault, Faults, refused},
    processes::Watched,
};
use forkyard_vmm::{Cause, VmmError};
use futures::future::BoxFuture;
use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{oneshot, watch},
};

/// Within this what a machine said before it ended has been read.
const LAST_WORDS: Duration = Duration::from_millis(300);

#[derive(Debug)]
struct Heard {
    replies: Mutex<VecDeque<oneshot::Sender<Reply>>>,
    stopped: watch::Sender<bool>,
    cause: watch::Sender<Option<Cause>>,
}

/// The connection. It closes when this is dropped.
#[derive(Debug)]
pub struct Link {
    orders: tokio::sync::Mutex<OwnedWriteHalf>,
    heard: Arc<Heard>,
    process: Watched,
    faults: Faults,
    patience: Duration,
}

impl Link {
    /// Connects to a machine. Within a runtime.
    pub async fn open(
        dir: &Path,
        process: Watched,
        faults: Faults,
        patience: Duration,
    ) -> Result<Self, VmmError> {
        let path = dir.join(crate::CONTROL);
        let connected = UnixStream::connect(&path).await;
        let (read, write) = connected
            .map_err(|source| failed("connect to", &path, source))?
            .into_split();
        let heard = Arc::new(Heard {
            replies: Mutex::default(),
            stopped: watch::Sender::new(false),
            cause: watch::Sender::new(None),
        });
        tokio::spawn(listen(read, heard.clone()));
        Ok(Self {
            orders: tokio::sync::Mutex::new(write),
            heard,
            process,
            faults,
            patience,
        })
    }

    pub fn process(&self) -> &Watched {
        &self.process
    }

    /// Has the machine do something. Cancel-safe, though it may be done.
    pub async fn ask(&self, call: &'static str, order: EngineOrder) -> Result<Reply, VmmError> {
        match self.faults.take(call).await {
            None | Some(Fault::Wait) => {}
            Some(Fault::Refuse) => return Err(refused(call)),
            Some(Fault::Kill) => self.process.kill().map_err(|e| failed("kill", ".", e))?,
            Some(Fault::HangUp) => {
                let _ = self.orders.lock().await.shutdown().await;
            }
        }
        let is_cont = order == EngineOrder::Cont;
        let answered = async {
            let answer = self.send(&order).await?;
            answer.await.map_err(|_| io::ErrorKind::BrokenPipe.into())
        };
        let reply = tokio::time::timeout(self.patience, answered).await;
        let reply: Result<Reply, io::Error> = reply.map_err(|_| VmmError::Timeout {
            what: call,
            after: self.patience,
        })?;
        match reply {
            Ok(Reply::Refused(why)) => Err(error_of(call, why)),
            Ok(reply) => {
                if is_cont {
                    self.heard.stopped.send_replace(false);
                }
                Ok(reply)
            }
            // It ends, or the connection broke.
            Err(error) => match tokio::time::timeout(LAST_WORDS, self.process.exited()).await {
                Ok(exit) => Err(VmmError::Died {
                    pid: self.process.id().pid,
                    status: exit.status,
                    stderr: exit.stderr,
                }),
                Err(_) => Err(failed("ask", call, error)),
            },
        }
    }

    async fn send(&self, order: &EngineOrder) -> io::Result<oneshot::Receiver<Reply>> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        let mut orders = self.orders.lock().await;
        let (answer, answered) = oneshot::channel();
        // In the order in which they are sent.
        lock(&self.heard.replies).push_back(answer);
        orders.write_all(line.as_bytes()).await?;
        Ok(answered)
    }

    pub fn stopped(&self) -> BoxFuture<'static, ()> {
        let mut stopped = self.heard.stopped.subscribe();
        Box::pin(async move {
            if stopped.wait_for(|stopped| *stopped).await.is_err() {
                std::future::pending().await
            }
        })
    }

    pub fn lost(&self) -> BoxFuture<'static, ()> {
        let mut cause = self.heard.cause.subscribe();
        // Said at the end of the connection, whatever ended that.
        Box::pin(async move {
            let _ = cause.wait_for(Option::is_some).await;
        })
    }

    pub fn cause(&self) -> BoxFuture<'static, Cause> {
        let mut cause = self.heard.cause.subscribe();
        Box::pin(async move {
            let said = tokio::time::timeout(LAST_WORDS, cause.wait_for(Option::is_some)).await;
            match said {
                Ok(Ok(cause)) => cause.unwrap_or_default(),
                Ok(Err(_)) | Err(_) => Cause::Unknown,
            }
        })
    }
}

async fn listen(read: OwnedReadHalf, heard: Arc<Heard>) {
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(Word::Reply(reply)) => {
                if let Some(answer) = lock(&heard.replies).pop_front() {
                    let _ = answer.send(reply);
                }
            }
            Ok(Word::Event(MachineEvent::Stopped)) => {
                heard.stopped.send_replace(true);
            }
            Ok(Word::Event(MachineEvent::Ends(cause))) => {
                heard.cause.send_replace(Some(cause));
            }
            Err(error) => tracing::error!(%error, line, "a machine's word is not understood"),
        }
    }
    lock(&heard.replies).clear();
    // It said nothing before it ended.
    heard.cause.send_if_modified(|cause| {
        let silent = cause.is_none();
        *cause = Some(cause.unwrap_or_default());
        silent
    });
}

fn error_of(call: &'static str, why: OrderRefusal) -> VmmError {
    match why {
        OrderRefusal::State(state) => VmmError::WrongState { state },
        OrderRefusal::NoDisk => VmmError::NoDisk,
        OrderRefusal::Stale => VmmError::StaleOverlay {
            path: PathBuf::new(),
        },
        OrderRefusal::Other(text) => VmmError::Answer {
            command: call,
            text,
        },
    }
}

pub fn failed(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> VmmError {
    VmmError::Io {
        what,
        path: path.into(),
        source,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
