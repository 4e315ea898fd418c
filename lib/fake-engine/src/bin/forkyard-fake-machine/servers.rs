//! Servers in the guest, and the agent's program that connects to them.
//!
//! A server greets by the guest's name in a line, says what it hears, and ends once it has heard the
//! end. It hears no more while what it says is not taken.

use forkyard_agent_link::{
    CHUNK, CONNECTED, END, Session, Stream, StreamPiece, StreamReceiver, ToHost, WINDOW, part,
};
use forkyard_types::ExitStatus;
use std::collections::BTreeMap;

/// Port that a command connects to, if it is the agent's program for that; no port if its word is none.
pub fn wanted(argv: &[String]) -> Option<Option<u16>> {
    match argv {
        [program, role, port] if program.ends_with("/forkyard-guest") && role == "connect" => {
            Some(port.parse().ok())
        }
        _ => None,
    }
}

/// QemuLog of the program where nothing listens, and its end.
pub fn refuse(session: Session) -> Vec<ToHost> {
    let (stream, data) = (Stream::Err, b"connection refused".to_vec());
    let said = ToHost::ExecOutput {
        session,
        stream,
        data,
    };
    vec![said, ended(session, 3)]
}

fn ended(session: Session, code: u8) -> ToHost {
    let outcome = Ok(ExitStatus::Code(code));
    ToHost::ExecEnd { session, outcome }
}

/// Connections of one link to the host.
#[derive(Debug, Default)]
pub struct Connections(BTreeMap<Session, Connection>);

#[derive(Debug)]
struct Connection {
    parts: StreamReceiver,
    /// Said by the server, and not by the program yet.
    waiting: Vec<u8>,
    /// Messages that the host has room for.
    room: u16,
    /// Messages of input that the host was not told of.
    taken: u16,
    over: bool,
}

impl Connections {
    /// Connects to a server of this guest.
    pub fn connect(&mut self, session: Session, name: &str) -> Vec<ToHost> {
        let greeting = [&[CONNECTED][..], &part(format!("{name}\n").as_bytes())].concat();
        let connection = Connection {
            parts: StreamReceiver::default(),
            waiting: greeting,
            room: WINDOW,
            taken: 0,
            over: false,
        };
        self.0.insert(session, connection);
        self.go_on(session)
    }

    /// Hears what the host sends; no bytes are the end of input, which is a hang-up.
    pub fn input(&mut self, session: Session, data: &[u8]) -> Vec<ToHost> {
        let Some(connection) = self.0.get_mut(&session) else {
            return Vec::new();
        };
        if data.is_empty() {
            self.hang_up(session);
            return vec![ended(session, 5)];
        }
        connection.taken += 1;
        for piece in connection.parts.feed(data) {
            match piece {
                StreamPiece::Data(data) => connection.waiting.extend(part(&data)),
                StreamPiece::End => {
                    connection.waiting.extend(END);
                    connection.over = true;
                }
            }
        }
        self.go_on(session)
    }

    /// Says more, for which the host has made room.
    pub fn more(&mut self, session: Session, chunks: u16) -> Vec<ToHost> {
        if let Some(connection) = self.0.get_mut(&session) {
            connection.room += chunks;
        }
        self.go_on(session)
    }

    /// Forgets a connection that the host has left.
    pub fn hang_up(&mut self, session: Session) {
        self.0.remove(&session);
    }

    fn go_on(&mut self, session: Session) -> Vec<ToHost> {
        let Some(connection) = self.0.get_mut(&session) else {
            return Vec::new();
        };
        let mut said = Vec::new();
        while connection.room > 0 && !connection.waiting.is_empty() {
            let length = connection.waiting.len().min(CHUNK);
            let data = connection.waiting.drain(..length).collect();
            connection.room -= 1;
            let stream = Stream::Out;
            said.push(ToHost::ExecOutput {
                session,
                stream,
                data,
            });
        }
        if connection.waiting.is_empty() && connection.taken > 0 {
            let chunks = std::mem::take(&mut connection.taken);
            said.push(ToHost::ExecMore { session, chunks });
        }
        if connection.waiting.is_empty() && connection.over {
            self.0.remove(&session);
            said.push(ended(session, 0));
        }
        said
    }
}
