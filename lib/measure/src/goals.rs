//! Goals of the project, and whether a run reached them.

use crate::{Contender, Results, Way, report::Spread};

/// Clones at which forks are held against migration.
const CLONES: u16 = 16;
/// Memory that a parent was filled with whose first fork's pause is judged, in
/// MiB.
const FILLED: u64 = 128;

/// One goal, as a run can judge it.
pub struct Goal {
    /// Quantity that is measured.
    pub what: &'static str,
    /// Value that is wanted.
    pub wanted: &'static str,
    /// Value that was measured.
    pub measured: String,
    /// True if that is as wanted.
    pub met: bool,
}

/// The goals that a run has something to say to.
pub fn goals(results: &Results) -> Vec<Goal> {
    let race = |contender, what: fn(&crate::Sample) -> Option<f64>| {
        let samples = results.samples.iter();
        let same = samples.filter(|s| s.clones == CLONES && s.contender == contender);
        Some(Spread::of(same.filter_map(what).collect())?.median)
    };
    let times = |what: fn(&crate::Sample) -> Option<f64>| {
        Some(race(Contender::Migrate, what)? / race(Contender::Warm, what)?)
    };
    let pause = |wanted: &dyn Fn(Way, u64) -> bool| {
        let samples = results.pauses.iter().filter(|s| !s.writing);
        let mut all: Vec<_> = samples.clone().map(|s| (s.way, s.size_mib)).collect();
        all.retain(|(way, size)| wanted(*way, *size));
        let medians = all.into_iter().filter_map(|(way, size)| {
            let same = samples
                .clone()
                .filter(|s| (s.way, s.size_mib) == (way, size));
            Some(Spread::of(same.map(|s| s.pause_ms).collect())?.median)
        });
        medians.reduce(f64::max)
    };
    let live = pause(&|way, _| [Way::FirstLive, Way::Live].contains(&way));
    let fast = pause(&|way, size| way == Way::First && size == FILLED);
    let crowd = results.crowds.iter().map(|s| s.clones).max();
    let judged = [
        live.map(|ms| Goal {
            what: "pause of a live fork, whatever the size; the worst of the medians",
            wanted: "10 ms at most",
            measured: format!("{ms:.1} ms"),
            met: ms <= 10.0,
        }),
        fast.map(|ms| Goal {
            what: "pause of a first fork, filled with 128 MiB",
            wanted: "60 ms at most",
            measured: format!("{ms:.1} ms"),
            met: ms <= 60.0,
        }),
        times(|s| s.running_ms).map(|times| Goal {
            what: "16 clones run, warm, against migrate",
            wanted: "20 times as soon",
            measured: format!("{times:.1} times"),
            met: times >= 20.0,
        }),
        times(|s| Some(s.first_command_ms)).map(|times| Goal {
            what: "a command has ended in 16 clones, warm, against migrate",
            wanted: "3 times as soon",
            measured: format!("{times:.1} times"),
            met: times >= 3.0,
        }),
        crowd.map(|clones| Goal {
            what: "clones in one family at once",
            wanted: "200",
            measured: clones.to_string(),
            met: clones >= 200,
        }),
    ];
    judged.into_iter().flatten().collect()
}
