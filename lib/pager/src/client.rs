//! The pager as a daemon sees it.

use crate::pool::Pool;
use crate::protocol::{
    Answer, Fetching, Hello, Offering, PeerKey, Request, VERSION, receive, send,
};
use crate::{Arrival, LinkUse, PagerError, PagerRefusal, Shutdown};
use forkyard_image::Lineage;
use forkyard_transfer::Run;
use forkyard_types::{ImageId, ImageUse, ImageView, PageCount};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A pager that does not answer for so long never will, unless said otherwise.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether another has taken over.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Connections to a pager. All calls block for as long as the pager takes, not for
/// each other: each has a connection of its own while it lasts, and clones share those that
/// are idle.
///
/// A pager may die and another take over: a call that this breaks is made once
/// more. It may have had its effect the first time, and a refusal that says just
/// that is then no failure.
#[derive(Clone, Debug)]
pub struct PagerClient {
    socket: Arc<Path>,
    pool: Arc<Pool>,
    patience: Duration,
}

impl PagerClient {
    /// Connects to the pager that listens at `socket`, and waits for half a
    /// minute for each of its answers.
    pub fn connect(socket: &Path) -> Result<Self, PagerError> {
        Self::connect_with(socket, PATIENCE)
    }

    /// Connects, with this time for an answer, which must not be zero.
    pub fn connect_with(socket: &Path, patience: Duration) -> Result<Self, PagerError> {
        let (stream, _) = greet(socket, patience)?;
        Ok(Self {
            socket: socket.into(),
            pool: Arc::new(Pool::with(stream)),
            patience,
        })
    }

    /// The file of `image` exists from now on and has so many pages; reads wait
    /// until it is published.
    pub fn promise(&self, image: ImageId, pages: PageCount) -> Result<(), PagerError> {
        self.done(&Request::Promise { image, pages }, None)
    }

    /// An image is there, promised before or not: its own layer is in `layer`,
    /// which must not be changed any more, and its parent is published.
    pub fn publish(&self, lineage: Lineage, layer: impl AsFd) -> Result<(), PagerError> {
        self.done(&Request::publish(lineage), Some(layer.as_fd()))
    }

    /// A promised image will not come: a read that waits for it, or comes later,
    /// gets an I/O error.
    pub fn fail(&self, image: ImageId, reason: &str) -> Result<(), PagerError> {
        self.done(
            &Request::Fail {
                image,
                reason: reason.to_owned(),
            },
            None,
        )
    }

    /// The image cannot be opened any more, nor laid a layer over. A process that has it
    /// open keeps it.
    pub fn retire(&self, image: ImageId) -> Result<(), PagerError> {
        self.done(&Request::Retire { image }, None)
    }

    /// Returns the use of an image.
    pub fn stats(&self, image: ImageId) -> Result<ImageUse, PagerError> {
        let answer = self.call(&Request::Stats { image }, None)?;
        let Answer::Stats(usage) = answer else {
            return Err(PagerError::Answer);
        };
        Ok(usage)
    }

    /// All images that are not retired.
    pub fn list(&self) -> Result<Vec<ImageView>, PagerError> {
        let answer = self.call(&Request::List, None)?;
        let Answer::List(images) = answer else {
            return Err(PagerError::Answer);
        };
        Ok(images)
    }

    /// Listens to other hosts at `at`; answers where. At one address in the life of
    /// a pager; to ask for it again is no error.
    pub fn listen(&self, at: SocketAddr) -> Result<SocketAddr, PagerError> {
        let answer = self.call(&Request::Listen { at }, None)?;
        let Answer::Listening(at) = answer else {
            return Err(PagerError::Answer);
        };
        Ok(at)
    }

    /// Serves an image, which must be all here, to other hosts until it is withdrawn.
    pub fn offer(&self, image: ImageId, offering: Offering) -> Result<(), PagerError> {
        self.done(&Request::Offer { image, offering }, None)
    }

    /// Serves it to them no more: what they lack then is lost to them.
    pub fn withdraw(&self, image: ImageId, key: PeerKey) -> Result<(), PagerError> {
        self.done(&Request::Withdraw { image, key }, None)
    }

    /// An image comes from another host: its file exists from now on. Reads wait for
    /// the pages they need, and fail if these cannot come any more.
    pub fn fetch(&self, image: ImageId, fetching: Fetching) -> Result<(), PagerError> {
        self.done(&Request::Fetch { image, fetching }, None)
    }

    /// Has all of an image come, so that it does not depend on the other host.
    pub fn settle(&self, image: ImageId) -> Result<(), PagerError> {
        self.done(&Request::Settle { image }, None)
    }

    /// Returns the progress of an image's arrival.
    pub fn arrival(&self, image: ImageId) -> Result<Arrival, PagerError> {
        let answer = self.call(&Request::Arrival { image }, None)?;
        let Answer::Arrival(arrival) = answer else {
            return Err(PagerError::Answer);
        };
        Ok(arrival)
    }

    /// Lists the traffic between this host and others since the pager began.
    pub fn links(&self) -> Result<Vec<LinkUse>, PagerError> {
        let answer = self.call(&Request::Links, None)?;
        let Answer::Links(links) = answer else {
            return Err(PagerError::Answer);
        };
        Ok(links)
    }

    /// Returns the pages of an image that read otherwise than another's; both must be all here.
    pub fn changes(&self, image: ImageId, since: ImageId) -> Result<Vec<Run>, PagerError> {
        self.runs(&Request::Changes { image, since })
    }

    /// Returns stretches of an image's pages that are as if drawn: encrypted, or compressed
    /// already. Takes time for each of its pages.
    pub fn noise(&self, image: ImageId) -> Result<Vec<Run>, PagerError> {
        self.runs(&Request::Noise { image })
    }

    /// Returns the working set of an image, which must be all here: what clones of it are
    /// expected to want.
    pub fn expected(&self, image: ImageId) -> Result<Vec<Run>, PagerError> {
        self.runs(&Request::Expected { image })
    }

    /// Returns what clones here have touched of an image, in that order.
    pub fn touched(&self, image: ImageId) -> Result<Vec<Run>, PagerError> {
        self.runs(&Request::Touched { image })
    }

    /// Tells what clones elsewhere have touched of an image.
    pub fn touched_elsewhere(&self, image: ImageId, runs: Vec<Run>) -> Result<(), PagerError> {
        self.done(&Request::TouchedElsewhere { image, runs }, None)
    }

    fn runs(&self, request: &Request) -> Result<Vec<Run>, PagerError> {
        let answer = self.call(request, None)?;
        let Answer::Runs(runs) = answer else {
            return Err(PagerError::Answer);
        };
        Ok(runs)
    }

    /// Has the pager end and one of `program` take over all it serves. Returns
    /// when the other answers.
    pub fn replace(&self, program: &Path) -> Result<(), PagerError> {
        let before = self.pid()?;
        let program = program.to_owned();
        self.done(&Request::Replace { program }, None)?;
        let begun = Instant::now();
        loop {
            match self.pid() {
                Ok(pid) if pid != before => return Ok(()),
                Ok(_) | Err(_) if begun.elapsed() < self.patience => thread::sleep(RETRY_PAUSE),
                Ok(_) => return Err(broken(ErrorKind::TimedOut.into())),
                Err(error) => return Err(error),
            }
        }
    }

    /// The process that answers.
    pub fn pid(&self) -> Result<u32, PagerError> {
        Ok(greet(&self.socket, self.patience)?.1)
    }

    /// Checks that the pager answers.
    pub fn ping(&self) -> Result<(), PagerError> {
        self.done(&Request::Ping, None)
    }

    /// Ends the pager; [`PagerRefusal::InUse`] if files are open and it is to wait.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), PagerError> {
        self.done(&Request::Shutdown(how), None)
    }

    fn done(&self, request: &Request, file: Option<BorrowedFd<'_>>) -> Result<(), PagerError> {
        let Answer::Done = self.call(request, file)? else {
            return Err(PagerError::Answer);
        };
        Ok(())
    }

    fn call(&self, request: &Request, file: Option<BorrowedFd<'_>>) -> Result<Answer, PagerError> {
        let mut turn = self.pool.turn(self.patience)?;
        let first = match turn.idle() {
            Some(stream) => exchange(stream, request, file),
            None => greet(&self.socket, self.patience)
                .and_then(|(stream, _)| exchange(stream, request, file)),
        };
        let (stream, answer, again) = match first {
            Ok((stream, answer)) => (stream, answer, false),
            Err(PagerError::Transport { .. }) => {
                let (stream, _) = greet(&self.socket, self.patience)?;
                let (stream, answer) = exchange(stream, request, file)?;
                (stream, answer, true)
            }
            Err(error) => return Err(error),
        };
        turn.keep(stream);
        match answer {
            Err(refusal) if again && request.has_had_effect(&refusal) => Ok(Answer::Done),
            answer => answer.map_err(PagerError::Refused),
        }
    }
}

type Exchanged = (UnixStream, Result<Answer, PagerRefusal>);

fn exchange(
    stream: UnixStream,
    request: &Request,
    file: Option<BorrowedFd<'_>>,
) -> Result<Exchanged, PagerError> {
    send(&stream, request, file).map_err(broken)?;
    let answer = hear(&stream)?;
    Ok((stream, answer))
}

/// Connects, and makes sure that both speak the same version. Answers, too,
/// which process is there.
fn greet(socket: &Path, patience: Duration) -> Result<(UnixStream, u32), PagerError> {
    let connect = |source| PagerError::Connect {
        socket: PathBuf::from(socket),
        source,
    };
    let stream = UnixStream::connect(socket).map_err(connect)?;
    stream.set_read_timeout(Some(patience)).map_err(connect)?;
    stream.set_write_timeout(Some(patience)).map_err(connect)?;
    send(&stream, &Hello::ours(), None).map_err(broken)?;
    let hello = hear::<Hello>(&stream)?;
    match hello.version {
        VERSION => Ok((stream, hello.pid)),
        theirs => Err(PagerError::Version {
            theirs,
            ours: VERSION,
        }),
    }
}

fn hear<T: serde::de::DeserializeOwned>(stream: &UnixStream) -> Result<T, PagerError> {
    match receive(stream).map_err(broken)? {
        Some((message, _)) => Ok(message),
        None => Err(broken(ErrorKind::UnexpectedEof.into())),
    }
}

fn broken(source: io::Error) -> PagerError {
    match [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&source.kind()) {
        true => PagerError::Silent,
        false => PagerError::Transport { source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn hello(listener: &UnixListener) -> UnixStream {
        let (stream, _) = listener.accept().expect("a client");
        hear::<Hello>(&stream).expect("a greeting");
        send(&stream, &Hello::ours(), None).expect("sends");
        stream
    }

    #[test]
    fn a_pager_that_does_not_answer_is_said_not_to_and_is_not_asked_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("listens");
        let patience = Duration::from_millis(200);
        thread::scope(|scope| {
            let connecting = scope.spawn(|| PagerClient::connect_with(&socket, patience));
            let stream = hello(&listener);
            let client = connecting.join().expect("no panic").expect("connects");
            let error = client.ping().expect_err("nothing is answered");
            assert!(error.is_timeout(), "{error}");
            assert!(
                error.to_string().contains("not answered in time"),
                "{error}"
            );
            drop(stream);
            listener.set_nonblocking(true).expect("set");
            assert!(listener.accept().is_err(), "asked again");
        });
    }

    #[test]
    fn call_that_takes_long_holds_up_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("listens");
        let done: Result<Answer, PagerRefusal> = Ok(Answer::Done);
        thread::scope(|scope| {
            let connecting =
                scope.spawn(|| PagerClient::connect_with(&socket, Duration::from_secs(60)));
            let first = hello(&listener);
            let client = connecting.join().expect("no panic").expect("connects");
            let (one, other) = (client.clone(), client);
            let slow = scope.spawn(move || one.ping());
            hear::<Request>(&first).expect("a request");
            let quick = scope.spawn(move || other.ping());
            let second = hello(&listener);
            hear::<Request>(&second).expect("a request, though the first has no answer");
            send(&second, &done, None).expect("sends");
            assert!(quick.join().expect("no panic").is_ok());
            send(&first, &done, None).expect("sends");
            assert!(slow.join().expect("no panic").is_ok());
        });
    }
}
