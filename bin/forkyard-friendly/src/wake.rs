//! Events that the agent is woken for, before it is time to look.

use anyhow::Context;
use nix::{
    sys::signal::{SigSet, Signal},
    time::{ClockId, clock_gettime},
};
use std::{
    sync::mpsc::{Receiver, Sender, channel},
    time::Duration,
};

/// Reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The agent is to end.
    End,
    /// A process has begun to wait: the last look may be long ago, and there may be room.
    Waits,
    /// There is room for a process that waits.
    Room,
    /// A tick came so late that others may run than at the last look.
    Late,
}

/// Signals to end.
pub fn ends() -> SigSet {
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])
}

/// Hears of signals to end, and of what others tell.
pub fn listen() -> anyhow::Result<(Sender<Wake>, Receiver<Wake>)> {
    let signals = ends();
    // Before any thread exists, so that none takes the signal instead.
    signals.thread_block().context("cannot block signals")?;
    let (tell, told) = channel();
    let end = tell.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            while signals.wait().is_ok() {
                if end.send(Wake::End).is_err() {
                    return;
                }
            }
        })?;
    Ok((tell, told))
}

/// CPU time of this thread.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(Duration::ZERO, Duration::from)
}
