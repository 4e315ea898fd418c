//! The guest: an agent that answers, and programs that it knows.

use crate::{
    Machine, control,
    program::{Program, Said, Wish},
    servers::{self, Connections},
};
use forkyard_agent_link::{
    CallId, Cloned, Command, FrameReader, Request, Session, Stream, ToGuest, ToHost, VERSION, send,
};
use forkyard_types::{Epoch, ExitStatus, NotStarted, RequestId};
use forkyard_vmm::Cause;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    io,
    os::unix::net::{UnixListener, UnixStream},
    sync::{Arc, Mutex},
    thread,
};

/// State of the guest: all of it lies in its memory.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Known {
    name: String,
    epoch: Option<Epoch>,
    /// Origin as a clone, until it is released.
    woken: Option<Cloned>,
    calls: u32,
    programs: Vec<Running>,
    /// Ports on which a server listens.
    servers: BTreeSet<u16>,
}

/// A program that waits for something.
#[derive(Debug, Serialize, Deserialize)]
struct Running {
    program: Program,
    /// None once nothing listens to it.
    session: Option<Session>,
    /// The call that it waits for.
    call: Option<(CallId, RequestId)>,
}

/// Serves the host until the machine ends. The last to connect is answered.
pub fn serve(machine: &Arc<Machine>, listener: &UnixListener) {
    let current: Arc<Mutex<Option<UnixStream>>> = Arc::default();
    for stream in listener.incoming().flatten() {
        let Ok(own) = stream.try_clone() else {
            continue;
        };
        let former = current.lock().expect("no holder panics").replace(own);
        drop(former.map(|former| former.shutdown(std::net::Shutdown::Both)));
        let machine = machine.clone();
        thread::spawn(move || {
            let Ok(read) = stream.try_clone() else { return };
            let mut reader = FrameReader::new(read);
            let mut link = Link {
                stream,
                connections: Connections::default(),
            };
            while let Ok(Some(message)) = reader.read_message() {
                let heard = machine.vcpus.running(|| hear(&machine, &mut link, message));
                if let Err(error) = heard {
                    machine.console.say(&format!("agent: {error}"));
                }
            }
        });
    }
}

/// Link to the host.
struct Link {
    stream: UnixStream,
    /// Not of the guest's memory: in a clone they would be reset.
    connections: Connections,
}

impl Link {
    fn say(&mut self, message: &ToHost) -> io::Result<()> {
        send(&mut self.stream, message)
    }
}

fn hear(machine: &Machine, link: &mut Link, message: ToGuest) -> io::Result<()> {
    let mut known: Known = machine.memory.knows()?;
    match message {
        ToGuest::Hello { .. } | ToGuest::Moved { .. } => {
            // The calls of an earlier connection are over.
            known.programs.retain(|running| running.call.is_none());
            link.say(&ToHost::Hello {
                version: VERSION,
                epoch: known.epoch,
            })?;
        }
        ToGuest::Quiesce { fork } => link.say(&ToHost::Quiesced { fork, failed: None })?,
        ToGuest::Ping => link.say(&ToHost::AskTime { asked: 0 })?,
        ToGuest::Resume
        | ToGuest::StoodStill
        | ToGuest::Time { .. }
        | ToGuest::ExecResize { .. } => return Ok(()),
        ToGuest::ExecInput { session, data } if known.copies(session).is_some() => {
            copy(machine, link, &mut known, session, data)?;
        }
        ToGuest::ExecInput { session, data } => {
            let said = link.connections.input(session, &data);
            return said.iter().try_for_each(|message| link.say(message));
        }
        ToGuest::ExecMore { session, chunks } => {
            let said = link.connections.more(session, chunks);
            return said.iter().try_for_each(|message| link.say(message));
        }
        ToGuest::Identify(identify) => {
            known.name = identify.identity.name.to_string();
            known.epoch = Some(identify.identity.epoch);
            known.woken = identify.cloned;
            link.say(&ToHost::Identified {
                epoch: identify.identity.epoch,
                problems: Vec::new(),
            })?;
        }
        ToGuest::Release => {
            link.say(&ToHost::Released {
                problems: Vec::new(),
            })?;
            wake(machine, link, &mut known)?;
        }
        ToGuest::Exec { session, command } => exec(machine, link, &mut known, session, *command)?,
        ToGuest::ExecDetach { session } => {
            link.connections.hang_up(session);
            known
                .programs
                .retain(|running| running.session != Some(session));
        }
        ToGuest::ExecSignal { session, signal } => {
            let of = |running: &Running| running.session == Some(session);
            if known.programs.iter().any(of) {
                known.programs.retain(|running| !of(running));
                let outcome = Ok(ExitStatus::Signal(signal));
                link.say(&ToHost::ExecEnd { session, outcome })?;
            }
        }
        ToGuest::Attach { session, pid, .. } => {
            let outcome = Err(NotStarted {
                code: NotStarted::NOT_FOUND,
                message: format!("no command with process id {pid} is kept"),
            });
            link.say(&ToHost::ExecEnd { session, outcome })?;
        }
        ToGuest::ListKept { session } => link.say(&ToHost::Kept {
            session,
            commands: Vec::new(),
        })?,
        ToGuest::Reply { call, outcome } => {
            let waits = |running: &Running| running.call.is_some_and(|(waited, _)| waited == call);
            if let Some(at) = known.programs.iter().position(waits) {
                let mut running = known.programs.remove(at);
                running.program.answered(outcome);
                go_on(machine, link, &mut known, running)?;
            }
        }
    }
    machine.memory.know(&known)
}

impl Known {
    /// The program that says what this session's client says.
    fn copies(&self, session: Session) -> Option<usize> {
        let is_it = |it: &Running| it.session == Some(session) && it.program.copies();
        self.programs.iter().position(is_it)
    }
}

/// Says what was heard; no bytes are the end of input, after which the program goes on.
fn copy(
    machine: &Machine,
    link: &mut Link,
    known: &mut Known,
    session: Session,
    data: Vec<u8>,
) -> io::Result<()> {
    let Some(at) = known.copies(session) else {
        return Ok(());
    };
    if data.is_empty() {
        let running = known.programs.remove(at);
        return go_on(machine, link, known, running);
    }
    let stream = Stream::Out;
    link.say(&ToHost::ExecOutput {
        session,
        stream,
        data,
    })?;
    link.say(&ToHost::ExecMore { session, chunks: 1 })
}

/// In a clone: the program that asked for it goes on, and no other.
fn wake(machine: &Machine, link: &mut Link, known: &mut Known) -> io::Result<()> {
    let Some(cloned) = known.woken.take() else {
        return Ok(());
    };
    for mut running in std::mem::take(&mut known.programs) {
        let asked = running.call.map(|(_, request)| request);
        if asked.is_some() && asked == cloned.request {
            running.program.cloned(cloned.id);
            running.session = None;
            go_on(machine, link, known, running)?;
        }
    }
    Ok(())
}

fn exec(
    machine: &Machine,
    link: &mut Link,
    known: &mut Known,
    session: Session,
    command: Command,
) -> io::Result<()> {
    if let Some(port) = servers::wanted(&command.argv) {
        let connections = &mut link.connections;
        let said = match port.is_some_and(|port| known.servers.contains(&port)) {
            true => connections.connect(session, &known.name),
            false => servers::refuse(session),
        };
        return said.iter().try_for_each(|message| link.say(message));
    }
    let running = Running {
        session: (!command.detach).then_some(session),
        program: Program::new(&command.argv),
        call: None,
    };
    if command.detach {
        link.say(&ToHost::ExecStarted { session, pid: 1 })?;
    }
    go_on(machine, link, known, running)
}

/// Runs a program until it waits or ends.
fn go_on(
    machine: &Machine,
    link: &mut Link,
    known: &mut Known,
    mut running: Running,
) -> io::Result<()> {
    let session = running.session;
    loop {
        let (said, wish) = running.program.step(&known.name, &machine.memory);
        if let (Some(session), Some(Said { stream, text })) = (session, said) {
            link.say(&ToHost::ExecOutput {
                session,
                stream: match stream {
                    crate::program::To::Out => Stream::Out,
                    crate::program::To::Err => Stream::Err,
                },
                data: format!("{text}\n").into_bytes(),
            })?;
        }
        match wish {
            Wish::GoOn => {}
            Wish::Wait => {
                known.programs.push(running);
                return Ok(());
            }
            Wish::Ask(ask) => {
                known.calls += 1;
                let (call, id) = (CallId(known.calls), RequestId::random());
                running.call = Some((call, id));
                known.programs.push(running);
                // Before it is asked: the answer may come in a clone.
                machine.memory.know(&known)?;
                let request = Request { id, ask };
                return link.say(&ToHost::Call { call, request });
            }
            Wish::End(code) => {
                let outcome = Ok(ExitStatus::Code(code));
                let end = |session| link.say(&ToHost::ExecEnd { session, outcome });
                return session.map_or(Ok(()), end);
            }
            Wish::Serve(port) => drop(known.servers.insert(port)),
            Wish::PowerOff => control::end(Cause::PoweredOff),
            Wish::Reboot => {
                machine.console.say("reboot: Restarting system");
                control::end(Cause::Reset)
            }
        }
    }
}
