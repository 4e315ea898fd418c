//! Waiting for what happens by itself.

use crate::Host;
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// Within this, whatever is going to happen has happened, on a machine that has
/// other work and lends its processors out, too.
pub(crate) const SOON: Duration = Duration::from_secs(120);
/// Limit for what is judged by how things go for a while, and so takes longer.
const LATER: Duration = Duration::from_secs(600);
/// Time between the first two looks, and the most between any two. A look can be a command in
/// an emulated guest, and takes the time of what it waits for.
const LOOKS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];
/// Exit status of `exec` if the command took longer than it might.
const TIMED_OUT: i32 = 124;

/// Waits until something holds; panics if it does not soon.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    within(SOON, what, holds);
}

/// Waits until something holds that is not promised to hold soon.
#[track_caller]
pub fn in_the_end(what: &str, holds: impl FnMut() -> bool) {
    within(LATER, what, holds);
}

#[track_caller]
fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    let [mut pause, longest] = LOOKS;
    while !holds() {
        assert!(begun.elapsed() < limit, "still waiting for {what}");
        sleep(pause);
        pause = (pause * 3 / 2).min(longest);
    }
}

impl Host {
    /// Waits, in a VM, until a shell command succeeds; panics if it does not soon. It is one
    /// command of the VM's: not to be used while the VM is forked or its agent ends.
    #[track_caller]
    pub fn wait_in(&self, vm: &str, condition: &str) {
        let came = self.comes_true_in(vm, condition);
        assert!(came, "still waiting for {condition} in {vm}");
    }

    /// Waits like `wait_in`; false if the command does not succeed soon.
    #[track_caller]
    pub fn comes_true_in(&self, vm: &str, condition: &str) -> bool {
        let script = format!("until {{ {condition}; }} >/dev/null 2>&1; do sleep 0.1; done");
        let limit = SOON.as_secs().to_string();
        let words = ["exec", "--timeout", &limit, vm, "--", "sh", "-c", &script];
        let outcome = self.start(words, "").wait();
        match outcome.code {
            Some(0) => true,
            Some(TIMED_OUT) => false,
            Some(_) | None => panic!("{outcome:?}"),
        }
    }
}
