//! `vmfork run`: clones, a command in each, their output and exit codes here.
//!
//! A clone of a hierarchical ticket is given the command once for each process
//! that it was granted, side by side. Its clones leave one by one, each when its
//! commands have ended, and the join tells of those that were lost.

use super::{
    Failure,
    crew::{self, Crew, Event, Wanted},
    folders::Folders,
    member::LOST,
    number,
    report::{Ended, Input, Into, Lines, Order, Task, TaskNo},
};
use forkyard_agent_link::{AgentClient, CloneEnd};
use forkyard_types::{TicketClone, TicketKind};
use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

#[derive(Debug)]
struct Words<'a> {
    wanted: Wanted,
    limit: Option<Duration>,
    prefix: bool,
    out: Option<PathBuf>,
    command: &'a [&'a str],
}

fn parse<'a>(words: &'a [&'a str]) -> Result<Words<'a>, Failure> {
    let mut parsed = Words {
        wanted: Wanted {
            count: 1,
            kind: TicketKind::Flat,
            least: 1,
        },
        limit: None,
        prefix: true,
        out: None,
        command: &[],
    };
    let mut rest = words;
    loop {
        rest = match rest {
            ["-n", count, rest @ ..] => {
                parsed.wanted.count = number(count)?;
                rest
            }
            ["--hierarchical", rest @ ..] => {
                parsed.wanted.kind = TicketKind::Hierarchical;
                rest
            }
            ["--timeout", seconds, rest @ ..] => {
                parsed.limit = Some(super::seconds(seconds)?);
                rest
            }
            ["--no-prefix", rest @ ..] => {
                parsed.prefix = false;
                rest
            }
            ["--out", folder, rest @ ..] => {
                parsed.out = Some(folder.into());
                rest
            }
            ["--", command @ ..] if !command.is_empty() => {
                parsed.command = command;
                break;
            }
            [] | ["--"] => return Err(Failure::Usage("no command after --".into())),
            [word, ..] => {
                return Err(Failure::Usage(format!(
                    "{word}: unknown; the command goes after --"
                )));
            }
        };
    }
    match parsed.wanted.count {
        0 => Err(Failure::Usage("-n 0: no clones, nothing to run".into())),
        _ => Ok(parsed),
    }
}

/// Runs the command in clones.
pub fn run(client: &AgentClient, words: &[&str]) -> Result<ExitCode, Failure> {
    let words = parse(words)?;
    crew::unless_given_up(run_job(client, &words))
}

fn run_job(client: &AgentClient, words: &Words<'_>) -> Result<ExitCode, Failure> {
    let folders = super::folders_into(words.out.as_deref())?;
    let crew = Crew::fork(client, words.wanted)?;
    let mut gathered = Gathered {
        folders,
        prefix: words.prefix,
        lines: BTreeMap::new(),
        codes: BTreeMap::new(),
    };
    crew.start_join();
    let links = crew.links();
    let clones = &crew.ticket().clones;
    while let Some(event) = crew.next() {
        match event {
            Event::Here { id } => {
                let Some(clone) = clones.iter().find(|clone| clone.id == id) else {
                    continue;
                };
                for number in numbers(clone) {
                    let task = words.task(number, crew.granted());
                    // One that is gone already is told of by the join.
                    let _ = links.order(id, &Order::Run(task));
                }
            }
            Event::Output { number, into, data } => gathered.take(number, into, &data),
            Event::End { number, ended } => {
                gathered.end(number, &ended);
                let its = |clone: &&TicketClone| numbers(clone).any(|one| one == number);
                if let Some(clone) = clones.iter().find(its)
                    && let Some(codes) = gathered.codes_of(clone)
                    && let Some((status, others)) = codes.split_first()
                {
                    let (status, others) = (*status, others.to_vec());
                    let _ = links.order(clone.id, &Order::Leave { status, others });
                }
            }
            // The join tells.
            Event::Gone { id: _ } | Event::Taken { number: _ } | Event::Stopped => {}
            Event::Joined(Ok(ends)) => return Ok(gathered.code(&ends)),
            Event::Joined(Err(why)) => {
                return Err(Failure::Failed(format!("cannot join: {why}")));
            }
        }
    }
    Ok(ExitCode::FAILURE)
}

fn numbers(clone: &TicketClone) -> impl Iterator<Item = TaskNo> + use<> {
    let first = u32::from(clone.id);
    (first..first + u32::from(clone.processes)).map(TaskNo)
}

impl Words<'_> {
    fn task(&self, number: TaskNo, count: u16) -> Task {
        let variable = |name: &str, value: String| (name.to_owned(), value);
        Task {
            number,
            words: self.command.iter().map(ToString::to_string).collect(),
            variables: vec![
                variable("FORKYARD_ID", number.0.to_string()),
                variable("FORKYARD_COUNT", count.to_string()),
            ],
            limit: self.limit,
            folder: self.out.as_ref().map(|_| number.0.to_string()),
            input: Input::Empty,
        }
    }
}

/// Results that have come home.
struct Gathered {
    folders: Option<Folders>,
    prefix: bool,
    lines: BTreeMap<(TaskNo, Into), Lines>,
    codes: BTreeMap<TaskNo, u8>,
}

impl Gathered {
    fn take(&mut self, number: TaskNo, into: Into, data: &[u8]) {
        if into == Into::Folder {
            super::take_folder(&mut self.folders, number, data);
            return;
        }
        let lines = self.lines.entry((number, into)).or_default();
        for line in lines.feed(data) {
            show(number, into, &line, self.prefix);
        }
    }

    fn end(&mut self, number: TaskNo, ended: &Ended) {
        for into in [Into::Out, Into::Err] {
            let lines = self.lines.remove(&(number, into));
            if let Some(line) = lines.and_then(|mut lines| lines.rest()) {
                show(number, into, &line, self.prefix);
            }
        }
        let whole = super::finish_folder(&mut self.folders, number);
        if let Ended::Failed(why) = ended {
            eprintln!("vmfork: [{}] {why}", number.0);
        }
        let code = if whole { ended.code() } else { LOST };
        self.codes.insert(number, code);
    }

    /// The codes of a clone's commands, once all have ended.
    fn codes_of(&self, clone: &TicketClone) -> Option<Vec<u8>> {
        numbers(clone)
            .map(|number| self.codes.get(&number).copied())
            .collect()
    }

    fn code(&self, ends: &[CloneEnd]) -> ExitCode {
        let mut first = 0;
        for end in ends {
            let code = self.codes.get(&TaskNo(u32::from(end.id))).copied();
            if code.is_none() {
                eprintln!("vmfork: [{}] the clone was lost", end.id);
            }
            if first == 0 {
                first = code.unwrap_or(LOST);
            }
        }
        ExitCode::from(first)
    }
}

fn show(number: TaskNo, into: Into, line: &[u8], prefix: bool) {
    let mut text = if prefix {
        format!("[{}] ", number.0).into_bytes()
    } else {
        Vec::new()
    };
    text.extend_from_slice(line);
    text.push(b'\n');
    // A reader that went away is no reason to leave the clones unjoined.
    let _ = match into {
        Into::Out => io::stdout().write_all(&text),
        Into::Err | Into::Folder => io::stderr().write_all(&text),
    };
}
