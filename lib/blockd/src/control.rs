//! Control socket: one thread a connection, one request at a time.

use crate::{Answer, Request, exports::writer_name, passes::Passes, protocol::MAX_LINE};
use forkyard_volume::{Epoch, Opening, Policy, Takeover, View};
use forkyard_volume_store::{Blame, Library, StoreError};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
};

/// What becomes of the server after a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    GoOn,
    End,
}

/// Answers requests until the manager leaves.
pub(crate) fn serve(stream: &UnixStream, library: &Library, passes: &Passes) -> io::Result<After> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        reader
            .by_ref()
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(After::GoOn);
        }
        let request = serde_json::from_slice::<Request>(&line);
        let ends = matches!(request, Ok(Request::End {}));
        let answer = match request {
            Err(error) => Answer::Failed {
                blame: Blame::Caller,
                why: format!("request is not understood: {error}"),
            },
            Ok(request) => answer(request, library, passes).unwrap_or_else(|error| failed(&error)),
        };
        let mut bytes = serde_json::to_vec(&answer)?;
        bytes.push(b'\n');
        let mut stream = stream;
        stream.write_all(&bytes)?;
        if ends {
            return Ok(After::End);
        }
    }
}

/// Failure with its causes.
fn failed(error: &StoreError) -> Answer {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    Answer::Failed {
        blame: error.blame(),
        why: text,
    }
}

fn answer(request: Request, library: &Library, passes: &Passes) -> Result<Answer, StoreError> {
    match request {
        Request::Create { name, size } => {
            library.create(&name, size)?;
        }
        Request::List {} => return Ok(Answer::Volumes(library.names()?)),
        Request::Inspect { name } => {
            return Ok(Answer::Volume(library.inspect(&name)?.into()));
        }
        Request::Open { name, takeover } => {
            let takeover = match takeover {
                true => Takeover::Allowed,
                false => Takeover::Refused,
            };
            let epoch = library.open(&name)?.open_writer(takeover)?;
            let export = writer_name(&name, epoch);
            return Ok(Answer::Opened { export });
        }
        Request::Close { name, epoch } => {
            let store = library.open(&name)?;
            match (epoch.map(Epoch), store.writer()) {
                (Some(meant), (now, opening)) if meant != now || opening == Opening::Closed => {}
                (Some(_) | None, (now, _)) => store.close_writer(now)?,
            }
        }
        Request::Pass { export } => {
            let export = passes.pass(&export);
            return Ok(Answer::Opened { export });
        }
        Request::Snapshot {
            name,
            snapshot,
            at_once,
        } => {
            let store = library.open(&name)?;
            match at_once {
                true => store.snapshot_now(&snapshot)?,
                false => store.snapshot(&snapshot)?,
            }
        }
        Request::Flush { name } => library.open(&name)?.flush()?,
        Request::DropSnapshot { name, snapshot } => {
            let store = library.open(&name)?;
            store.drop_snapshot(store.snapshot_called(&snapshot)?)?;
        }
        Request::Resize { name, size } => library.open(&name)?.resize(size)?,
        Request::Remove { name } => library.remove(&name)?,
        Request::Import { name, file, size } => library.import(&name, &file, size)?,
        Request::Export {
            name,
            snapshot,
            file,
        } => {
            let store = library.open(&name)?;
            let view = match snapshot {
                None => View::Current,
                Some(snapshot) => View::Snapshot(store.snapshot_called(&snapshot)?),
            };
            store.export(view, &file)?;
        }
        Request::Compact { name } => {
            let policy = Policy {
                dead_percent: 1,
                most: usize::MAX,
            };
            library.open(&name)?.tidy(policy)?;
        }
        Request::End {} => {
            for store in library.opened() {
                store.flush()?;
            }
        }
    }
    Ok(Answer::Done {})
}
