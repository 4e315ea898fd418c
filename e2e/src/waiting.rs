//! Waiting for what happens by itself.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// Within this, whatever is going to happen has happened, on a machine that has
/// other work and lends its processors out, too.
pub(crate) const SOON: Duration = Duration::from_secs(120);
/// The same, of what is judged by how things go for a while, and so takes longer.
const LATER: Duration = Duration::from_secs(600);

/// Waits until something holds; panics if it does not soon.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    within(SOON, what, holds);
}

/// Waits until something holds that nobody has promised to hold soon.
#[track_caller]
pub fn in_the_end(what: &str, holds: impl FnMut() -> bool) {
    within(LATER, what, holds);
}

#[track_caller]
fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < limit, "still waiting for {what}");
        sleep(Duration::from_millis(20));
    }
}
