//! Handle of the police: begins it, shows it, ends it.

use crate::{
    Hands, PoliceError,
    record::Record,
    task::Task,
    term::{End, Limited, Term},
};
use forkyard_types::{PoliceSettings, PoliceState};
use std::{
    error::Error,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{Mutex, watch},
    task::{JoinHandle, spawn_blocking},
    time::Instant,
};

/// Name of the record, in the daemon's run folder.
const RECORD: &str = "police.json";

/// The police of a host: none, or one. Clones are of the same.
#[derive(Debug)]
pub struct Station<H>(Arc<Inner<H>>);

impl<H> Clone for Station<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[derive(Debug)]
struct Inner<H> {
    hands: Arc<H>,
    record: Record,
    /// Held while one begins or ends.
    duty: Mutex<Option<Duty>>,
}

/// The police, seen from requests.
#[derive(Debug)]
struct Duty {
    term: Arc<Term>,
    state: Arc<watch::Sender<PoliceState>>,
    task: JoinHandle<Result<PoliceState, PoliceError>>,
}

impl Duty {
    fn seen(&self) -> PoliceState {
        self.state.borrow().clone()
    }

    fn goes_on(&self) -> bool {
        !self.task.is_finished() && self.term.goes_on()
    }

    async fn ended(self) -> Result<PoliceState, PoliceError> {
        self.task.await.map_err(PoliceError::Broke)?
    }
}

impl<H: Hands> Station<H> {
    /// No police yet. Its record is in this run folder.
    pub fn new(hands: H, run: &Path) -> Self {
        Self(Arc::new(Inner {
            hands: Arc::new(hands),
            record: Record::at(run.join(RECORD)),
            duty: Mutex::new(None),
        }))
    }

    /// Begins the police again that an earlier daemon had, if it had one; what was capped is
    /// known again, and capped again. Before any other call. Not cancel-safe: what is on record may
    /// not go on.
    pub async fn resume(&self) {
        let record = self.0.record.clone();
        let order = match spawn_blocking(move || record.read()).await {
            Ok(Ok(Some(order))) => order,
            Ok(Ok(None)) | Err(_) => return,
            Ok(Err(error)) => {
                let path = self.0.record.path().display();
                tracing::error!(%error, %path, "unreadable: VMs may be capped (forkyard sched show)");
                return;
            }
        };
        let capped = order.state.capped.len();
        tracing::info!(capped, "the police goes on");
        let until = order.until().and_then(|until| {
            let left = until.duration_since(SystemTime::now()).unwrap_or_default();
            Instant::now().checked_add(left)
        });
        let task = self.task(order.state, until);
        *self.0.duty.lock().await = Some(start(task, Task::resume));
    }

    /// Begins it, or has the one that there is go on for the time that the settings say, if it
    /// would not go on longer. Not
    /// cancel-safe: it may have begun.
    pub async fn begin(&self, settings: PoliceSettings) -> Result<PoliceState, PoliceError> {
        check(&settings)?;
        let time = settings
            .for_s
            .map(|seconds| Duration::from_secs(seconds.into()));
        let until = time.and_then(|time| Instant::now().checked_add(time));
        let mut duty = self.0.duty.lock().await;
        if let Some(on) = &*duty
            && on.goes_on()
        {
            if !are_alike(&on.state.borrow().settings, &settings) {
                return Err(PoliceError::Other);
            }
            if let Some(limited) = on.term.extend(until) {
                on.state.send_modify(|state| {
                    state.settings.for_s = match limited {
                        Limited::Yes => settings.for_s,
                        Limited::No => None,
                    }
                });
                return Ok(on.seen());
            }
        }
        let mut capped = Vec::new();
        if let Some(last) = duty.take() {
            let state = last.state.clone();
            if last.ended().await.is_err() {
                // Then this one lets them go.
                capped.clone_from(&state.borrow().capped);
            }
        }
        if settings.enforce {
            let scheduled = self.0.hands.scheduled().await;
            let scheduled = scheduled.map_err(|error| PoliceError::Host(Box::new(error)))?;
            if let Some(policy) = scheduled {
                return Err(PoliceError::Scheduled { policy });
            }
        }
        let state = PoliceState {
            settings,
            capped,
            ..PoliceState::default()
        };
        let task = self.task(state, until);
        task.keep().await?;
        let on = duty.insert(start(task, Task::run));
        Ok(on.seen())
    }

    /// Returns what it has seen so far. Cancel-safe.
    pub async fn state(&self) -> Result<PoliceState, PoliceError> {
        let duty = self.0.duty.lock().await;
        let on = duty.as_ref().filter(|on| on.goes_on());
        Ok(on.ok_or(PoliceError::None)?.seen())
    }

    /// Ends it; returns once all that it capped are let go. Not cancel-safe: it ends all the
    /// same.
    pub async fn end(&self) -> Result<PoliceState, PoliceError> {
        let mut duty = self.0.duty.lock().await;
        let Some(on) = duty.take() else {
            return Err(PoliceError::None);
        };
        if !on.goes_on() {
            // By itself, and it may have left some capped.
            on.ended().await?;
            return Err(PoliceError::None);
        }
        on.term.end(End::Over);
        on.ended().await
    }

    /// Has it rest until the next daemon resumes it: for a daemon that ends. Not cancel-safe: it may
    /// rest without a record.
    pub async fn close(&self) {
        let Some(on) = self.0.duty.lock().await.take() else {
            return;
        };
        on.term.end(End::Daemon);
        if let Err(error) = on.ended().await {
            tracing::error!(error = &error as &dyn Error, "the police did not end well");
        }
    }

    fn task(&self, state: PoliceState, until: Option<Instant>) -> Task<H> {
        Task {
            hands: self.0.hands.clone(),
            record: self.0.record.clone(),
            term: Arc::new(Term::until(until)),
            state: Arc::new(watch::Sender::new(state)),
        }
    }
}

fn start<H: Hands, F>(task: Task<H>, work: impl FnOnce(Task<H>) -> F) -> Duty
where
    F: Future<Output = Result<PoliceState, PoliceError>> + Send + 'static,
{
    let (term, state) = (task.term.clone(), task.state.clone());
    let task = tokio::spawn(work(task));
    Duty { term, state, task }
}

/// Tells whether two differ in nothing but the time.
fn are_alike(one: &PoliceSettings, other: &PoliceSettings) -> bool {
    PoliceSettings {
        for_s: other.for_s,
        ..*one
    } == *other
}

fn check(settings: &PoliceSettings) -> Result<(), PoliceError> {
    let fine = [
        (
            (0.1..=60.0).contains(&settings.interval_s),
            "interval_s must be 0.1 to 60",
        ),
        (
            settings.waiting > 0.0 && settings.waiting <= 1.0,
            "waiting must be over 0, at most 1",
        ),
        (settings.for_s != Some(0), "for_s must be 1 or more"),
    ];
    match fine.into_iter().find(|(fine, _)| !fine) {
        None => Ok(()),
        Some((_, why)) => Err(PoliceError::Settings(why)),
    }
}

#[cfg(test)]
mod tests;
