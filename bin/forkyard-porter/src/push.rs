//! Sending a substrate: see [`collect`] for the order of its steps.

use crate::objects::{AT_ONCE, Objects};
use forkyard_objects::{
    Digest, PIECE, Piece,
    collect::{self, Others, PushStep},
    layout,
    order::{Done, ExistingManifest, Failed, File},
};
use futures::{StreamExt, stream};
use object_store::PutMode;
use std::{
    collections::HashMap,
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// First and longest time between two looks for collections.
const LOOK: Duration = Duration::from_millis(200);
const SELDOM: Duration = Duration::from_secs(5);

/// Substrate that is sent.
#[derive(Debug)]
pub struct Pushed {
    /// Name of the substrate.
    pub name: String,
    /// Manifest of it.
    pub manifest: String,
    /// Files that hold its pieces.
    pub files: Vec<File>,
    /// Treatment of one of that name.
    pub over: ExistingManifest,
    /// Pieces that are there are read.
    pub verify: bool,
}

/// A lease, and when it was written last.
#[derive(Debug)]
struct Lease<'a> {
    objects: &'a Objects,
    name: String,
    text: Vec<u8>,
    renewed: Instant,
    /// Time of that, by the store's clock.
    stored: u64,
}

impl Lease<'_> {
    async fn write(&mut self) -> Result<(), Failed> {
        let begun = Instant::now();
        self.stored = self
            .objects
            .write_and_see(&self.name, self.text.clone())
            .await?;
        self.renewed = begun;
        Ok(())
    }
}

/// Sends what the store has not.
pub async fn push(objects: &Objects, pushed: Pushed) -> Result<Done, Failed> {
    let places = places(&pushed.files);
    let digests: Vec<&Digest> = places.keys().collect();
    let text = serde_json::to_vec(&digests).map_err(|error| Failed::Here(error.to_string()))?;
    let mut lease = Lease {
        objects,
        name: format!("{}/{}", layout::LEASES, uuid::Uuid::new_v4().simple()),
        text,
        renewed: Instant::now(),
        stored: 0,
    };
    let sent = steps(objects, &pushed, &places, &mut lease).await;
    if sent.is_err() {
        // Or it goes when it is old.
        let _ = objects.delete(&lease.name).await;
    }
    sent
}

async fn steps(
    objects: &Objects,
    pushed: &Pushed,
    places: &HashMap<Digest, Place<'_>>,
    lease: &mut Lease<'_>,
) -> Result<Done, Failed> {
    let mut done = Done::default();
    let mut wait = LOOK;
    let mut at = PushStep::Lease;
    loop {
        let mut others = Others::None;
        match at {
            PushStep::Lease => lease.write().await?,
            PushStep::Look => {
                let marks = objects.under(layout::COLLECTIONS).await?;
                let live = |stored| !collect::is_stale(stored, lease.stored);
                if marks.iter().any(|mark| live(mark.stored)) {
                    others = Others::Collecting;
                    sleep(wait).await;
                    wait = (wait * 2).min(SELDOM);
                    // By the clock of now, marks of the dead become old.
                    lease.write().await?;
                }
            }
            PushStep::Pieces => done = pieces(objects, places, pushed.verify, lease).await?,
            PushStep::Manifest => {
                if lease.renewed.elapsed() > Duration::from_secs(collect::SAFE) {
                    let why = "the store did not answer for so long that others may have collected what was sent";
                    return Err(Failed::Store(why.into()));
                }
                let mode = match pushed.over {
                    ExistingManifest::Nothing => PutMode::Create,
                    ExistingManifest::Replaced => PutMode::Overwrite,
                };
                let name = layout::manifest(&pushed.name);
                let manifest = pushed.manifest.clone().into_bytes();
                objects.write(&name, manifest, mode).await?;
            }
            // It is there, whatever becomes of the lease.
            PushStep::Release => {
                let _ = objects.delete(&lease.name).await;
            }
            PushStep::End => return Ok(done),
        }
        at = at.after(others);
    }
}

/// A place where a piece is.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    path: &'a Path,
    at: u64,
    piece: Piece,
}

/// One place for each piece.
fn places(files: &[File]) -> HashMap<Digest, Place<'_>> {
    let each = files.iter().flat_map(|file| {
        let starts = (0..).map(|number: u64| number * u64::from(PIECE));
        file.pieces.iter().zip(starts).map(|(piece, at)| {
            let path = file.path.as_path();
            let piece = *piece;
            (piece.digest, Place { path, at, piece })
        })
    });
    each.collect()
}

/// Sends pieces, and renews the lease meanwhile.
async fn pieces(
    objects: &Objects,
    places: &HashMap<Digest, Place<'_>>,
    verify: bool,
    lease: &mut Lease<'_>,
) -> Result<Done, Failed> {
    let mut sends = stream::iter(places.values())
        .map(|place| send(objects, *place, verify))
        .buffer_unordered(AT_ONCE);
    let mut ticks = interval(Duration::from_secs(collect::RENEW));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut done = Done::default();
    loop {
        tokio::select! {
            sent = sends.next() => match sent {
                Some(sent) => {
                    let sent = sent?;
                    done.moved += sent.moved;
                    done.shared += sent.shared;
                }
                None => return Ok(done),
            },
            _ = ticks.tick() => lease.write().await?,
        }
    }
}

async fn send(objects: &Objects, place: Place<'_>, verify: bool) -> Result<Done, Failed> {
    let Place { path, at, piece } = place;
    let name = layout::piece(piece.digest);
    let bytes = u64::from(piece.bytes);
    let there = match verify {
        true => match objects.piece(piece).await {
            Ok(_) => true,
            Err(Failed::Missing(_) | Failed::Damaged(_)) => false,
            Err(other) => return Err(other),
        },
        // One that was cut short is no piece.
        false => objects
            .facts(&name)
            .await?
            .is_some_and(|it| it.size == bytes),
    };
    if there {
        return Ok(Done {
            shared: bytes,
            ..Done::default()
        });
    }
    let content = read(path.to_owned(), at, piece).await?;
    objects.write(&name, content, PutMode::Overwrite).await?;
    Ok(Done {
        moved: bytes,
        ..Done::default()
    })
}

/// Bytes of a piece, which are to be what its name says.
async fn read(path: PathBuf, at: u64, piece: Piece) -> Result<Vec<u8>, Failed> {
    let read = move || {
        let failed = |why: String| Failed::Here(format!("{}: {why}", path.display()));
        let length = usize::try_from(piece.bytes).map_err(|error| failed(error.to_string()))?;
        let mut content = vec![0; length];
        fs::File::open(&path)
            .and_then(|file| file.read_exact_at(&mut content, at))
            .map_err(|error| failed(error.to_string()))?;
        match Piece::of(&content) == Some(piece) {
            true => Ok(content),
            false => Err(failed("it is not as it was: it is damaged".into())),
        }
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.unwrap_or_else(|error| Err(Failed::Here(error.to_string())))
}
