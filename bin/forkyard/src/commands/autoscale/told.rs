//! Output for the user: lines of text when something is done, or lines of JSON for each of that and
//! for each second.

use crate::{args::Format, output};
use forkyard_autoscale::{Action, LoadSignal, LoadView, RemovalCause, Scaler, Stage};
use forkyard_types::{VmId, VmView};
use serde::Serialize;
use serde_json::json;
use std::{collections::BTreeMap, error::Error, net::SocketAddr, time::Duration};

/// Time between two lines of state.
const STATE: Duration = Duration::from_secs(1);

/// Format of what is printed.
#[derive(Debug)]
pub struct Told {
    format: Format,
    vm: (VmId, String),
    state: Option<Duration>,
    trouble: String,
}

/// Servers at one time.
#[derive(Serialize)]
struct State {
    at_s: f64,
    load: Option<f64>,
    waiting: u32,
    open: u32,
    wanted: u16,
    serving: u16,
    coming: u16,
    sick: u16,
    draining: u16,
}

impl Told {
    /// For servers of this VM.
    pub fn new(format: Format, vm: &VmView) -> Self {
        Self {
            format,
            vm: (vm.id, vm.name.to_string()),
            state: None,
            trouble: String::new(),
        }
    }

    /// HAProxy takes requests.
    pub fn listening(&self, at: SocketAddr) {
        let name = &self.vm.1;
        match self.format {
            Format::Text => say!("{at} -> servers of {name}"),
            Format::Json => say!(
                "{}",
                json!({"event": "listening", "listen": at, "vm": name})
            ),
        }
    }

    /// Something is about to be done.
    pub fn action(
        &self,
        now: Duration,
        action: &Action,
        names: &BTreeMap<VmId, String>,
        vms: impl Fn(forkyard_autoscale::SlotNo) -> Option<VmId>,
    ) {
        let name = |vm: Option<VmId>| match vm {
            Some(vm) if vm == self.vm.0 => self.vm.1.clone(),
            Some(vm) => names.get(&vm).cloned().unwrap_or_else(|| vm.to_string()),
            None => String::new(),
        };
        let (event, vm, count, why) = match action {
            Action::Fork { source, slots } => ("fork", name(Some(*source)), slots.len(), None),
            Action::Admit(slot) => ("admit", name(vms(*slot)), 1, None),
            Action::Starve(slot) => ("starve", name(vms(*slot)), 1, None),
            Action::Forget(_) => ("gone", String::new(), 1, None),
            Action::Remove { vm, cause, .. } => ("remove", name(Some(*vm)), 1, Some(cause)),
        };
        let why = why.map(|cause| match cause {
            RemovalCause::Drained => "drained",
            RemovalCause::Sick => "its checks fail",
            RemovalCause::Late => "it passed no check",
        });
        let at = now.as_secs_f64();
        match (self.format, action) {
            (Format::Json, _) => {
                let mut line = json!({"event": event, "at_s": at, "count": count});
                if !vm.is_empty() {
                    line["vm"] = vm.into();
                }
                if let Some(why) = why {
                    line["why"] = why.into();
                }
                say!("{line}");
            }
            (Format::Text, Action::Fork { .. }) => {
                say!("{at:7.1} s  {vm} is forked, for {count} more")
            }
            (Format::Text, Action::Admit(_)) => say!("{at:7.1} s  {vm} gets requests"),
            (Format::Text, Action::Starve(_)) => say!("{at:7.1} s  {vm} gets no more requests"),
            (Format::Text, Action::Forget(_)) => say!("{at:7.1} s  a server has gone by itself"),
            (Format::Text, Action::Remove { .. }) => {
                say!("{at:7.1} s  {vm} is removed: {}", why.unwrap_or_default());
            }
        }
    }

    /// Present state.
    pub fn state<S: LoadSignal>(&mut self, now: Duration, scaler: &Scaler<S>, view: &LoadView) {
        if self.format == Format::Text || self.state.is_some_and(|last| now < last + STATE) {
            return;
        }
        self.state = Some(now);
        let state = State {
            at_s: now.as_secs_f64(),
            load: scaler.load(),
            waiting: view.waiting,
            open: view.servers.values().map(|it| it.open).sum(),
            wanted: scaler.wanted(),
            serving: scaler.count(Stage::Serving),
            coming: scaler.count(Stage::Forking) + scaler.count(Stage::Joining),
            sick: scaler.count(Stage::Sick),
            draining: scaler.count(Stage::Draining) + scaler.count(Stage::Removing),
        };
        say!("{}", serde_json::to_string(&state).unwrap_or_default());
    }

    /// Something went wrong that costs no request; said once as long as it is all that does.
    pub fn trouble(&mut self, text: &str) {
        if self.trouble != text {
            text.clone_into(&mut self.trouble);
            output::complain(&anyhow::anyhow!("{text}"));
        }
    }

    /// All is being ended.
    pub fn ending(&self) {
        match self.format {
            Format::Text => {
                say!("ending: what has been asked is answered, then the clones are removed")
            }
            Format::Json => say!("{}", json!({"event": "ending"})),
        }
    }
}

/// An error and its causes.
pub fn words(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}
