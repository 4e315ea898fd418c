//! Messages by lines. The server sees those that are in order; a client is told what is wrong with
//! the others.
//!
//! ```text
//! lines --read--> message --> server
//!            \--> error --+     |
//! lines <----- one task <-+-----+
//! ```
//!
//! At the end of its input, what a client has asked for is answered before it is told that this is the
//! end: a script that writes its requests and closes gets all of its answers. A client that reads no more is
//! waited for no longer.
//!
//! Reading may be cancelled at any point: a line that has come in part, and an error that has not
//! been sent, are kept.

use super::lines::{LONGEST, Line, UnderWay, refusal, too_long};
use rmcp::{
    RoleServer,
    model::{ClientNotification, ClientRequest, ErrorCode, JsonRpcMessage},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde_json::Value;
use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::{Notify, mpsc, oneshot},
    time::sleep,
};

/// Time between two looks at whether there is a reader.
const LOOK: Duration = Duration::from_secs(1);
/// Refusal of what comes before a session has begun.
const EARLY: &str = "the session has not begun: `initialize` comes first";
/// Beginning of the fields of a request that tell its version of the protocol.
const META: &[u8] = b"io.modelcontextprotocol/";
/// Lines that wait to be written.
const WAITING: usize = 16;

/// A line to be written, and where that is reported.
type Outgoing = (Vec<u8>, oneshot::Sender<io::Result<()>>);

/// A client's lines.
#[derive(Debug)]
pub struct Lines<R> {
    from: BufReader<R>,
    line: Vec<u8>,
    /// True from where a line is too long to its end.
    passing_over: bool,
    /// An error to be sent before more is read.
    wrong: Option<Value>,
    under_way: Arc<Mutex<UnderWay>>,
    /// Told whenever a request is over.
    over: Arc<Notify>,
    /// True from `initialize` on: until then no tool is called without a version.
    has_begun: bool,
    to: mpsc::Sender<Outgoing>,
    /// Tells whether what is written has no reader any more.
    is_unread: fn() -> bool,
}

impl<R: AsyncRead + Unpin + Send> Lines<R> {
    /// Reads from one stream, and writes to the other by a task that ends with this. `is_unread` tells whether
    /// the other has lost its reader.
    pub fn new(
        from: R,
        to: impl AsyncWrite + Unpin + Send + 'static,
        is_unread: fn() -> bool,
    ) -> Self {
        let (sender, lines) = mpsc::channel(WAITING);
        tokio::spawn(write(to, lines));
        Self {
            from: BufReader::new(from),
            line: Vec::new(),
            passing_over: false,
            wrong: None,
            under_way: Arc::default(),
            over: Arc::default(),
            has_begun: false,
            to: sender,
            is_unread,
        }
    }

    /// Waits until every request is over, or until there is none to read the answers. Cancel-safe.
    async fn answered(&mut self) {
        loop {
            let over = self.over.clone().notified_owned();
            if lock(&self.under_way).is_empty() || (self.is_unread)() {
                return;
            }
            tokio::select! {
                () = over => {}
                () = self.to.closed() => return,
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Reads the next line into `line`; returns false at the end. Cancel-safe.
    async fn next(&mut self) -> io::Result<bool> {
        loop {
            let some = self.from.fill_buf().await?;
            if some.is_empty() {
                // The last line may lack its end.
                return Ok(!self.line.is_empty());
            }
            let end = some.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(some.len(), |at| at + 1);
            if !self.passing_over {
                self.line.extend_from_slice(&some[..end.unwrap_or(taken)]);
            }
            self.from.consume(taken);
            if self.line.len() > LONGEST {
                self.line = Vec::new();
                self.passing_over = true;
                self.wrong = Some(too_long());
            }
            if end.is_some() {
                self.passing_over = false;
                return Ok(true);
            }
        }
    }
}

impl<R: AsyncRead + Unpin + Send + 'static> Transport<RoleServer> for Lines<R> {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (to, under_way) = (self.to.clone(), self.under_way.clone());
        let over = self.over.clone();
        async move {
            let answered = match &item {
                JsonRpcMessage::Response(answer) => Some(&answer.id),
                JsonRpcMessage::Error(answer) => answer.id.as_ref(),
                JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
            };
            if let Some(id) = answered {
                lock(&under_way).over(id);
            }
            let line = serde_json::to_vec(&item)?;
            let (sender, written) = oneshot::channel();
            let closed = || io::Error::from(io::ErrorKind::NotConnected);
            to.send((line, sender)).await.map_err(|_| closed())?;
            let written = written.await.map_err(|_| closed())?;
            over.notify_waiters();
            written
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if let Some(wrong) = &self.wrong {
                let line = serde_json::to_vec(wrong).ok()?;
                let room = self.to.reserve().await.ok()?;
                // Nothing waits for it.
                room.send((line, oneshot::channel().0));
                self.wrong = None;
            }
            if !self.next().await.ok()? {
                self.answered().await;
                self.close().await.ok()?;
                return None;
            }
            let read = lock(&self.under_way).read(&self.line);
            // A request that says of which version it is needs no session.
            let has_meta = !self.has_begun && self.line.windows(META.len()).any(|it| it == META);
            self.line.clear();
            match read {
                Line::Message(message) if !self.has_begun => match &*message {
                    JsonRpcMessage::Request(request) => {
                        let is_of_session = matches!(
                            request.request,
                            ClientRequest::ListToolsRequest(_) | ClientRequest::CallToolRequest(_)
                        );
                        if !is_of_session || has_meta {
                            self.has_begun |=
                                matches!(request.request, ClientRequest::InitializeRequest(_));
                            return Some(*message);
                        }
                        lock(&self.under_way).over(&request.id);
                        let id = serde_json::to_value(&request.id).ok();
                        self.wrong = Some(refusal(ErrorCode::INVALID_REQUEST, EARLY, id));
                    }
                    JsonRpcMessage::Notification(_)
                    | JsonRpcMessage::Response(_)
                    | JsonRpcMessage::Error(_) => {}
                },
                Line::Message(message) => {
                    if let JsonRpcMessage::Notification(told) = &*message
                        && let ClientNotification::CancelledNotification(it) = &told.notification
                        && let Some(id) = &it.params.request_id
                    {
                        // It gets no answer.
                        lock(&self.under_way).over(id);
                    }
                    return Some(*message);
                }
                Line::Nothing => {}
                Line::Wrong(wrong) => self.wrong = Some(wrong),
            }
        }
    }

    /// Waits until what was sent is written.
    async fn close(&mut self) -> Result<(), Self::Error> {
        let (sender, written) = oneshot::channel();
        let last = (Vec::new(), sender);
        match self.to.send(last).await {
            Ok(()) => written.await.unwrap_or(Ok(())),
            Err(_) => Ok(()),
        }
    }
}

fn lock(under_way: &Mutex<UnderWay>) -> std::sync::MutexGuard<'_, UnderWay> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes lines until there are no more, or they cannot be written.
async fn write(mut to: impl AsyncWrite + Unpin, mut lines: mpsc::Receiver<Outgoing>) {
    while let Some((mut line, told)) = lines.recv().await {
        if !line.is_empty() {
            line.push(b'\n');
        }
        let written = async {
            to.write_all(&line).await?;
            to.flush().await
        };
        let written = written.await;
        let failed = written.is_err();
        // Not every sender waits.
        let _ = told.send(written);
        if failed {
            return;
        }
    }
}
