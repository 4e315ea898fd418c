//! `vmfork`: the fork API for shells, and `vmfork run`, a parallel job in one
//! line.

mod copy;
mod crew;
mod folders;
mod hosts;
mod map;
mod member;
mod remote;
mod report;
mod run;

use folders::Folders;
use forkyard_agent_link::{AgentClient, CallError, Checkpointing, Cloning};
use forkyard_types::{TicketId, TicketKind, VmId};
use report::TaskNo;
use std::{
    fmt::Display,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

const HELP: &str = "\
vmfork: fork this virtual machine

  vmfork run [-n N] [--hierarchical] [--timeout SECONDS] [--no-prefix] [--out DIR]
             -- COMMAND [ARG...]
      Clones this VM N times (1 if not said), runs COMMAND in each clone with
      FORKYARD_ID (1 to N) and FORKYARD_COUNT set, prints what they write as
      `[ID] line`, joins, and exits with the first code that is not 0.
      If it is interrupted or killed, its clones end.
      --hierarchical: runs COMMAND N times in as few clones as have so many
      vCPUs, one a vCPU; numbers are the commands'.
      --timeout: a COMMAND that takes longer is killed; its code is 124.
      --out DIR: what COMMAND puts into the folder $FORKYARD_OUT comes home to
      DIR/ID.
      Example: vmfork run -n 4 -- sh -c 'echo part $FORKYARD_ID of $FORKYARD_COUNT'

  vmfork map [-n N] [--hierarchical] [--timeout SECONDS] [--retry TIMES] [--out DIR]
             -- COMMAND [ARG...] [::: ITEM...]
      Runs COMMAND once for each ITEM (lines of standard input if not said), `{}`
      being the item, or else the last word, in N clones that take the next item
      when they have done one. Output comes in the order of the items; the exit
      code is that of the first item that failed: 124 took longer than
      --timeout, 125 its clone was lost. --retry: items that fail are done
      again so often. On a terminal a line tells how far it is. --out DIR: $FORKYARD_OUT of an item comes home to DIR/NUMBER.
      Example: ls *.fasta | vmfork map -n 8 --retry 1 -- clustalw {}

  vmfork mpirun [-n N] [--least M] [OPTION...] PROGRAM [ARG...]
      Forks this VM for N ranks, one a vCPU, and has Open MPI's mpirun run PROGRAM
      there; options are mpirun's. Everything is as mpirun does it: input,
      output, signals, exit code. The clones end with it. Fewer than N are
      refused; with --least M fewer ranks will do, M at least.
      Example: vmfork mpirun -n 8 ./ring

  vmfork hosts [-n N] [--least M] -- COMMAND [ARG...]
      The same for a COMMAND of your own, which finds its hosts in the file
      $FORKYARD_HOSTFILE and reaches them by `$FORKYARD_RSH HOST WORDS...`, which
      is `vmfork rsh`. An mpirun in it finds them by itself.
      Example: vmfork hosts -n 4 -- ./script-that-calls-mpirun

  vmfork scatter [--all] PATH...
  vmfork gather DIR PATH...
      For the COMMAND of `vmfork hosts`: scatter copies files and folders that it
      has made since the fork, one PATH to a host in turn (--all: each to every
      host), to the same place there. gather copies PATHs of every host to DIR/1,
      DIR/2 and so on, in the order of $FORKYARD_HOSTFILE.
      Example: vmfork hosts -n 2 -- sh -c 'mpirun ./job; vmfork gather out /root/log'

  vmfork id            print the number of this clone, 0 in a VM that is none
  vmfork ticket N      reserve N clones; prints the ticket, which is given back
                       if it is not cloned with within an hour
  vmfork clone TICKET  clone; prints 0 in the parent, 1 and up in the clones
  vmfork exit CODE     end this clone; its memory and disk vanish
  vmfork join TICKET   wait until every clone has ended; prints `ID CODE` for each
  vmfork kill TICKET   end every clone now
  vmfork wait          wait until this VM is forked, by whomever; prints the
                       number of the clone there; in the parent goes on waiting

  vmfork checkpoint    keep this instant; prints `0 CHECKPOINT` now, and in each
                       clone that is made of it later the clone's number
  vmfork create-clones CHECKPOINT TICKET
                       clone a checkpoint, as often as there are tickets
  vmfork drop CHECKPOINT
                       forget it; its clones live on

      Example: t=$(vmfork ticket 2); [ $(vmfork clone $t) = 0 ] || vmfork exit 7; vmfork join $t

Exit codes: 0 done; 1 it failed; 2 the command line is wrong; run, map, mpirun,
hosts: see there.
";

/// Reason why it failed: what the agent said, or the words were wrong.
#[derive(Debug)]
enum Failure {
    Usage(String),
    Failed(String),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::Failed(chain(&error))
    }
}

/// Does what the words say.
pub fn main(words: &[String]) -> ExitCode {
    match dispatch(words) {
        Ok(code) => code,
        Err(Failure::Usage(what)) => {
            eprintln!("vmfork: {what}; see `vmfork --help`");
            ExitCode::from(2)
        }
        Err(Failure::Failed(what)) => {
            eprintln!("vmfork: {what}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[String]) -> Result<ExitCode, Failure> {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let client = AgentClient::from_env();
    match words.as_slice() {
        [] => return Err(Failure::Usage("no command".into())),
        ["rsh", rest @ ..] => return remote::rsh(rest),
        words if asks_help(words) => print!("{HELP}"),
        ["run", rest @ ..] => return run::run(&client, rest),
        ["map", rest @ ..] => return map::map(&client, rest),
        ["mpirun", rest @ ..] => return hosts::mpirun(&client, rest),
        ["hosts", rest @ ..] => return hosts::hosts(&client, rest),
        ["scatter", rest @ ..] => return copy::scatter(rest),
        ["gather", rest @ ..] => return copy::gather(rest),
        ["id"] => println!("{}", client.id()?),
        ["ticket", count] => println!(
            "{}",
            client
                .request_detached(number(count)?, TicketKind::Flat)?
                .id
        ),
        ["clone", ticket] => match client.clone_vm(self::ticket(ticket)?)? {
            Cloning::Parent { failed } => {
                report_failed(&failed);
                println!("0");
            }
            Cloning::Clone { id, .. } => println!("{id}"),
        },
        ["exit", status] => match client.exit(number(status)?, Vec::new())? {},
        ["join", ticket] => {
            for end in client.join(self::ticket(ticket)?)? {
                println!(
                    "{} {}",
                    end.id,
                    end.status
                        .map_or("lost".to_owned(), |status| status.to_string())
                );
            }
        }
        ["checkpoint"] => match client.checkpoint()? {
            Checkpointing::Taken { checkpoint } => println!("0 {checkpoint}"),
            Checkpointing::Clone { id, .. } => println!("{id}"),
        },
        ["create-clones", checkpoint, ticket] => {
            let (checkpoint, ticket) = (number::<VmId>(checkpoint)?, self::ticket(ticket)?);
            report_failed(&client.create_clones(checkpoint, ticket)?);
        }
        ["drop", checkpoint] => client.drop_checkpoint(number(checkpoint)?)?,
        ["wait"] => println!("{}", client.wait_fork()?),
        ["kill", ticket] => client.kill(self::ticket(ticket)?)?,
        [word, ..] => {
            return Err(Failure::Usage(format!(
                "{word}: no such command, or not with these words"
            )));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn asks_help(words: &[&str]) -> bool {
    words
        .iter()
        .take_while(|word| **word != "--")
        // What mpirun is told is the user's.
        .take(if words.first() == Some(&"mpirun") {
            2
        } else {
            words.len()
        })
        .any(|word| matches!(*word, "-h" | "--help" | "help"))
}

fn report_failed(failed: &[(u16, String)]) {
    for (id, why) in failed {
        eprintln!("vmfork: clone {id} could not be made: {why}");
    }
}

/// Folder for what a job needs for as long as it runs; the smallest guests have no `/tmp`.
fn scratch() -> PathBuf {
    let usual = std::env::temp_dir();
    if usual.is_dir() {
        usual
    } else {
        "/var/tmp".into()
    }
}

/// Makes the folder that folders come home to, if one is wanted.
fn folders_into(home: Option<&Path>) -> Result<Option<Folders>, Failure> {
    let folders = home.map(Folders::into).transpose();
    folders.map_err(|error| Failure::Failed(format!("cannot make the folder of --out: {error}")))
}

/// Takes in a piece of a folder; what fails then is told when it ends.
fn take_folder(folders: &mut Option<Folders>, number: TaskNo, data: &[u8]) {
    if let Some(folders) = folders {
        let _ = folders.feed(number, data);
    }
}

/// Tells whether a folder, if one was wanted, is here.
fn finish_folder(folders: &mut Option<Folders>, number: TaskNo) -> bool {
    let finished = folders
        .as_mut()
        .map_or(Ok(()), |folders| folders.finish(number));
    if let Err(error) = &finished {
        eprintln!("vmfork: [{}] its folder: {error}", number.0);
    }
    finished.is_ok()
}

fn number<N: std::str::FromStr<Err: Display>>(word: &str) -> Result<N, Failure> {
    word.parse()
        .map_err(|error| Failure::Usage(format!("{word}: {error}")))
}

/// Reads a limit of time.
fn seconds(word: &str) -> Result<Duration, Failure> {
    let seconds: f64 = number(word)?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| Failure::Usage(format!("--timeout {word}: no such time, in seconds")))
}

fn ticket(word: &str) -> Result<TicketId, Failure> {
    number(word)
}

/// An error and its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn wrong_words_are_refused_before_anything_is_asked_of_the_agent() {
        for line in [
            "",
            "forkbomb",
            "ticket many",
            "clone me",
            "exit 256",
            "create-clones 22222222222",
            "drop it",
            "join",
            "run",
            "run -n",
            "run -n x -- true",
            "run -n 0 -- true",
            "run --timeout soon -- true",
            "map",
            "map -n 0 -- wc ::: a",
            "map --timeout 0 -- wc ::: a",
            "map --retry never -- wc ::: a",
            "mpirun",
            "mpirun -n 0 ring",
            "hosts -n 2 --",
            "scatter",
            "scatter --all",
            "gather",
            "gather out",
            "rsh",
        ] {
            assert!(
                matches!(dispatch(&words(line)), Err(Failure::Usage(_))),
                "{line}"
            );
        }
    }

    #[test]
    fn the_manual_page_has_every_command_and_option_of_the_help() {
        let page = include_str!("../../../packaging/vmfork.1").replace("\\-", "-");
        let wanted = HELP.lines().filter(|line| line.starts_with("  vmfork "));
        let commands = wanted.filter_map(|line| line.split_whitespace().nth(1));
        let options = HELP.split(|letter: char| !letter.is_ascii_lowercase() && letter != '-');
        for word in commands.chain(options.filter(|word| word.starts_with("--") && word.len() > 2))
        {
            assert!(page.contains(word), "{word}");
        }
    }

    #[test]
    fn help_is_given_wherever_it_is_asked_for_but_not_for_the_users_command() {
        for line in ["--help", "help", "run --help", "ticket -h"] {
            assert!(dispatch(&words(line)).is_ok(), "{line}");
        }
        assert!(!asks_help(&["-n", "1", "--", "ls", "--help"]));
    }
}
