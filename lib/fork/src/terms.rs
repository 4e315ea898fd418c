//! Labels, environment and lifetime of VMs.
//!
//! ```text
//! run, keepalive --> ends at T --T--> removed, stopped or paused; then without an end
//!                          or kept as a checkpoint
//!                                `--failed--> once more a little later
//! ```
//!
//! `due` decides and reads no clock; a task of the host carries out. Times are those of the host's
//! clock, and recorded: a daemon that was away ends what was due meanwhile.

use crate::{Host, HostError, idle::check_idle, restart};
use forkyard_types::{
    AtEnd, CheckpointRequest, Ends, Idle, Labels, Lifetime, Restart, Terms, VmId, VmState, VmView,
};
use forkyard_vm::{Vm, lock};
use std::{collections::BTreeMap, error::Error, sync::Arc, time::Duration};
use tokio::{select, sync::Semaphore, time::sleep};

/// Seconds before what failed is tried again.
const AGAIN: u64 = 10;
/// Longest wait between two looks: the host's clock may be set.
const LOOK: u64 = 60;

/// Actions due now, and the seconds after which to look again.
#[derive(Debug, PartialEq, Eq)]
struct Due<T> {
    now: Vec<(T, AtEnd)>,
    again: u64,
}

/// Decides which VMs' time is up.
fn due<T>(ends: impl IntoIterator<Item = (T, Ends)>, now: u64) -> Due<T> {
    let mut due = Due {
        now: Vec::new(),
        again: LOOK,
    };
    for (vm, ends) in ends {
        match ends.at.checked_sub(now) {
            None | Some(0) => due.now.push((vm, ends.action)),
            Some(left) => due.again = due.again.min(left),
        }
    }
    due
}

/// Returns the end of a VM that is wanted for so long from now on.
fn ends(lifetime: Lifetime, before: Option<Ends>, now: u64) -> Ends {
    let kept = || before.map(|ends| ends.action).unwrap_or_default();
    Ends {
        at: now.saturating_add(lifetime.ttl_s.into()),
        action: lifetime.action.unwrap_or_else(kept),
    }
}

/// The end of a checkpoint, which never runs.
fn of_checkpoint(action: Option<AtEnd>) -> Result<AtEnd, HostError> {
    match action {
        None | Some(AtEnd::Rm) => Ok(AtEnd::Rm),
        Some(AtEnd::Stop | AtEnd::Pause | AtEnd::Checkpoint) => Err(HostError::Invalid(
            "it is a checkpoint, which never runs: `rm` alone can end it".into(),
        )),
    }
}

impl Host {
    /// Gives a VM a time after which it is wanted no more, instead of the one it had; none: it is
    /// wanted until it is removed.
    pub fn set_lifetime(&self, vm: &str, lifetime: Option<Lifetime>) -> Result<VmView, HostError> {
        let mut lifetime = lifetime;
        if let Some(lifetime) = &mut lifetime {
            check_lifetime(*lifetime)?;
            if self.vm(vm)?.life().shown() == VmState::Checkpoint {
                lifetime.action = Some(of_checkpoint(lifetime.action)?);
            }
        }
        self.change_terms(vm, |terms| {
            terms.ends = lifetime.map(|it| ends(it, terms.ends, crate::now()));
        })
    }

    /// Gives a VM these labels instead of those it had.
    pub fn set_labels(&self, vm: &str, labels: Labels) -> Result<VmView, HostError> {
        check_words(&labels.0)?;
        self.change_terms(vm, |terms| terms.labels = labels)
    }

    /// Gives every command that is run in a VM from outside these variables instead of those before.
    pub fn set_env(&self, vm: &str, env: BTreeMap<String, String>) -> Result<VmView, HostError> {
        check_words(&env)?;
        check_variables(&env)?;
        self.change_terms(vm, |terms| terms.env = env)
    }

    fn change_terms(&self, vm: &str, change: impl FnOnce(&mut Terms)) -> Result<VmView, HostError> {
        let vm = self.vm(vm)?;
        self.put_terms(&vm, change)?;
        Ok(self.view_of(&vm))
    }

    /// Gives a VM the terms that it had on the host that it came from.
    pub(crate) fn take_terms(&self, vm: &Vm, terms: Terms) -> Result<(), HostError> {
        check_words(&terms.labels.0)?;
        check_words(&terms.env)?;
        self.put_terms(vm, |own| *own = terms)
    }

    pub(crate) fn put_terms(
        &self,
        vm: &Vm,
        change: impl FnOnce(&mut Terms),
    ) -> Result<(), HostError> {
        let mut terms = lock(&vm.terms);
        let mut changed = terms.clone();
        change(&mut changed);
        self.parts.store.put_terms(vm.id, &changed)?;
        *terms = changed;
        drop(terms);
        self.lives.terms_changed.notify_one();
        Ok(())
    }

    /// Changes terms; if that cannot be recorded the next daemon finds those of before.
    pub(crate) fn note_terms(&self, vm: &Vm, change: impl Fn(&mut Terms)) {
        if let Err(error) = self.put_terms(vm, &change) {
            tracing::warn!(vm = %vm.name(), error = &error as &dyn Error, "its terms are not recorded");
            change(&mut lock(&vm.terms));
        }
    }

    /// Gives a VM that an earlier daemon left the terms that are recorded of it.
    pub(crate) fn recall_terms(&self, vm: &Vm) -> Result<(), HostError> {
        if let Some(terms) = self.parts.store.terms_of(vm.id)? {
            *lock(&vm.terms) = terms;
        }
        Ok(())
    }

    /// Gives a VM that was just recorded what its request says.
    pub(crate) fn give_terms(&self, vm: &Vm, wanted: &NewTerms) -> Result<(), HostError> {
        match wanted.is_empty() {
            true => Ok(()),
            false => self.put_terms(vm, |terms| *terms = wanted.from(crate::now())),
        }
    }

    /// Has the lifetime of a VM that has booted begin. If that cannot be recorded it has begun before.
    pub(crate) fn begin_lifetime(&self, vm: &Vm, wanted: &NewTerms) {
        let Some(lifetime) = wanted.lifetime else {
            return;
        };
        let begun = self.put_terms(vm, |terms| {
            terms.ends = Some(ends(lifetime, terms.ends, crate::now()));
        });
        if let Err(error) = begun {
            tracing::warn!(vm = %vm.name(), error = &error as &dyn Error, "its lifetime counts from its record on");
        }
    }

    /// Gives a clone what its parent has.
    pub(crate) fn inherit_terms(&self, parent: VmId, clone: &Vm) -> Result<(), HostError> {
        let parent = self.parts.registry().get(parent);
        let terms = parent.map(|parent| lock(&parent.terms).inherited());
        match terms.filter(|terms| *terms != Terms::default()) {
            Some(inherited) => self.put_terms(clone, |terms| *terms = inherited),
            None => Ok(()),
        }
    }

    /// Remembers what an earlier daemon recorded, and ends and starts from here on what is due.
    pub(crate) fn watch_terms(&self) -> Result<(), HostError> {
        for (id, terms) in self.parts.store.terms()? {
            if let Some(vm) = self.parts.registry().get(id) {
                *lock(&vm.terms) = terms;
            }
        }
        let (host, changed) = (self.handle(), self.lives.terms_changed.clone());
        let boots = Arc::new(Semaphore::new(restart::AT_ONCE));
        tokio::spawn(async move {
            loop {
                let Some(this) = host.upgrade() else { return };
                let again = this.end_what_is_due().min(this.start_what_is_due(&boots));
                drop(this);
                select! {
                    () = changed.notified() => {}
                    () = sleep(Duration::from_secs(again)) => {}
                }
            }
        });
        Ok(())
    }

    /// Begins to end what is due; returns after how many seconds to look again.
    fn end_what_is_due(&self) -> u64 {
        let vms = self.parts.registry().all();
        // A boot is not cut off: what is said of a lifetime counts from its end.
        let (starting, up): (Vec<_>, Vec<_>) = vms
            .into_iter()
            .partition(|vm| vm.life().shown() == VmState::Starting);
        let ends = up.iter().filter_map(|vm| {
            let ends = lock(&vm.terms).ends?;
            Some((vm.clone(), ends))
        });
        let mut due = due(ends, crate::now());
        if starting.iter().any(|vm| lock(&vm.terms).ends.is_some()) {
            due.again = 1;
        }
        for (vm, action) in due.now {
            // Moved on first: it is tried once more if that fails, and not twice meanwhile.
            let later = Ends {
                at: crate::now().saturating_add(AGAIN.max(self.parts.options.patience.as_secs())),
                action,
            };
            lock(&vm.terms).ends = Some(later);
            let host = self.handle();
            tokio::spawn(async move {
                if let Some(host) = host.upgrade() {
                    host.end_in_time(&vm, later).await;
                }
            });
        }
        due.again.clamp(1, LOOK)
    }

    /// Begins to start what is due; returns after how many seconds to look again.
    fn start_what_is_due(&self, boots: &Arc<Semaphore>) -> u64 {
        let (now, mut again) = (crate::now(), LOOK);
        for vm in self.parts.registry().all() {
            let mut terms = lock(&vm.terms);
            let Some(at) = terms.restarts.due else {
                continue;
            };
            if let Some(left @ 1..) = at.checked_sub(now) {
                again = again.min(left);
                continue;
            }
            // Moved on first, and not recorded: a daemon that dies meanwhile leaves it due.
            let later = AGAIN.max(self.parts.options.to_boot().as_secs());
            terms.restarts.due = Some(now.saturating_add(later));
            drop(terms);
            let (host, boots) = (self.handle(), boots.clone());
            tokio::spawn(async move {
                // It is never closed.
                let _place = boots.acquire_owned().await;
                if let Some(host) = host.upgrade() {
                    host.start_in_time(&vm).await;
                }
            });
        }
        again
    }

    async fn end_in_time(&self, vm: &Arc<Vm>, later: Ends) {
        let (id, name) = (vm.id.to_string(), vm.name());
        tracing::info!(vm = %name, action = ?later.action, "its time is up");
        let outcome = match later.action {
            AtEnd::Rm => self.remove(&id).await.map(drop),
            AtEnd::Stop | AtEnd::Pause | AtEnd::Checkpoint if !vm.is_running() => Ok(()),
            AtEnd::Checkpoint => self.turn_into_checkpoint(vm).await,
            AtEnd::Stop => self.stop(&id).await.map(drop),
            AtEnd::Pause => self.pause(&id).await.map(drop),
        };
        let noted = match outcome {
            Ok(()) if self.parts.registry().get(vm.id).is_none() => Ok(()),
            // Unless its lifetime was prolonged meanwhile.
            Ok(()) => self.put_terms(vm, |terms| {
                terms.ends = terms.ends.filter(|ends| *ends != later);
            }),
            Err(error) => Err(error),
        };
        if let Err(error) = noted {
            tracing::warn!(vm = %name, error = &error as &dyn Error, "not ended in time; tried again");
        }
    }
}

impl Host {
    /// Keeps a VM's present instant under its name, with its labels, and removes the VM. If the
    /// checkpoint cannot be made, the VM stays; one that was made stays under a name of its own if
    /// the VM's cannot be given to it.
    pub(crate) async fn turn_into_checkpoint(&self, vm: &Arc<Vm>) -> Result<(), HostError> {
        let request = CheckpointRequest::default();
        let kept = self.checkpoint_of(vm, request, None).await?;
        let terms = lock(&vm.terms).clone();
        self.put_terms(&kept, |own| {
            *own = Terms {
                ends: None,
                ..terms.inherited()
            };
        })?;
        let name = vm.name();
        self.remove(vm.id.as_str()).await?;
        let _turn = kept.turn().await;
        self.put_name(&kept, name)
    }
}

/// Terms that a request for a VM contains.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewTerms {
    labels: Labels,
    env: BTreeMap<String, String>,
    lifetime: Option<Lifetime>,
    idle: Option<Idle>,
    restart: Restart,
}

impl NewTerms {
    /// Those of a request; refuses what makes no sense.
    pub fn of(request: &forkyard_types::RunRequest) -> Result<Self, HostError> {
        let times = (request.lifetime, request.idle);
        Ok(Self {
            restart: request.restart,
            ..Self::checked(&request.labels, &request.env, times)?
        })
    }

    /// Reads those of VMs that are made of a substrate; refuses what makes no sense.
    pub fn of_founders(request: &forkyard_types::ActivateRequest) -> Result<Self, HostError> {
        let times = (request.lifetime, request.idle);
        Self::checked(&request.labels, &request.env, times)
    }

    fn checked(
        labels: &Labels,
        env: &BTreeMap<String, String>,
        (lifetime, idle): (Option<Lifetime>, Option<Idle>),
    ) -> Result<Self, HostError> {
        check_words(&labels.0)?;
        check_words(env)?;
        check_variables(env)?;
        if let Some(lifetime) = lifetime {
            check_lifetime(lifetime)?;
        }
        if let Some(idle) = idle {
            check_idle(idle)?;
        }
        Ok(Self {
            labels: labels.clone(),
            env: env.clone(),
            lifetime,
            idle,
            ..Self::default()
        })
    }

    fn is_empty(&self) -> bool {
        let words = self.labels.0.is_empty() && self.env.is_empty();
        let times = self.lifetime.is_none() && self.idle.is_none();
        words && times && self.restart == Restart::No
    }

    fn from(&self, now: u64) -> Terms {
        Terms {
            labels: self.labels.clone(),
            env: self.env.clone(),
            ends: self.lifetime.map(|it| ends(it, None, now)),
            idle: self.idle,
            restart: self.restart,
            ..Terms::default()
        }
    }
}

fn check_lifetime(lifetime: Lifetime) -> Result<(), HostError> {
    match (1..=Lifetime::MOST_S).contains(&lifetime.ttl_s) {
        true => Ok(()),
        false => Err(HostError::Invalid(format!(
            "a lifetime of {} s: wanted 1 to {}",
            lifetime.ttl_s,
            Lifetime::MOST_S
        ))),
    }
}

fn check_variables(env: &BTreeMap<String, String>) -> Result<(), HostError> {
    match env.keys().find(|name| name.contains('=')) {
        Some(name) => Err(HostError::Invalid(format!(
            "the variable {name:?} has a `=` in its name"
        ))),
        None => Ok(()),
    }
}

fn check_words(words: &BTreeMap<String, String>) -> Result<(), HostError> {
    let wrong = |text: String| Err(HostError::Invalid(text));
    if words.len() > Labels::MOST {
        return wrong(format!(
            "{} labels or variables: {} are allowed",
            words.len(),
            Labels::MOST
        ));
    }
    for (name, value) in words {
        if name.is_empty() || name.len() > Labels::NAME || name.contains('\0') {
            return wrong(format!(
                "{name:?} is no name of a label or variable: wanted 1 to {} bytes, none of them zero",
                Labels::NAME
            ));
        }
        if value.len() > Labels::VALUE || value.contains('\0') {
            return wrong(format!(
                "the value of {name:?} is longer than {} bytes, or has a zero byte",
                Labels::VALUE
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: u64, action: AtEnd) -> Ends {
        Ends { at, action }
    }

    #[test]
    fn what_is_due_ends_and_the_next_is_looked_for_in_time() {
        let all = [
            ("past", at(5, AtEnd::Rm)),
            ("now", at(10, AtEnd::Pause)),
            ("soon", at(17, AtEnd::Stop)),
            ("late", at(1000, AtEnd::Rm)),
        ];
        let found = due(all, 10);
        assert_eq!(found.now, [("past", AtEnd::Rm), ("now", AtEnd::Pause)]);
        assert_eq!(found.again, 7);
        assert_eq!(due([all[3]], 10).again, LOOK, "the clock may be set");
        assert_eq!(due::<&str>([], 10).now, []);
    }

    #[test]
    fn a_new_lifetime_counts_from_now_and_keeps_the_action_unless_it_says_another() {
        let of = |ttl_s, action| Lifetime { ttl_s, action };
        let before = Some(at(3, AtEnd::Pause));
        assert_eq!(ends(of(5, None), None, 100), at(105, AtEnd::Rm));
        assert_eq!(ends(of(5, None), before, 100), at(105, AtEnd::Pause));
        let stop = Some(AtEnd::Stop);
        assert_eq!(ends(of(5, stop), before, 100), at(105, AtEnd::Stop));
    }

    #[test]
    fn a_checkpoint_can_end_by_its_removal_alone() {
        for action in [None, Some(AtEnd::Rm)] {
            assert_eq!(of_checkpoint(action).expect("an end"), AtEnd::Rm);
        }
        for action in [AtEnd::Stop, AtEnd::Pause, AtEnd::Checkpoint] {
            let refused = of_checkpoint(Some(action)).expect_err("never runs");
            assert_eq!(refused.kind(), forkyard_types::ErrorKind::Invalid);
        }
    }

    #[test]
    fn words_without_a_name_or_without_bound_are_refused() {
        for (name, value) in [("", ""), ("a\0", ""), ("a", "\0"), ("a", &"x".repeat(4097))] {
            let words = [(name.to_owned(), value.to_owned())].into();
            assert!(check_words(&words).is_err(), "{name:?}");
        }
        let many = (0..65).map(|n| (n.to_string(), String::new())).collect();
        assert!(check_words(&many).is_err());
        assert!(check_words(&[("a b".to_owned(), "c".to_owned())].into()).is_ok());
    }
}
