//! Orders of the engine. The last to connect is heard; an earlier one is not any more.

use crate::Machine;
use forkyard_fake_engine::{EngineOrder, MachineEvent, OrderRefusal, Reply, Word};
use forkyard_vmm::{Cause, RunState};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, BufReader, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    process,
    sync::{Arc, Mutex, OnceLock},
    thread,
};

/// State of CPUs and devices, as it is saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Devices {
    /// Text that tells such a state from QEMU's.
    fake: String,
    /// Longer than fits into one packet of anything.
    registers: Vec<u16>,
}

impl Devices {
    fn new() -> Self {
        Self {
            fake: "state of a machine that is made up".to_owned(),
            registers: (0..4096).collect(),
        }
    }
}

/// The connection that is heard.
static ENGINE: OnceLock<Mutex<Option<UnixStream>>> = OnceLock::new();

fn engine() -> &'static Mutex<Option<UnixStream>> {
    ENGINE.get_or_init(Mutex::default)
}

fn say(word: &Word) -> io::Result<()> {
    let mut line = serde_json::to_string(word)?;
    line.push('\n');
    match &mut *engine().lock().expect("no holder panics") {
        Some(stream) => stream.write_all(line.as_bytes()),
        None => Ok(()),
    }
}

/// Ends the machine, as the guest or the engine wants.
pub fn end(cause: Cause) -> ! {
    // Whether the engine hears it or not.
    let _ = say(&Word::Event(MachineEvent::Ends(cause)));
    process::exit(0)
}

/// Serves until the machine ends.
pub fn serve(machine: &Arc<Machine>, listener: &UnixListener) {
    for stream in listener.incoming().flatten() {
        let Ok(read) = stream.try_clone() else {
            continue;
        };
        let former = engine().lock().expect("no holder panics").replace(stream);
        drop(former.map(|former| former.shutdown(Shutdown::Both)));
        let machine = machine.clone();
        thread::spawn(move || {
            hear(&machine, &read);
            // As a whole: the engine is to know.
            let _ = read.shutdown(Shutdown::Both);
        });
    }
}

/// Carries out what comes on a connection until it ends.
fn hear(machine: &Machine, read: &UnixStream) {
    for line in BufReader::new(read).lines() {
        let Ok(line) = line else { return };
        let reply = match serde_json::from_str(&line) {
            Ok(order) => carry_out(machine, order),
            Err(error) => Reply::Refused(OrderRefusal::Other(error.to_string())),
        };
        let failed = matches!(&reply, Reply::Refused(OrderRefusal::Other(why)) if why == BAD_STATE);
        let said = say(&Word::Reply(reply));
        if failed {
            // As QEMU does with a state that it cannot load.
            process::exit(1);
        }
        if said.is_err() {
            return;
        }
    }
}

const BAD_STATE: &str = "the state is none";

fn carry_out(machine: &Machine, order: EngineOrder) -> Reply {
    let Machine {
        vcpus,
        memory,
        disk,
        ..
    } = machine;
    match order {
        EngineOrder::Stop => {
            match vcpus.state() {
                RunState::Running => {
                    vcpus.set(RunState::Paused);
                    let _ = say(&Word::Event(MachineEvent::Stopped));
                }
                RunState::Paused | RunState::Waiting | RunState::Failed | RunState::Ended => {}
            }
            Reply::Done
        }
        EngineOrder::Cont => match vcpus.state() {
            RunState::Waiting => Reply::Refused(OrderRefusal::State(RunState::Waiting)),
            RunState::Running | RunState::Paused | RunState::Failed | RunState::Ended => {
                vcpus.set(RunState::Running);
                Reply::Done
            }
        },
        EngineOrder::State => Reply::State(vcpus.state()),
        EngineOrder::Slice => disk.active(),
        EngineOrder::Prepare(path) => disk.prepare(path),
        EngineOrder::Freeze { number, over } => disk.freeze(number, over),
        EngineOrder::Close(number) => disk.close(number),
        EngineOrder::Save => match vcpus.state() {
            state @ (RunState::Running | RunState::Waiting) => {
                Reply::Refused(OrderRefusal::State(state))
            }
            RunState::Paused | RunState::Failed | RunState::Ended => {
                match serde_json::to_vec(&Devices::new()) {
                    Ok(state) => Reply::Saved(state),
                    Err(error) => Reply::Refused(OrderRefusal::Other(error.to_string())),
                }
            }
        },
        EngineOrder::Ram => Reply::Ram(memory.address()),
        EngineOrder::Load(state) => {
            match (vcpus.state(), serde_json::from_slice::<Devices>(&state)) {
                (RunState::Waiting, Ok(devices)) if devices == Devices::new() => {
                    vcpus.set(RunState::Running);
                    Reply::Done
                }
                (RunState::Waiting, _) => Reply::Refused(OrderRefusal::Other(BAD_STATE.to_owned())),
                (state, _) => Reply::Refused(OrderRefusal::State(state)),
            }
        }
        EngineOrder::Quit => end(Cause::Told),
    }
}
