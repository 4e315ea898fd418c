//! Removing pieces that nothing names: see [`collect`](mod@collect) for the order of its steps.

use crate::objects::{AT_ONCE, Listed, Objects};
use forkyard_objects::{
    Digest, Manifest,
    collect::{self, Collection},
    layout,
    order::{Done, Failed},
};
use futures::{StreamExt, TryStreamExt, stream};
use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

/// Things that a collection has seen.
#[derive(Debug, Default)]
struct Seen {
    pieces: Vec<(Digest, u64)>,
    leased: HashSet<Digest>,
    named: HashSet<Digest>,
}

/// Collects.
pub async fn collect(objects: &Objects) -> Result<Done, Failed> {
    let mark = format!("{}/{}", layout::COLLECTIONS, uuid::Uuid::new_v4().simple());
    let collected = steps(objects, &mark).await;
    if collected.is_err() {
        // Or it goes when it is old.
        let _ = objects.delete(&mark).await;
    }
    collected
}

async fn steps(objects: &Objects, mark: &str) -> Result<Done, Failed> {
    let begun = Instant::now();
    let (mut seen, mut now, mut done) = (Seen::default(), 0, Done::default());
    let mut at = Collection::Mark;
    loop {
        match at {
            Collection::Mark => now = objects.write_and_see(mark, Vec::new()).await?,
            Collection::Pieces => {
                let listed = objects.under(layout::PIECES).await?;
                let piece = |it: &Listed| Some((it.piece()?, it.bytes));
                seen.pieces = listed.iter().filter_map(piece).collect();
            }
            Collection::Leases => leases(objects, now, &mut seen).await?,
            Collection::Manifests => manifests(objects, &mut seen).await?,
            Collection::Delete => done = delete(objects, &seen, begun).await?,
            Collection::Unmark => objects.delete(mark).await?,
            Collection::End => return Ok(done),
        }
        at = at.after();
    }
}

/// Reads all leases; removes those, and marks, of processes that died.
async fn leases(objects: &Objects, now: u64, seen: &mut Seen) -> Result<(), Failed> {
    let mut dead = Vec::new();
    objects
        .read_under(layout::LEASES, |name, text, stored| {
            if collect::is_stale(stored, now) {
                dead.push(name);
                return Ok(());
            }
            let pieces = serde_json::from_slice::<Vec<Digest>>(&text);
            let pieces = pieces.map_err(|error| unclear(&name, &error))?;
            seen.leased.extend(pieces);
            Ok(())
        })
        .await?;
    let marks = objects.under(layout::COLLECTIONS).await?.into_iter();
    let marks = marks.filter(|it| collect::is_stale(it.stored, now));
    for name in dead.into_iter().chain(marks.map(|it| it.name)) {
        objects.delete(&name).await?;
    }
    Ok(())
}

/// Reads all manifests, of any signer: here they only keep pieces.
async fn manifests(objects: &Objects, seen: &mut Seen) -> Result<(), Failed> {
    objects
        .read_under(layout::SUBSTRATES, |name, object, _| {
            let text = object.splitn(3, |byte| *byte == b'\n').nth(2);
            let manifest = serde_json::from_slice::<Manifest>(text.unwrap_or_default());
            // What may name pieces is no garbage until it is removed.
            let manifest = manifest.map_err(|error| unclear(&name, &error))?;
            seen.named.extend(manifest.pieces().map(|it| it.digest));
            Ok(())
        })
        .await
}

fn unclear(name: &str, error: &serde_json::Error) -> Failed {
    Failed::Store(format!(
        "nothing is collected while {name} cannot be read: {error}"
    ))
}

async fn delete(objects: &Objects, seen: &Seen, begun: Instant) -> Result<Done, Failed> {
    let garbage = seen.pieces.iter().copied();
    let garbage =
        garbage.filter(|(piece, _)| collect::is_garbage(*piece, &seen.leased, &seen.named));
    let late = Duration::from_secs(collect::SAFE);
    stream::iter(garbage)
        .map(Ok)
        .map_ok(|(piece, bytes)| async move {
            if begun.elapsed() > late {
                let why = "the collection took too long; what is left goes with the next one";
                return Err(Failed::Store(why.into()));
            }
            objects.delete(&layout::piece(piece)).await?;
            Ok(bytes)
        })
        .try_buffer_unordered(AT_ONCE)
        .try_fold(Done::default(), |done, bytes| async move {
            Ok(Done {
                removed: done.removed + 1,
                freed: done.freed + bytes,
                ..done
            })
        })
        .await
}
