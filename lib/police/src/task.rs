//! Task that goes on for as long as there is police.

use crate::{
    Capped, Hands, PoliceError, Suspect,
    record::{Order, Record},
    sample::{is_there, percent, seen, suspect},
    term::{End, Term, Wake},
};
use forkyard_friendly::{Finding, Police, PoliceConfig};
use forkyard_types::{PoliceCap, PoliceFinding, PoliceState, Usage, VmId};
use std::{
    error::Error,
    iter::successors,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep},
};

/// Findings that are kept.
const KEPT: usize = 100;
/// Trials to let a VM go, and the time between two.
const TRIALS: u32 = 3;
const AGAIN: Duration = Duration::from_millis(200);

/// The police, at work. The one writer of its state, but for the time it is to go on, and of its
/// record.
#[derive(Debug)]
pub(crate) struct Task<H> {
    pub(crate) hands: Arc<H>,
    pub(crate) record: Record,
    pub(crate) term: Arc<Term>,
    pub(crate) state: Arc<watch::Sender<PoliceState>>,
}

impl<H: Hands> Task<H> {
    /// Caps again what an earlier daemon has capped, and goes on.
    pub(crate) async fn resume(self) -> Result<PoliceState, PoliceError> {
        // First: a process that has ended since may have left its number to another.
        let capped = match self.hands.usage().await {
            Ok(now) => {
                self.look(&now);
                self.state.borrow().capped.clone()
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn Error, "none is capped again");
                Vec::new()
            }
        };
        for cap in capped.into_iter().filter(|_| self.term.goes_on()) {
            let suspect = Suspect {
                vm: cap.vm,
                name: cap.guest,
                pid: cap.pid,
            };
            // The dispatcher may have ended since, or that daemon just before it was capped.
            match self.hands.cap(&suspect, cap.percent).await {
                Ok(Capped::Yes) => {}
                Ok(Capped::Gone) => self.forget(suspect.pid),
                Err(error) => {
                    tracing::error!(error = &error as &dyn Error, vm = %suspect.name, "not capped again");
                }
            }
        }
        self.run().await
    }

    /// Samples until it ends, and then lets all go that it has capped.
    pub(crate) async fn run(self) -> Result<PoliceState, PoliceError> {
        let end = self.go_on().await;
        self.let_go(end).await
    }

    /// Writes the record as things are now.
    pub(crate) async fn keep(&self) -> Result<(), PoliceError> {
        self.keep_until(self.term.time()).await
    }

    async fn keep_until(&self, until: Option<SystemTime>) -> Result<(), PoliceError> {
        let order = Order::of(self.state.borrow().clone(), until);
        let record = self.record.clone();
        let written = spawn_blocking(move || record.write(&order)).await;
        written
            .map_err(PoliceError::Broke)?
            .map_err(|source| PoliceError::Record {
                path: self.record.path().to_owned(),
                source,
            })
    }

    async fn go_on(&self) -> End {
        let settings = self.state.borrow().settings;
        let pause = Duration::from_secs_f64(settings.interval_s);
        let mut police = Police::new(PoliceConfig {
            waiting: settings.waiting,
            ..PoliceConfig::default()
        });
        let mut before: Option<Usage> = None;
        loop {
            match self.hands.usage().await {
                Ok(now) => {
                    self.look(&now);
                    if let Some(before) = &before {
                        for found in police.sample(&seen(before, &now, settings.by)) {
                            self.name(&now, found).await;
                        }
                    }
                    before = Some(now);
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn Error, "the police has no sample");
                }
            }
            let next = Instant::now() + pause;
            loop {
                match self.term.wait(next).await {
                    Wake::Sample => break,
                    Wake::Changed => self.keep_or_tell().await,
                    Wake::End(end) => return end,
                }
            }
        }
    }

    /// Takes note of the VMs there are: caps end with their processes.
    fn look(&self, now: &Usage) {
        self.state.send_modify(|state| {
            state.watched = u32::try_from(now.vms.len()).unwrap_or(u32::MAX);
            state.capped.retain(|cap| is_there(now, cap));
        });
    }

    /// Names a VM, and caps it if it is to be.
    async fn name(&self, now: &Usage, found: Finding<VmId>) {
        let Some(suspect) = suspect(now, found.guest) else {
            return;
        };
        let mut finding = PoliceFinding {
            number: 0,
            guest: suspect.name.clone(),
            vm: suspect.vm,
            before: found.before,
            fell_to: found.fell_to,
            used: found.used,
            share: found.share,
            missed: found.missed,
            capped_percent: None,
            problem: None,
        };
        // A VM that is capped, and is named all the same, is not held by the cap any more.
        if self.state.borrow().settings.enforce {
            match self.cap(&suspect, percent(found.share)).await {
                Ok(capped) => finding.capped_percent = capped,
                Err(problem) => finding.problem = Some(problem),
            }
        }
        tracing::info!(
            vm = %finding.guest,
            used = finding.used,
            share = finding.share,
            capped_percent = finding.capped_percent,
            problem = finding.problem.as_deref(),
            "a VM does not yield"
        );
        self.state.send_modify(|state| {
            finding.number = state.named.last().map_or(0, |last| last.number) + 1;
            state.named.push(finding);
            let over = state.named.len().saturating_sub(KEPT);
            state.named.drain(..over);
        });
        self.keep_or_tell().await;
    }

    /// Caps a VM; to how many per cent of a CPU. None if it has gone. An error is the reason, for
    /// people: then it is not capped, or is listed as capped.
    async fn cap(&self, suspect: &Suspect, percent: u32) -> Result<Option<u32>, String> {
        self.forget(suspect.pid);
        self.state.send_modify(|state| {
            state.capped.push(PoliceCap {
                vm: suspect.vm,
                guest: suspect.name.clone(),
                pid: suspect.pid,
                percent,
            });
        });
        // Before it is done: a daemon that dies here leaves nothing that the next does not know.
        if let Err(error) = self.keep().await {
            self.forget(suspect.pid);
            return Err(told(&error));
        }
        match self.hands.cap(suspect, percent).await {
            Ok(Capped::Yes) => Ok(Some(percent)),
            Ok(Capped::Gone) => {
                self.forget(suspect.pid);
                Ok(None)
            }
            Err(error) => {
                // Half of it may be done.
                match self.hands.release(suspect.pid).await {
                    Ok(()) => self.forget(suspect.pid),
                    Err(error) => {
                        tracing::error!(error = &error as &dyn Error, vm = %suspect.name, "it may be capped");
                    }
                }
                Err(format!("cannot cap {}: {}", suspect.name, told(&error)))
            }
        }
    }

    fn forget(&self, pid: u32) {
        self.state
            .send_modify(|state| state.capped.retain(|cap| cap.pid != pid));
    }

    /// Lets all go, and leaves the record as the next daemon is to find it.
    async fn let_go(&self, end: End) -> Result<PoliceState, PoliceError> {
        let capped = self.state.borrow().capped.clone();
        let mut failure = None;
        for cap in capped {
            match self.release(cap.pid).await {
                Ok(()) => self.forget(cap.pid),
                Err(error) => {
                    tracing::error!(error = &error as &dyn Error, vm = %cap.guest, "it stays capped");
                    failure.get_or_insert(error);
                }
            }
        }
        match end {
            // The next daemon tries once more, and does nothing else.
            End::Over if failure.is_some() => {
                if let Err(error) = self.keep_until(Some(SystemTime::now())).await {
                    tracing::error!(
                        error = &error as &dyn Error,
                        "the next daemon will not let them go"
                    );
                }
            }
            End::Over => {
                let record = self.record.clone();
                if let Ok(Err(error)) = spawn_blocking(move || record.remove()).await {
                    tracing::error!(%error, path = %self.record.path().display(), "not removed");
                }
            }
            End::Daemon => self.keep_or_tell().await,
        }
        let state = self.state.borrow().clone();
        match failure {
            None => Ok(state),
            Some(error) => Err(PoliceError::StayCapped {
                names: state.capped.into_iter().map(|cap| cap.guest).collect(),
                source: Box::new(error),
            }),
        }
    }

    /// Lets one go, if the dispatcher answers in time.
    async fn release(&self, pid: u32) -> Result<(), H::Error> {
        let mut trial = 1;
        loop {
            match self.hands.release(pid).await {
                Err(_) if trial < TRIALS => {
                    trial += 1;
                    sleep(AGAIN).await;
                }
                released => return released,
            }
        }
    }

    async fn keep_or_tell(&self) {
        if let Err(error) = self.keep().await {
            tracing::warn!(
                error = &error as &dyn Error,
                "the next daemon will not know of the police as it is"
            );
        }
    }
}

/// An error and its causes, for people.
fn told(error: &dyn Error) -> String {
    let causes = successors(Some(error), |cause| (*cause).source());
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    causes.join(": ")
}
