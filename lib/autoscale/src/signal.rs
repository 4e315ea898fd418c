//! Measurements of servers, and the load that is made of them.

use crate::SlotNo;
use std::{collections::BTreeMap, time::Duration};

/// Result of a server's checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerHealth {
    /// The last check passed.
    Up,
    /// The last checks failed, or none has been done yet.
    Down,
    /// There is no such VM any more, or it does not run.
    Gone,
}

/// One server, as it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerSample {
    /// Result of its checks.
    pub health: ServerHealth,
    /// Requests that it has been sent and has not answered, and those that wait for it alone.
    pub open: u32,
    /// Requests that it is sent at most at a time.
    pub capacity: u32,
    /// Part of its vCPUs' time that it has used since the last look, from 0 to 1; if that is known.
    pub cpu: Option<f64>,
    /// Time in which it answers, waiting included; if that is known.
    pub latency: Option<Duration>,
}

/// All servers, as they were measured at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadView {
    /// By slot; those without a sample count as down.
    pub servers: BTreeMap<SlotNo, ServerSample>,
    /// Requests that wait for whichever server is free first.
    pub waiting: u32,
}

/// A measure of load.
pub trait LoadSignal {
    /// Returns the load of these servers together, 1 for saturation; none if it is not known.
    /// All of them are healthy and get requests.
    fn load(&self, serving: &[ServerSample], waiting: u32) -> Option<f64>;
}

impl<S: LoadSignal + ?Sized> LoadSignal for Box<S> {
    fn load(&self, serving: &[ServerSample], waiting: u32) -> Option<f64> {
        (**self).load(serving, waiting)
    }
}

/// Requests in servers and in the queue before them, per request that servers take at a time.
#[derive(Clone, Copy, Debug)]
pub struct Queue;

impl LoadSignal for Queue {
    fn load(&self, serving: &[ServerSample], waiting: u32) -> Option<f64> {
        let room: f64 = serving.iter().map(|it| f64::from(it.capacity)).sum();
        let open: f64 = serving.iter().map(|it| f64::from(it.open)).sum();
        (room > 0.0).then(|| (open + f64::from(waiting)) / room)
    }
}

/// Mean part of their vCPUs' time that servers use.
#[derive(Clone, Copy, Debug)]
pub struct Cpu;

impl LoadSignal for Cpu {
    fn load(&self, serving: &[ServerSample], _: u32) -> Option<f64> {
        mean(serving.iter().filter_map(|it| it.cpu))
    }
}

/// Mean time of an answer, per time that is aimed at.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Time of an answer at which servers are saturated.
    pub target: Duration,
}

impl LoadSignal for Latency {
    fn load(&self, serving: &[ServerSample], _: u32) -> Option<f64> {
        let mean = mean(
            serving
                .iter()
                .filter_map(|it| it.latency)
                .map(|it| it.as_secs_f64()),
        )?;
        (!self.target.is_zero()).then(|| mean / self.target.as_secs_f64())
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: ServerSample = ServerSample {
        health: ServerHealth::Up,
        open: 0,
        capacity: 4,
        cpu: None,
        latency: None,
    };

    #[test]
    fn each_signal_is_one_at_saturation_and_none_without_a_measurement() {
        let full = ServerSample { open: 4, ..IDLE };
        assert_eq!(Queue.load(&[full, full], 0), Some(1.0));
        assert_eq!(Queue.load(&[full, IDLE], 4), Some(1.0));
        assert_eq!(Queue.load(&[], 4), None);
        let cpu = |part| ServerSample {
            cpu: Some(part),
            ..IDLE
        };
        assert_eq!(Cpu.load(&[cpu(1.0), cpu(0.5), IDLE], 9), Some(0.75));
        assert_eq!(Cpu.load(&[IDLE], 9), None);
        let target = Duration::from_millis(200);
        let late = ServerSample {
            latency: Some(target),
            ..IDLE
        };
        assert_eq!(Latency { target }.load(&[late, IDLE], 0), Some(1.0));
        assert_eq!(Latency { target }.load(&[IDLE], 0), None);
    }
}
