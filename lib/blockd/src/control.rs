//! Control socket: one thread a connection, one request at a time.

use crate::{
    Answer, Hot, Request, exports::writer_name, lines, mirrors, passes::Passes, protocol::Encrypt,
    protocol::MAX_LINE,
};
use forkyard_replicate::{Knobs, Purpose};
use forkyard_volume::{BlockNo, CompactionPolicy, Opening, Takeover, View, WriterEpoch};
use forkyard_volume_store::{Ahead, BaseFacts, Blame, Library, StoreError};
use std::{
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    os::unix::net::UnixStream,
};

/// Bytes of a stream that are written together.
const STREAM: usize = 256 << 10;

/// Action of the server after a connection.
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
            Ok(Request::Send {
                name,
                snapshot,
                since,
                hot,
                to,
            }) => match library.open(&name).and_then(|store| {
                // Asked for before the answer: what is not there is no stream.
                store.snapshot_called(&snapshot)?;
                since
                    .as_deref()
                    .map(|it| store.snapshot_called(it))
                    .transpose()?;
                Ok(store)
            }) {
                Ok(store) => {
                    tell(stream, &Answer::Stream {})?;
                    let mut out = BufWriter::with_capacity(STREAM, stream);
                    // The other end sees that it has no end.
                    let ahead =
                        hot.map_or(Ahead::All, |Hot { most, from }| Ahead::Hot { most, from });
                    let what = (&*snapshot, since.as_deref());
                    let sent = store.send_to(to.as_deref(), what, &ahead, &mut out);
                    sent.map_err(io::Error::other)?;
                    continue;
                }
                Err(error) => failed(&error),
            },
            Ok(Request::Receive { name, epoch }) => {
                match library.receive(&name, epoch.map(WriterEpoch), &mut reader) {
                    Ok(()) => Answer::Done {},
                    Err(error) => {
                        // What else follows is no request.
                        tell(stream, &failed(&error))?;
                        return Ok(After::GoOn);
                    }
                }
            }
            Ok(Request::Serve {
                name,
                snapshot,
                to,
                fill,
            }) => {
                let found = library.open(&name).and_then(|store| {
                    store.snapshot_called(&snapshot)?;
                    Ok(store)
                });
                match found {
                    Ok(store) => {
                        tell(stream, &Answer::Stream {})?;
                        let asks = (to.as_deref(), purpose(fill));
                        lines::answer(stream, &mut reader, (&store, &snapshot), asks)?;
                        return Ok(After::GoOn);
                    }
                    Err(error) => failed(&error),
                }
            }
            Ok(Request::Mirror { name, to }) => match library.open(&name) {
                Ok(store) => {
                    tell(stream, &Answer::Stream {})?;
                    if let Err(error) = mirrors::push(stream, &mut reader, &store, &to) {
                        tracing::debug!(%error, volume = name, host = to, "line broken");
                    }
                    return Ok(After::GoOn);
                }
                Err(error) => failed(&error),
            },
            Ok(Request::Hold { name, from }) => {
                tell(stream, &Answer::Stream {})?;
                let of = (&*name, &*from);
                if let Err(error) = mirrors::hold(stream, &mut reader, library, of) {
                    tracing::debug!(%error, volume = name, host = from, "line broken");
                }
                return Ok(After::GoOn);
            }
            Ok(Request::Supply {
                name,
                id,
                snapshot,
                fill,
            }) => {
                let purpose = purpose(fill);
                let found = library.open(&name).and_then(|store| {
                    let asking = match store.id_text() == id {
                        true => store.ask(&snapshot, purpose)?,
                        false => return Err(StoreError::OtherVolume(name)),
                    };
                    Ok((store, asking))
                });
                match found {
                    Ok((store, asking)) => {
                        tell(stream, &Answer::Stream {})?;
                        let line = (&*store, asking);
                        // A host that goes away is nothing of note.
                        if let Err(error) = lines::ask(stream, &mut reader, line, purpose) {
                            tracing::debug!(%error, volume = store.name(), "line broken");
                        }
                        return Ok(After::GoOn);
                    }
                    Err(error) => failed(&error),
                }
            }
            Ok(request) => answer(request, library, passes).unwrap_or_else(|error| failed(&error)),
        };
        tell(stream, &answer)?;
        if ends {
            return Ok(After::End);
        }
    }
}

fn purpose(fill: bool) -> Purpose {
    match fill {
        true => Purpose::Fill,
        false => Purpose::Demand,
    }
}

fn tell(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(answer)?;
    bytes.push(b'\n');
    stream.write_all(&bytes)
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
        Request::Create {
            name,
            size,
            encrypt,
        } => {
            library.create(&name, size, &Encrypt::at_rest(encrypt))?;
        }
        Request::Branch {
            name,
            volume,
            snapshot,
        } => {
            library.branch(&name, BaseFacts { volume, snapshot })?;
        }
        Request::List {} => return Ok(Answer::Volumes(library.names()?)),
        Request::Inspect { name } => {
            return Ok(Answer::Volume(Box::new(library.inspect(&name)?.into())));
        }
        Request::Open { name, takeover } => {
            let takeover = match takeover {
                true => Takeover::Allowed,
                false => Takeover::Refused,
            };
            let store = library.open(&name)?;
            store.refuse_held()?;
            let epoch = store.open_writer(takeover)?;
            let export = writer_name(&name, epoch);
            return Ok(Answer::Opened { export });
        }
        Request::Close { name, epoch } => {
            let store = library.open(&name)?;
            match (epoch.map(WriterEpoch), store.writer()) {
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
            library.drop_snapshot(&name, &snapshot)?;
        }
        Request::Counts {} => {
            let counts = library.opened().iter().map(|it| it.counts()).collect();
            return Ok(Answer::Counts(counts));
        }
        Request::Changed { name, since } => {
            return Ok(Answer::Blocks(library.open(&name)?.changed(&since)?.0));
        }
        // By the connection, which they are followed or answered by a stream on.
        Request::Send { .. }
        | Request::Receive { .. }
        | Request::Serve { .. }
        | Request::Mirror { .. }
        | Request::Hold { .. }
        | Request::Supply { .. } => {}
        Request::SetMirrors { name, plan } => library.open(&name)?.set_mirrors(plan)?,
        Request::Promote { name } => library.promote(&name)?,
        Request::Why { name, block } => {
            let why = library.open(&name)?.why(BlockNo(block))?;
            return Ok(Answer::Why(Box::new(why)));
        }
        Request::Tune { name, k, s } => {
            let store = library.open(&name)?;
            let now = store.knobs();
            store.tune(Knobs {
                k: k.unwrap_or(now.k),
                s: s.unwrap_or(now.s),
            })?;
        }
        Request::Need { name, snapshot, by } => library.open(&name)?.need(&snapshot, &by)?,
        Request::Unneed { name, snapshot, by } => library.open(&name)?.unneed(&snapshot, &by)?,
        Request::Needs {} => return Ok(Answer::Needs(library.needs()?)),
        Request::Resize { name, size } => library.open(&name)?.resize(size)?,
        Request::Remove { name } => library.remove(&name)?,
        Request::Import {
            name,
            file,
            size,
            encrypt,
        } => library.import(&name, &file, size, &Encrypt::at_rest(encrypt))?,
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
            let policy = CompactionPolicy {
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
