//! Liveness of the agents of running VMs.
//!
//! ```text
//! answers --no answer for a while--> silent: listed so, and refused what needs an agent
//!    ^------------- answers ---------------'
//! ```
//!
//! A VM that is paused, or stands still for a fork, is not asked; requests to hold still that it does not
//! answer count as questions. Nothing is done to one that is
//! silent: its programs may be running.

use crate::{RunningVm, Vm, VmError};
use forkyard_agent_link::LinkError;
use std::{
    error::Error,
    fmt,
    iter::successors,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::sleep;

/// Between two questions.
const EVERY: Duration = Duration::from_secs(2);
/// Questions without an answer, one after the other, that make silence.
const QUESTIONS: u32 = 2;
/// No time is in it: it is shown for as long as it lasts.
const NO_ANSWER: &str =
    "its agent answers no more: it was ended, or the guest hangs or has no processor time left";

impl Vm {
    /// Asks the agent every few seconds whether it is there, as long as this is the body. An operator's
    /// patience tells when silence is a failure.
    pub fn watch_agent(self: &Arc<Self>, body: &Arc<RunningVm>, patience: Duration) {
        let (of_vm, of_body) = (Arc::downgrade(self), Arc::downgrade(body));
        let patience = to_answer(patience);
        tokio::spawn(async move {
            // Only what is noted here is taken back here.
            let mut noted = false;
            // By requests to hold still.
            let mut ignored = false;
            let mut unanswered = 0;
            loop {
                sleep(EVERY).await;
                // Kept for no longer: the link to the guest goes with the body.
                let (Some(vm), Some(body)) = (of_vm.upgrade(), of_body.upgrade()) else {
                    return;
                };
                // What asks it in turn leaves no time for a question here, and has its own answers.
                let missed = body.guest.missed();
                if ignored && missed == 0 {
                    tracing::info!(vm = %vm.name(), "its agent answers again");
                    vm.set_unresponsive(&body, None);
                    (noted, ignored, unanswered) = (false, false, 0);
                }
                let runs = vm.is_running() && !vm.is_paused();
                if missed >= QUESTIONS && runs && vm.silence().is_none() {
                    tracing::warn!(vm = %vm.name(), "its agent does not answer: it is to hold still, and does not");
                    vm.set_unresponsive(&body, Some(NO_ANSWER.to_owned()));
                    (noted, ignored) = (true, true);
                }
                if is_still(&vm) {
                    continue;
                }
                match body.guest.ping(patience).await {
                    Ok(()) if !noted => unanswered = 0,
                    Ok(()) => {
                        tracing::info!(vm = %vm.name(), "its agent answers again");
                        vm.set_unresponsive(&body, None);
                        (noted, ignored, unanswered) = (false, false, 0);
                    }
                    Err(LinkError::Timeout { .. }) if is_still(&vm) || vm.silence().is_some() => {}
                    // It may have stood still for a part of the time.
                    Err(LinkError::Timeout { .. }) if unanswered + 1 < QUESTIONS => unanswered += 1,
                    Err(error @ LinkError::Timeout { .. }) => {
                        tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "its agent does not answer");
                        vm.set_unresponsive(&body, Some(NO_ANSWER.to_owned()));
                        noted = true;
                    }
                    Err(error) => {
                        drop((vm, body));
                        return broken_off(of_vm, of_body, &error).await;
                    }
                }
            }
        });
    }
}

/// Notes that the link to a guest has broken off, unless its VM ends or has another body soon: as a
/// rule QEMU is ending.
async fn broken_off(vm: Weak<Vm>, body: Weak<RunningVm>, error: &LinkError) {
    let causes = successors(Some(error as &dyn Error), |cause| (*cause).source());
    let causes: Vec<_> = causes.map(ToString::to_string).collect();
    let why = format!("the link to its agent broke off: {}", causes.join(": "));
    loop {
        sleep(EVERY).await;
        let (Some(vm), Some(body)) = (vm.upgrade(), body.upgrade()) else {
            return;
        };
        if !is_still(&vm) {
            tracing::warn!(vm = %vm.name(), why, "its agent cannot be reached");
            return vm.set_unresponsive(&body, Some(why));
        }
    }
}

/// Time an agent may leave one question unanswered, under this patience; its VM is silent after two in a
/// row.
fn to_answer(patience: Duration) -> Duration {
    (patience / 4).clamp(Duration::from_secs(1), Duration::from_secs(15))
}

/// Returns true if a VM cannot answer because it is paused, forked or stopped.
fn is_still(vm: &Vm) -> bool {
    vm.is_paused() || !vm.is_running() || vm.try_turn().is_none()
}

impl Vm {
    /// Resolves when the VM has not answered for so long, with the reason. Cancel-safe.
    pub fn silent_for(
        self: &Arc<Self>,
        patience: Duration,
    ) -> impl Future<Output = VmError> + Send + use<> {
        silent_for(Arc::downgrade(self), patience)
    }
}

/// The wait for a guest to have been silent for too long.
pub(crate) struct Lost(Pin<Box<dyn Future<Output = VmError> + Send>>);

impl Lost {
    pub fn new(silent: impl Future<Output = VmError> + Send + 'static) -> Self {
        Self(Box::pin(silent))
    }
}

impl Future for Lost {
    type Output = VmError;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<VmError> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lost")
    }
}

async fn silent_for(vm: Weak<Vm>, patience: Duration) -> VmError {
    let mut silent = Duration::ZERO;
    loop {
        sleep(EVERY).await;
        let Some(vm) = vm.upgrade() else {
            // Its link closes as well, which says more.
            return std::future::pending().await;
        };
        match vm.silence() {
            Some(why) if silent >= patience => {
                return VmError::Silent { vm: vm.name(), why };
            }
            Some(_) => silent += EVERY,
            None => silent = Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_hangs_is_known_to_within_the_patience() {
        let patience = Duration::from_secs(30);
        assert!((EVERY + to_answer(patience)) * QUESTIONS <= patience);
    }
}
