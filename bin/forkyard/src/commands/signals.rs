//! Signals that end a command: Ctrl-C, SIGTERM, and SIGHUP of a terminal that has gone.
//!
//! One that is ignored when this program starts, as SIGHUP is under nohup(1), stays ignored.

use anyhow::Context;
use forkyard_sys_host::signals::is_ignored;
use nix::libc;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A command that a signal ended.
#[derive(Debug, thiserror::Error)]
#[error("{}; {comes_of_it}", word(*.signal))]
pub struct Interrupted {
    signal: u8,
    comes_of_it: String,
}

impl Interrupted {
    /// Of work that is over.
    pub fn over(signal: u8, comes_of_it: &str) -> Self {
        let comes_of_it = comes_of_it.to_owned();
        Self {
            signal,
            comes_of_it,
        }
    }

    /// Of work that goes on without this program; what to do then.
    pub fn goes_on(signal: u8, then: &str) -> Self {
        Self::over(signal, &format!("it goes on: {then}"))
    }

    /// Status as a shell gives it to a program that the signal ended.
    pub fn code(&self) -> u8 {
        self.signal.saturating_add(128)
    }
}

fn word(signal: u8) -> &'static str {
    match i32::from(signal) {
        libc::SIGTERM => "ended by SIGTERM",
        libc::SIGHUP => "ended by SIGHUP",
        _ => "interrupted",
    }
}

/// Signals that end a command, watched from now on.
#[derive(Debug)]
pub struct Ended([Option<Signal>; 3]);

impl Ended {
    /// Watches them.
    pub fn watched() -> anyhow::Result<Self> {
        let of = |kind: SignalKind| match is_ignored(kind.as_raw_value()) {
            false => signal(kind).map(Some).context("cannot handle signals"),
            true => Ok(None),
        };
        let terminate = of(SignalKind::terminate())?;
        let hang_up = of(SignalKind::hangup())?;
        Ok(Self([of(SignalKind::interrupt())?, terminate, hang_up]))
    }

    /// Waits for one of them; returns its number. Cancel-safe.
    pub async fn told(&mut self) -> u8 {
        let [interrupt, terminate, hang_up] = &mut self.0;
        let number = tokio::select! {
            () = next(interrupt) => libc::SIGINT,
            () = next(terminate) => libc::SIGTERM,
            () = next(hang_up) => libc::SIGHUP,
        };
        u8::try_from(number).unwrap_or_default()
    }
}

async fn next(signal: &mut Option<Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

/// Awaits work that goes on without this program; at a signal says so, and what to do then.
pub async fn interruptible<T>(
    then: &'static str,
    work: impl Future<Output = T>,
) -> Result<T, Interrupted> {
    let Ok(mut ended) = Ended::watched() else {
        // A signal does then what it does by itself.
        return Ok(work.await);
    };
    tokio::select! {
        biased;
        done = work => Ok(done),
        signal = ended.told() => Err(Interrupted::goes_on(signal, then)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::raise;

    #[tokio::test]
    async fn each_signal_that_ends_a_command_says_that_its_work_goes_on() {
        use nix::sys::signal::Signal;
        for (signal, code) in [
            (Signal::SIGINT, 130),
            (Signal::SIGTERM, 143),
            (Signal::SIGHUP, 129),
        ] {
            let begun = async {
                // Not before the signal is listened for.
                tokio::task::yield_now().await;
                raise(signal).expect("to itself");
                std::future::pending::<()>().await
            };
            let error = interruptible("see `ps`", begun)
                .await
                .expect_err("interrupted");
            assert!(
                error.to_string().ends_with("it goes on: see `ps`"),
                "{error}"
            );
            assert_eq!(error.code(), code);
        }
    }
}
