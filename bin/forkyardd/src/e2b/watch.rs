//! Folders that are watched: as streams, and by watchers that clients ask now and then.
//!
//! Watchers are kept here, each with a bounded queue; one not asked for a while ends, and all end
//! with the daemon.

use super::{envd::Call, reply::Failure};
use axum::body::Body;
use forkyard_e2b::{
    EventType, FilesystemEvent, OfWatcher, WatchRequest, WatchResponse, absolute, end, frame,
};
use forkyard_fork::{FilesOut, HostError};
use forkyard_types::{FileChange, FileEvent, FileKind, FileWatch, VmId};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

/// Most watchers of a sandbox.
const MOST: usize = 32;
/// Most events that wait for a client; the oldest go.
const EVENTS: usize = 10_000;
/// Time after which a watcher that was not asked ends.
const FORGOTTEN: Duration = Duration::from_secs(3600);

#[derive(Debug)]
struct Watcher {
    vm: VmId,
    events: Arc<Mutex<VecDeque<FilesystemEvent>>>,
    asked: Instant,
    task: JoinHandle<()>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The watchers of all sandboxes, by their ids.
#[derive(Clone, Debug, Default)]
pub struct Watchers(Arc<Mutex<HashMap<String, Watcher>>>);

/// Events of a folder, as they come.
struct Events {
    lines: FilesOut,
    pending: Vec<u8>,
}

impl Events {
    async fn of(call: &Call, asked: WatchRequest) -> Result<Self, Failure> {
        let path = absolute(&asked.path);
        let found = call.used().await?.stat_file(path.clone()).await?;
        if found.kind != FileKind::Folder && found.kind != FileKind::Link {
            return Err(Failure::invalid(format!("path is not a directory: {path}")));
        }
        let wanted = FileWatch {
            path,
            recursive: asked.recursive,
        };
        Ok(Self {
            lines: call.used().await?.watch_files(wanted).await?,
            pending: Vec::new(),
        })
    }

    /// The next one; none at the folder's end. Cancel-safe.
    async fn next(&mut self) -> Result<Option<FilesystemEvent>, HostError> {
        loop {
            while let Some(at) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=at).collect();
                // The first line is empty; a guest may say anything.
                if let Ok(event) = serde_json::from_slice(&line) {
                    return Ok(Some(told(event)));
                }
            }
            match self.lines.next().await? {
                Some(piece) => self.pending.extend(piece),
                None => return Ok(None),
            }
        }
    }
}

fn told(event: FileEvent) -> FilesystemEvent {
    FilesystemEvent {
        name: event.name,
        kind: match event.change {
            FileChange::Created => EventType::Create,
            FileChange::Written => EventType::Write,
            FileChange::Removed => EventType::Remove,
            FileChange::MovedAway => EventType::Rename,
            FileChange::Attributes => EventType::Chmod,
        },
    }
}

/// `WatchDir`.
pub async fn watch_dir(call: Call, asked: WatchRequest) -> Result<Body, Failure> {
    let events = Events::of(&call, asked).await?;
    let until = call.deadline.map(|deadline| Instant::now() + deadline);
    let rest = stream::unfold(Some((events, call.sign)), move |watched| async move {
        let (mut events, sign) = watched?;
        let too_late = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let piece = tokio::select! {
            event = events.next() => match event {
                Ok(Some(event)) => frame(&WatchResponse::Filesystem(event)),
                Ok(None) => return Some((end(), None)),
                Err(error) => return Some((Failure::from(error).end(), None)),
            },
            () = too_late => return Some((Failure::too_late().end(), None)),
            () = sleep(sign) => frame(&WatchResponse::Keepalive {}),
        };
        Some((piece, Some((events, sign))))
    });
    let first = frame(&WatchResponse::Start {});
    let all = stream::once(async { first }).chain(rest);
    Ok(Body::from_stream(all.map(Ok::<_, Infallible>)))
}

/// `CreateWatcher`.
pub async fn create(call: Call, asked: WatchRequest) -> Result<Value, Failure> {
    let watchers = &call.e2b.watchers;
    watchers.room(call.vm.id)?;
    let mut events = Events::of(&call, asked).await?;
    let queue: Arc<Mutex<VecDeque<FilesystemEvent>>> = Arc::default();
    let kept = queue.clone();
    let task = tokio::spawn(async move {
        while let Ok(Some(event)) = events.next().await {
            let mut queue = lock(&kept);
            if queue.len() >= EVENTS {
                queue.pop_front();
            }
            queue.push_back(event);
        }
    });
    let watcher = Watcher {
        vm: call.vm.id,
        events: queue,
        asked: Instant::now(),
        task,
    };
    let id = VmId::random().to_string();
    lock(&watchers.0).insert(id.clone(), watcher);
    Ok(json!({"watcherId": id}))
}

/// `GetWatcherEvents`.
pub async fn events(call: Call, asked: OfWatcher) -> Result<Value, Failure> {
    let mut watchers = lock(&call.e2b.watchers.0);
    let found = watchers.get_mut(&asked.watcher_id);
    let watcher = found
        .filter(|watcher| watcher.vm == call.vm.id)
        .ok_or_else(|| unknown(&asked))?;
    watcher.asked = Instant::now();
    let events: Vec<_> = lock(&watcher.events).drain(..).collect();
    Ok(json!({"events": events}))
}

/// `RemoveWatcher`.
pub async fn remove(call: Call, asked: OfWatcher) -> Result<Value, Failure> {
    let mut watchers = lock(&call.e2b.watchers.0);
    let is_its = |watcher: &Watcher| watcher.vm == call.vm.id;
    match watchers.get(&asked.watcher_id).is_some_and(is_its) {
        true => drop(watchers.remove(&asked.watcher_id)),
        false => return Err(unknown(&asked)),
    }
    Ok(json!({}))
}

fn unknown(asked: &OfWatcher) -> Failure {
    Failure::not_found(format!("watcher with id {:?} not found", asked.watcher_id))
}

impl Watchers {
    /// Ends those that are forgotten, and refuses one more of a sandbox that has too many.
    fn room(&self, vm: VmId) -> Result<(), Failure> {
        let mut watchers = lock(&self.0);
        watchers.retain(|_, watcher| {
            watcher.asked.elapsed() < FORGOTTEN && !watcher.task.is_finished()
        });
        match watchers.values().filter(|watcher| watcher.vm == vm).count() < MOST {
            true => Ok(()),
            false => Err(Failure::exhausted(format!(
                "limit of watchers reached: {MOST} of this sandbox"
            ))),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
