//! The programs that the guest knows: lines of words, carried out one after the other.
//!
//! ```text
//! hostname | echo WORD... | true | false | end CODE | wait | poweroff | reboot
//! poke PAGE BYTE | peek PAGE            memory
//! cat                                   says what it hears, until its input ends
//! serve PORT                            from now on a server listens there: see `servers`
//! request N | clone | join | kill | checkpoint | exit STATUS    calls of the fork API
//! /…/forkyard-guest dock                says that it is ready
//! child LINE | parent LINE              only there, after a clone
//! ```
//!
//! `sh -e -c SCRIPT` is a script of such lines, apart by line ends, `;` or `&&`.

use crate::memory::Memory;
use forkyard_agent_link::{Answer, Ask};
use forkyard_types::{ApiError, TicketId, TicketKind};
use serde::{Deserialize, Serialize};

/// A program and how far it is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Program {
    lines: Vec<String>,
    at: usize,
    /// Number as a clone; 0 in the parent.
    number: u16,
    ticket: Option<TicketId>,
    /// Result of the last call, to be printed.
    came_to: Option<Result<String, String>>,
}

/// Receiver of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Out,
    Err,
}

/// A line that a program says.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    pub stream: To,
    pub text: String,
}

/// Next wish of a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Wish {
    GoOn,
    Wait,
    Ask(Ask),
    Serve(u16),
    End(u8),
    PowerOff,
    Reboot,
}

const NOT_FOUND: u8 = 127;

impl Program {
    /// The program that such a command runs.
    pub fn new(argv: &[String]) -> Self {
        let words: Vec<&str> = argv.iter().map(String::as_str).collect();
        let lines = match words[..] {
            ["sh", "-c", script] | ["sh", "-e", "-c", script] => script
                .split("&&")
                .flat_map(|part| part.split([';', '\n']))
                .map(|line| line.trim().to_owned())
                .filter(|line| !line.is_empty())
                .collect(),
            _ => vec![words.join(" ")],
        };
        Self {
            lines,
            at: 0,
            number: 0,
            ticket: None,
            came_to: None,
        }
    }

    /// Takes the answer to its call.
    pub fn answered(&mut self, outcome: Result<Answer, ApiError>) {
        self.came_to = Some(match outcome {
            Ok(Answer::Ticket(ticket)) => {
                self.ticket = Some(ticket.id);
                Ok(format!("granted {}", ticket.clones.len()))
            }
            Ok(Answer::Cloned { id, failed, .. }) => {
                self.number = id;
                match failed.is_empty() {
                    true => Ok(format!("cloned {id}")),
                    false => Err(format!("{failed:?}")),
                }
            }
            Ok(Answer::Joined(ends)) => {
                let ends = ends.into_iter();
                let text = ends.map(|end| match end.status {
                    Some(status) => format!("{}={status}", end.id),
                    None => format!("{}=none", end.id),
                });
                Ok(format!("joined {}", text.collect::<Vec<_>>().join(" ")))
            }
            Ok(Answer::Checkpointed { checkpoint }) => Ok(format!("kept {checkpoint}")),
            Ok(answer) => Ok(format!("{answer:?}")),
            Err(error) => Err(error.message),
        });
    }

    /// True while it waits for input, to say it again.
    pub fn copies(&self) -> bool {
        let now = self.at.checked_sub(1).and_then(|at| self.lines.get(at));
        now.is_some_and(|line| line == "cat")
    }

    /// Goes on as this clone.
    pub fn cloned(&mut self, number: u16) {
        self.number = number;
        self.came_to = None;
    }

    /// Carries out the next line.
    pub fn step(&mut self, name: &str, memory: &Memory) -> (Option<Said>, Wish) {
        let out = |text: String| {
            let stream = To::Out;
            (Some(Said { stream, text }), Wish::GoOn)
        };
        let failed = |text: String, code| {
            let stream = To::Err;
            (Some(Said { stream, text }), Wish::End(code))
        };
        match self.came_to.take() {
            Some(Ok(text)) => return out(text),
            Some(Err(text)) => return failed(text, 1),
            None => {}
        }
        let Some(line) = self.lines.get(self.at).cloned() else {
            return (None, Wish::End(0));
        };
        self.at += 1;
        let mut words: Vec<&str> = line.split_ascii_whitespace().collect();
        match (words.first(), self.number) {
            (Some(&"child"), 0) | (Some(&"parent"), 1..) => return (None, Wish::GoOn),
            (Some(&("child" | "parent")), _) => drop(words.remove(0)),
            _ => {}
        }
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u16>().ok());
        let status = number(1).and_then(|it| u8::try_from(it).ok()).unwrap_or(0);
        let page = usize::from(number(1).unwrap_or(0));
        let ask = |ask| (None, Wish::Ask(ask));
        match (words[0], self.ticket) {
            ("hostname", _) => out(name.to_owned()),
            ("echo", _) => out(words[1..].join(" ")),
            ("true", _) => (None, Wish::GoOn),
            ("false", _) => (None, Wish::End(1)),
            ("end", _) => (None, Wish::End(status)),
            ("wait" | "cat", _) => (None, Wish::Wait),
            ("poweroff", _) => (None, Wish::PowerOff),
            ("reboot", _) => (None, Wish::Reboot),
            ("poke", _) => {
                let byte = number(2).and_then(|it| u8::try_from(it).ok()).unwrap_or(0);
                match memory.poke(page, byte) {
                    Ok(()) => (None, Wish::GoOn),
                    Err(error) => failed(error.to_string(), 1),
                }
            }
            ("peek", _) => match memory.peek(page) {
                Ok(byte) => out(byte.to_string()),
                Err(error) => failed(error.to_string(), 1),
            },
            ("serve", _) => (None, number(1).map_or(Wish::End(1), Wish::Serve)),
            ("request", _) => ask(Ask::RequestTicket {
                count: number(1).unwrap_or(1),
                kind: TicketKind::Flat,
            }),
            ("checkpoint", _) => ask(Ask::Checkpoint),
            ("exit", _) => ask(Ask::Exit {
                status,
                others: Vec::new(),
            }),
            ("clone", Some(ticket)) => ask(Ask::Clone { ticket }),
            ("join", Some(ticket)) => ask(Ask::Join { ticket }),
            ("kill", Some(ticket)) => ask(Ask::Kill { ticket }),
            // The agent's own program, which has nothing to give back here.
            (word, _) if word.ends_with("/forkyard-guest") => out("{}".to_owned()),
            (word, _) => failed(format!("{word}: not found"), NOT_FOUND),
        }
    }
}
