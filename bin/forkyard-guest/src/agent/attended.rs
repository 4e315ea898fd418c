//! Output of a command that a host follows.

use super::{
    console::Console,
    lane::Stage,
    outbox::{MUCH, Outbox},
    output::{Passage, Sink},
};
use forkyard_agent_link::{CHUNK, Session, Stream, ToHost, WINDOW};
use forkyard_types::NotStarted;
use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

/// Limit of a command's output, and whether it has a reader.
#[derive(Debug)]
pub struct Flow {
    state: Mutex<Window>,
    changed: Condvar,
}

/// Output on its way to the host that started its command.
#[derive(Debug)]
pub struct Attended {
    pub session: Session,
    pub name: String,
    pub outbox: Arc<Outbox>,
    pub console: Console,
    pub flow: Arc<Flow>,
    pub passage: Passage,
    /// Pipe in which its output waits uncopied, if it is of our own program.
    pub stage: Option<Stage>,
}

impl Sink for Attended {
    fn passage(&self) -> &Passage {
        &self.passage
    }

    fn take(&self, stream: Stream, data: &[u8]) {
        match self.flow.take(data.len()) {
            Way::Host => self.outbox.pass(ToHost::ExecOutput {
                session: self.session,
                stream,
                data: data.to_vec(),
            }),
            Way::Console { bytes, last } => self.console.tell(&self.name, &data[..bytes], last),
            Way::Nowhere => {}
        }
    }

    fn take_from(&self, stream: Stream, from: &OwnedFd) -> bool {
        let Some(stage) = self.stage.as_ref().filter(|_| stream == Stream::Out) else {
            return false;
        };
        // Nothing of ours is locked: its writer may hold this up.
        let Ok(bytes @ 1..) = stage.take(from, CHUNK) else {
            return false;
        };
        if bytes < MUCH {
            self.take(stream, &stage.read());
            return true;
        }
        match self.flow.take(bytes) {
            Way::Host => match self.outbox.pass_on(self.session, stream, stage, bytes) {
                Ok(true) => {}
                Ok(false) => self.outbox.push(ToHost::ExecOutput {
                    session: self.session,
                    stream,
                    data: stage.read(),
                }),
                Err(error) => self.lose(&error),
            },
            Way::Console { bytes: shown, last } => {
                self.console.tell(&self.name, &stage.read()[..shown], last);
            }
            Way::Nowhere => drop(stage.read()),
        }
        true
    }
}

impl Attended {
    /// Some of its output is lost: its client hears no more of it but that.
    fn lose(&self, error: &io::Error) {
        self.flow.detach();
        self.outbox.push(ToHost::ExecEnd {
            session: self.session,
            outcome: Err(NotStarted {
                code: NotStarted::CANNOT_RUN,
                message: format!(
                    "the guest lost some of its output on the way to the host: {error}"
                ),
            }),
        });
    }
}

/// Room for the output of a command.
#[derive(Debug)]
pub enum Window {
    Open(u32),
    /// In a clone: so many bytes still go to the console.
    Console(usize),
    Detached,
}

/// Destination of a chunk.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    Host,
    /// So much of it, and nothing that follows if it is the last.
    Console {
        bytes: usize,
        last: bool,
    },
    Nowhere,
}

impl Flow {
    /// Of a command that has its reader.
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Window::Open(WINDOW.into())),
            changed: Condvar::new(),
        }
    }

    /// Waits for room for one chunk of so many bytes.
    fn take(&self, length: usize) -> Way {
        let full = |window: &mut Window| matches!(window, Window::Open(0));
        let state = self.changed.wait_while(lock(&self.state), full);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            Window::Open(room) => {
                *room -= 1;
                Way::Host
            }
            Window::Console(left) if *left > length => {
                *left -= length;
                Way::Console {
                    bytes: length,
                    last: false,
                }
            }
            Window::Console(left) => {
                let bytes = *left;
                *state = Window::Detached;
                Way::Console { bytes, last: true }
            }
            Window::Detached => Way::Nowhere,
        }
    }

    pub fn more(&self, chunks: u32) {
        if let Window::Open(room) = &mut *lock(&self.state) {
            *room = room.saturating_add(chunks);
        }
        self.changed.notify_all();
    }

    pub fn detach(&self) {
        self.turn_to(Window::Detached);
    }

    pub fn turn_to(&self, window: Window) {
        *lock(&self.state) = window;
        self.changed.notify_all();
    }

    pub fn is_heard(&self) -> bool {
        matches!(*lock(&self.state), Window::Open(_))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_shows_the_first_of_what_a_command_says_and_that_there_is_more() {
        let flow = Flow {
            state: Mutex::new(Window::Console(10)),
            changed: Condvar::new(),
        };
        let some = |bytes, last| Way::Console { bytes, last };
        assert_eq!(flow.take(6), some(6, false));
        assert_eq!(flow.take(6), some(4, true));
        assert_eq!(flow.take(6), Way::Nowhere);
    }
}
