//! The kernel's record of the threads that ran when, on which CPU.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    fs,
    path::Path,
};

const TRACING: &str = "/sys/kernel/tracing";

/// A CPU that began to run a thread.
#[derive(Clone, Copy, Debug)]
struct Switch {
    cpu: u32,
    /// Seconds.
    at: f64,
    tid: u32,
}

/// Recorded switches, by time.
#[derive(Debug)]
pub struct Trace(Vec<Switch>);

impl Trace {
    /// Of what goes on during `work`.
    pub fn of(work: impl FnOnce()) -> Self {
        let write = |name: &str, text: &str| {
            fs::write(Path::new(TRACING).join(name), text).expect(name);
        };
        write("tracing_on", "0");
        write("trace_clock", "mono");
        write("buffer_size_kb", "4096");
        write("trace", "");
        write("events/sched/sched_switch/enable", "1");
        write("tracing_on", "1");
        work();
        write("tracing_on", "0");
        write("events/sched/sched_switch/enable", "0");
        let text = fs::read_to_string(Path::new(TRACING).join("trace")).expect("a trace");
        let mut switches: Vec<Switch> = text.lines().filter_map(parse).collect();
        switches.sort_by(|a, b| a.at.total_cmp(&b.at));
        assert!(!switches.is_empty(), "an empty trace: {text}");
        Self(switches)
    }

    /// Of the time in which one of these ran, the part in which all did. Time does not
    /// count in which a CPU ran a thread that is not `of` those that take turns.
    pub fn together(&self, these: &[u32], of: &[u32]) -> f64 {
        let mut running: BTreeMap<u32, u32> = BTreeMap::new();
        let (mut all, mut some) = (0.0, 0.0);
        for pair in self.0.windows(2) {
            running.insert(pair[0].cpu, pair[0].tid);
            let time = pair[1].at - pair[0].at;
            let others = running.values().any(|tid| *tid != 0 && !of.contains(tid));
            let count = running.values().filter(|tid| these.contains(tid)).count();
            if others || count == 0 || running.len() < these.len() {
                continue;
            }
            some += time;
            if count == these.len() {
                all += time;
            }
        }
        assert!(some > 0.0, "none of {these:?} ran");
        all / some
    }
}

/// Of the end of it, some lines.
impl Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SOME: usize = 80;
        let from = self.0.len().saturating_sub(SOME);
        for Switch { cpu, at, tid } in &self.0[from..] {
            writeln!(f, "{at:.6} CPU {cpu}: {tid}")?;
        }
        Ok(())
    }
}

/// Such as `  name-12  [001] d..2.  3.456789: sched_switch: prev_comm=… ==>
/// next_comm=… next_pid=34 next_prio=120`; names may hold anything but an arrow.
fn parse(line: &str) -> Option<Switch> {
    let (place, what) = line.split_once(": sched_switch: ")?;
    let (before, at) = place.rsplit_once(' ')?;
    let (_, cpu) = before.rsplit_once('[')?;
    let (cpu, _) = cpu.split_once(']')?;
    let (_, next) = what.split_once(" ==> ")?;
    let (_, tid) = next.rsplit_once(" next_pid=")?;
    let (tid, _) = tid.split_once(' ')?;
    Some(Switch {
        cpu: cpu.parse().ok()?,
        at: at.parse().ok()?,
        tid: tid.parse().ok()?,
    })
}

#[test]
fn a_line_is_read() {
    let line = "          <idle>-0       [001] d..2.    12.345678: sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=CPU 0/TCG next_pid=55 next_prio=120";
    let switch = parse(line).expect("read");
    assert_eq!((switch.cpu, switch.tid), (1, 55));
    assert!((switch.at - 12.345_678).abs() < 1e-9);
}
