//! `vmfork map`: a command for each of many items, in a few clones, results in
//! the order of the items.
//!
//! A clone has one item at a time for each of its numbers, and takes the next
//! when that has ended. An item that fails, takes too long, or whose clone is gone is
//! done again, as often as `--retry` says, by whichever clone is free.

use super::{
    Failure,
    crew::{self, Crew, Event, Wanted},
    folders::Folders,
    member::LOST,
    number,
    report::{Ended, Input, Into, Order, Task, TaskNo},
};
use forkyard_agent_link::AgentClient;
use forkyard_types::TicketKind;
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, BufRead, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

#[derive(Debug)]
struct Words {
    wanted: Wanted,
    limit: Option<Duration>,
    retry: u32,
    out: Option<PathBuf>,
    command: Vec<String>,
    items: Vec<String>,
}

fn parse(words: &[&str]) -> Result<Words, Failure> {
    let mut parsed = Words {
        wanted: Wanted {
            count: 1,
            kind: TicketKind::Flat,
            least: 1,
        },
        limit: None,
        retry: 0,
        out: None,
        command: Vec::new(),
        items: Vec::new(),
    };
    let mut rest = words;
    let command = loop {
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
            ["--retry", times, rest @ ..] => {
                parsed.retry = number(times)?;
                rest
            }
            ["--out", folder, rest @ ..] => {
                parsed.out = Some(folder.into());
                rest
            }
            ["--", command @ ..] => break command,
            [] => return Err(Failure::Usage("no command after --".into())),
            [word, ..] => {
                return Err(Failure::Usage(format!(
                    "{word}: unknown; the command goes after --"
                )));
            }
        };
    };
    let mut parts = command.splitn(2, |word| *word == ":::");
    let owned = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    parsed.command = owned(parts.next().unwrap_or_default());
    if parsed.command.is_empty() {
        return Err(Failure::Usage("no command after --".into()));
    }
    if parsed.wanted.count == 0 {
        return Err(Failure::Usage("-n 0: no clones, nothing to run".into()));
    }
    parsed.items = match parts.next() {
        Some(items) => owned(items),
        None => lines_of_input()?,
    };
    Ok(parsed)
}

fn lines_of_input() -> Result<Vec<String>, Failure> {
    let lines: io::Result<Vec<String>> = io::stdin().lock().lines().collect();
    lines.map_err(|error| Failure::Failed(format!("cannot read the items: {error}")))
}

/// Runs the command on every item.
pub fn map(client: &AgentClient, words: &[&str]) -> Result<ExitCode, Failure> {
    let mut words = parse(words)?;
    let items = u16::try_from(words.items.len()).unwrap_or(u16::MAX);
    if items == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    // No clone would have anything to do beyond that.
    words.wanted.count = words.wanted.count.min(items);
    crew::unless_given_up(map_items(client, &words))
}

fn map_items(client: &AgentClient, words: &Words) -> Result<ExitCode, Failure> {
    let folders = super::folders_into(words.out.as_deref())?;
    let crew = Crew::fork(client, words.wanted)?;
    let mut board = Board::of(words.items.len(), words.retry);
    let mut home = Home {
        folders,
        output: BTreeMap::new(),
    };
    let mut alive = crew.ticket().clones.len();
    let progress = Progress::if_watched();
    let links = crew.links();
    while !board.is_done() {
        let Some(event) = crew.next() else { break };
        match event {
            Event::Here { id } => {
                let mut clones = crew.ticket().clones.iter();
                let clone = clones.find(|clone| clone.id == id);
                board.free(id, clone.map_or(1, |clone| clone.processes));
            }
            Event::Output { number, into, data } => home.take(number, into, data),
            Event::End { number, ended } => {
                let output = home.end(number, ended);
                board.end(number, output);
            }
            Event::Gone { id } => {
                progress.clear();
                eprintln!("vmfork: clone {id} was lost");
                alive = alive.saturating_sub(1);
                board.lose(id);
                if alive == 0 {
                    board.give_up();
                }
            }
            Event::Taken { number: _ } => {}
            Event::Stopped | Event::Joined(_) => break,
        }
        while let Some((id, number, item)) = board.next() {
            let task = words.task(number, item);
            // A clone that does not hear it is gone: that is told, too.
            let _ = links.order(id, &Order::Run(task));
        }
        progress.clear();
        board.show_what_is_next();
        progress.show(&board);
    }
    progress.clear();
    crew.end()?;
    Ok(ExitCode::from(board.code))
}

impl Words {
    fn task(&self, number: TaskNo, item: usize) -> Task {
        let text = &self.items[item];
        let place = (item + 1).to_string();
        let has_place = self.command.iter().any(|word| word.contains("{}"));
        let mut words: Vec<_> = self
            .command
            .iter()
            .map(|word| word.replace("{}", text))
            .collect();
        if !has_place {
            words.push(text.clone());
        }
        Task {
            number,
            words,
            variables: vec![
                ("FORKYARD_ITEM".to_owned(), text.clone()),
                ("FORKYARD_ITEM_NUMBER".to_owned(), place.clone()),
            ],
            limit: self.limit,
            folder: self.out.as_ref().map(|_| place),
            input: Input::Empty,
        }
    }
}

/// Output of a command, and its code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    out: Vec<u8>,
    err: Vec<u8>,
    code: u8,
}

struct Home {
    folders: Option<Folders>,
    output: BTreeMap<TaskNo, Outcome>,
}

impl Home {
    fn take(&mut self, number: TaskNo, into: Into, data: Vec<u8>) {
        let output = self.output.entry(number).or_default();
        match into {
            Into::Out => output.out.extend(data),
            Into::Err => output.err.extend(data),
            Into::Folder => super::take_folder(&mut self.folders, number, &data),
        }
    }

    fn end(&mut self, number: TaskNo, ended: Ended) -> Outcome {
        let whole = super::finish_folder(&mut self.folders, number);
        let mut outcome = self.output.remove(&number).unwrap_or_default();
        outcome.code = if whole { ended.code() } else { LOST };
        if let Ended::Failed(why) = ended {
            outcome.err.extend(format!("vmfork: {why}\n").into_bytes());
        }
        outcome
    }
}

/// An item that a clone has.
struct Doing {
    item: usize,
    clone: u16,
}

/// Items to do, being done, and done.
struct Board {
    tries: Vec<u32>,
    waiting: VecDeque<usize>,
    doing: BTreeMap<TaskNo, Doing>,
    done: BTreeMap<usize, Outcome>,
    free: VecDeque<u16>,
    shown: usize,
    ended: usize,
    failed: usize,
    next_number: u32,
    code: u8,
}

impl Board {
    fn of(items: usize, retry: u32) -> Self {
        Self {
            tries: vec![retry; items],
            waiting: (0..items).collect(),
            doing: BTreeMap::new(),
            done: BTreeMap::new(),
            free: VecDeque::new(),
            shown: 0,
            ended: 0,
            failed: 0,
            next_number: 0,
            code: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.shown == self.tries.len()
    }

    fn free(&mut self, clone: u16, places: u8) {
        self.free.extend((0..places).map(|_| clone));
    }

    /// Takes the next item to do, and the clone for it.
    fn next(&mut self) -> Option<(u16, TaskNo, usize)> {
        let clone = *self.free.front()?;
        let item = self.waiting.pop_front()?;
        self.free.pop_front();
        let number = TaskNo(self.next_number);
        self.next_number += 1;
        self.doing.insert(number, Doing { item, clone });
        Some((clone, number, item))
    }

    fn end(&mut self, number: TaskNo, outcome: Outcome) {
        let Some(doing) = self.doing.remove(&number) else {
            return;
        };
        self.free.push_back(doing.clone);
        self.settle(doing.item, outcome);
    }

    fn settle(&mut self, item: usize, outcome: Outcome) {
        if outcome.code != 0 && self.tries[item] > 0 {
            self.tries[item] -= 1;
            self.waiting.push_front(item);
        } else {
            self.close(item, outcome);
        }
    }

    /// Takes an outcome as an item's last.
    fn close(&mut self, item: usize, outcome: Outcome) {
        self.ended += 1;
        self.failed += usize::from(outcome.code != 0);
        self.done.insert(item, outcome);
    }

    fn lose(&mut self, clone: u16) {
        self.free.retain(|free| *free != clone);
        let lost: Vec<_> = self
            .doing
            .extract_if(.., |_, doing| doing.clone == clone)
            .collect();
        for (_, doing) in lost {
            self.settle(doing.item, lost_outcome());
        }
    }

    /// Leaves what is not done undone: no clone is left.
    fn give_up(&mut self) {
        for item in std::mem::take(&mut self.waiting) {
            self.close(item, lost_outcome());
        }
    }

    /// Items done, of all; those under way; those that have failed for good.
    fn progress(&self) -> String {
        let failed = self.failed;
        let (done, all, doing) = (self.ended, self.tries.len(), self.doing.len());
        format!("{done} of {all} done, {doing} running, {failed} failed")
    }

    /// Prints what is done, as far as nothing is missing before it.
    fn show_what_is_next(&mut self) {
        while let Some(outcome) = self.done.remove(&self.shown) {
            self.shown += 1;
            // A reader that went away is no reason to leave clones behind.
            let _ = io::stdout().write_all(&outcome.out);
            let _ = io::stderr().write_all(&outcome.err);
            if outcome.code != 0 {
                eprintln!("vmfork: item {} ended with {}", self.shown, outcome.code);
                if self.code == 0 {
                    self.code = outcome.code;
                }
            }
        }
    }
}

/// Line below what is printed, for a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Shown,
    Hidden,
}

impl Progress {
    /// Shown if standard error is a terminal.
    fn if_watched() -> Self {
        match io::stderr().is_terminal() {
            true => Self::Shown,
            false => Self::Hidden,
        }
    }

    fn show(self, board: &Board) {
        if self == Self::Shown {
            eprint!("{}", board.progress());
        }
    }

    /// Makes room for what is printed.
    fn clear(self) {
        if self == Self::Shown {
            eprint!("\r\x1b[K");
        }
    }
}

fn lost_outcome() -> Outcome {
    Outcome {
        code: LOST,
        ..Outcome::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(code: u8) -> Outcome {
        Outcome {
            code,
            ..Outcome::default()
        }
    }

    #[test]
    fn a_failed_item_is_done_again_as_often_as_was_said_and_by_any_clone() {
        let mut board = Board::of(2, 1);
        board.free(1, 1);
        board.free(2, 1);
        let (_, first, item) = board.next().expect("one");
        let (_, second, _) = board.next().expect("another");
        assert_eq!((item, board.next()), (0, None));
        board.end(first, code(3));
        assert_eq!(board.progress(), "0 of 2 done, 1 running, 0 failed");
        let (clone, again, item) = board.next().expect("the first, again");
        assert_eq!((clone, item), (1, 0));
        board.end(again, code(4));
        board.end(second, code(0));
        board.show_what_is_next();
        assert!(board.is_done());
        assert_eq!(board.progress(), "2 of 2 done, 0 running, 1 failed");
        assert_eq!(board.code, 4);
    }

    #[test]
    fn items_of_a_lost_clone_go_to_others_and_fail_when_there_is_none() {
        let mut board = Board::of(3, 1);
        board.free(1, 2);
        board.free(2, 1);
        while board.next().is_some() {}
        board.lose(1);
        assert_eq!(board.next(), None, "clone 2 is busy, 1 gone");
        let (number, _) = board.doing.pop_first().expect("clone 2's");
        board.doing.insert(number, Doing { item: 2, clone: 2 });
        board.end(number, code(0));
        assert!(board.next().is_some_and(|(clone, ..)| clone == 2));
        board.lose(2);
        board.give_up();
        board.show_what_is_next();
        assert!(board.is_done());
        assert_eq!(board.code, LOST);
    }

    #[test]
    fn an_item_takes_the_place_that_is_kept_for_it_or_the_last() {
        for (command, want) in [
            (
                &["--", "cp", "{}", "{}.old", ":::", "a b"][..],
                &["cp", "a b", "a b.old"][..],
            ),
            (&["--", "wc", ":::", "x"], &["wc", "x"]),
        ] {
            let words = parse(command).expect("good words");
            assert_eq!(words.task(TaskNo(0), 0).words, want);
        }
    }
}
