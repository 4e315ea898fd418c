//! Keeps the agent running, whatever ends in its guest.
//!
//! ```text
//! supervisor --starts--> worker      each sees the other's end by a pipe that closes,
//!     ^-------starts--------'        and starts it again
//! ```
//!
//! The image's init does not know of either. When memory runs out the kernel ends everything else
//! first, and what either has in memory stays there.

use crate::{AGENT, PROGRAM};
use std::{
    fs,
    hint::black_box,
    io::{self, Read},
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Command, ExitCode, Stdio},
    thread::{self, sleep},
    time::Duration,
};

/// Between the end of a worker and the start of the next.
const PAUSE: Duration = Duration::from_millis(200);
/// The word for a supervisor whose worker runs already.
const ADOPT: &str = "adopt";
/// The kernel's word for a process that is never ended for its memory.
const NEVER: &str = "-1000";
/// Bytes of stack that are had from the beginning.
const STACK: usize = 128 << 10;
/// And of the heap: what is freed is given back to the kernel from 128 KiB on.
const HEAP: usize = 96 << 10;

/// Keeps a worker running. With the word `adopt` one runs already, and has the other
/// end of standard input.
pub fn supervise(words: &[String]) -> ExitCode {
    outlive_others();
    if words.first().is_some_and(|word| word == ADOPT) {
        wait_for_end(io::stdin());
        eprintln!("forkyard-guest: the agent ended");
    }
    loop {
        let ended = worker().and_then(|mut worker| {
            // Open for as long as this process lives.
            let alive = worker.stdin.take();
            let ended = worker.wait();
            drop(alive);
            ended
        });
        eprintln!("forkyard-guest: the agent ended: {ended:?}");
        sleep(PAUSE);
    }
}

fn worker() -> io::Result<std::process::Child> {
    // Not standard output: that of a supervisor tells the worker that started it of its end.
    let console = io::stderr().as_fd().try_clone_to_owned()?;
    Command::new(PROGRAM)
        .arg0(AGENT)
        .arg("worker")
        .stdin(Stdio::piped())
        .stdout(console)
        .spawn()
}

/// In a worker: starts another supervisor whenever there is none.
pub fn watch() -> Result<(), String> {
    let watching = thread::Builder::new().spawn(|| {
        wait_for_end(io::stdin());
        loop {
            eprintln!("forkyard-guest: the supervisor ended");
            let supervisor = Command::new(PROGRAM)
                .arg0(AGENT)
                .args(["agent", ADOPT])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn();
            match supervisor {
                Ok(mut supervisor) => {
                    // Open for as long as this process lives.
                    let alive = supervisor.stdin.take();
                    if let Some(its) = supervisor.stdout.take() {
                        wait_for_end(its);
                    }
                    let _ = supervisor.wait();
                    drop(alive);
                }
                Err(error) => eprintln!("forkyard-guest: no supervisor: {error}"),
            }
            sleep(PAUSE);
        }
    });
    watching
        .map(drop)
        .map_err(|error| format!("watch the supervisor: {error}"))
}

/// Waits until nothing has the other end of a pipe any more.
fn wait_for_end(mut pipe: impl Read) {
    let mut nothing = [0];
    loop {
        match pipe.read(&mut nothing) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return,
        }
    }
}

/// Has the kernel end everything else first when memory runs out, keep in memory what this process
/// has used, and run it before user code that uses all processors.
pub fn outlive_others() {
    let outcomes = [
        fs::write("/proc/self/oom_score_adj", NEVER),
        forkyard_sys_guest::first::stay_in_memory(),
        forkyard_sys_guest::first::run_soon(),
    ];
    for error in outcomes.into_iter().filter_map(Result::err) {
        eprintln!("forkyard-guest: this agent is as any program: {error}");
    }
    touch_what_is_needed();
}

/// Uses some stack and heap, which stay in memory then: where there is none left, a call that is
/// deeper than those before must not wait for a page. They are cleared: no image has them.
#[inline(never)]
fn touch_what_is_needed() {
    let mut stack = [0; STACK];
    black_box(&mut stack).fill(0);
    let mut heap: Vec<u8> = Vec::with_capacity(HEAP);
    heap.resize(black_box(HEAP), 0);
    black_box(&mut heap).fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::resource::{UsageWho, getrusage};

    fn faults() -> i64 {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("counted");
        usage.minor_page_faults()
    }

    #[inline(never)]
    fn deep() {
        black_box(&mut [0_u8; STACK / 2]).fill(1);
    }

    #[test]
    fn a_deeper_call_than_any_before_waits_for_no_page() {
        // The stack of a new thread: no page of it has been touched yet.
        let thread = thread::spawn(|| {
            touch_what_is_needed();
            let before = faults();
            deep();
            faults() - before
        });
        let faults = thread.join().expect("no panic");
        assert!(faults < 4, "{faults} faults");
    }
}
