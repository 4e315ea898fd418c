//! `vmfork hosts`: a command here that has clones as its hosts; `vmfork mpirun`,
//! mpirun as that command. Their way to the clones is in `remote`.
//!
//! ```text
//! hosts --fork--> clones --TCP, the key--> hosts       (crew.rs)
//!   +-- COMMAND ... folder/rsh HOST WORDS --folder/socket--> hosts --Run--> clone
//! ```
//!
//! The folder is its user's alone, and goes with the command; the clones end with
//! it, too, whatever runs in them then.

use super::{
    Failure,
    crew::{self, Crew, Event, Foreman, Links, Wanted},
    number,
    remote::{Answer, Call, FOLDER, HOSTS, Piece, SOCKET},
    report::{Ended, Input, Order, Task, TaskNo},
};
use forkyard_agent_link::{AgentClient, FrameReader, send};
use forkyard_types::{Ticket, TicketKind};
use nix::unistd::Pid;
use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs,
    io::{self, IsTerminal, Write},
    os::unix::{
        fs::{DirBuilderExt, OpenOptionsExt},
        net::{UnixListener, UnixStream},
        process::{CommandExt, ExitStatusExt},
    },
    path::PathBuf,
    process::{Command, ExitCode},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

#[derive(Debug, PartialEq, Eq)]
struct Words<'a> {
    wanted: Wanted,
    rest: &'a [&'a str],
}

/// Takes options off the front; fewer than asked for do only if that is said.
fn parse<'a>(words: &'a [&'a str]) -> Result<Words<'a>, Failure> {
    let (mut count, mut least, mut rest) = (1, None, words);
    loop {
        rest = match rest {
            ["-n" | "-np" | "-c", value, rest @ ..] => {
                count = number(value)?;
                rest
            }
            ["--least", value, rest @ ..] => {
                least = Some(number(value)?);
                rest
            }
            ["--", rest @ ..] | rest => {
                if count == 0 {
                    return Err(Failure::Usage("-n 0: no clones, nothing to run".into()));
                }
                if rest.is_empty() {
                    return Err(Failure::Usage("no command".into()));
                }
                let wanted = Wanted {
                    count,
                    kind: TicketKind::Hierarchical,
                    least: least.unwrap_or(count),
                };
                return Ok(Words { wanted, rest });
            }
        };
    }
}

/// Runs a command that has clones as its hosts.
pub fn hosts(client: &AgentClient, words: &[&str]) -> Result<ExitCode, Failure> {
    let words = parse(words)?;
    let command = |_| words.rest.iter().map(ToString::to_string).collect();
    crew::unless_given_up(with_hosts(client, words.wanted, command))
}

/// Runs mpirun with as many ranks as were granted.
pub fn mpirun(client: &AgentClient, words: &[&str]) -> Result<ExitCode, Failure> {
    let words = parse(words)?;
    let command = |granted: u16| {
        let rest = words.rest.iter().map(ToString::to_string);
        let fixed = ["mpirun".to_owned(), "-n".to_owned(), granted.to_string()];
        fixed.into_iter().chain(rest).collect()
    };
    crew::unless_given_up(with_hosts(client, words.wanted, command))
}

fn with_hosts(
    client: &AgentClient,
    wanted: Wanted,
    command: impl FnOnce(u16) -> Vec<String>,
) -> Result<ExitCode, Failure> {
    let failed =
        |error: io::Error| Failure::Failed(format!("cannot make a folder for it: {error}"));
    // Before the fork: daemons in clones look for the launcher, too.
    let job = Folder::new().map_err(failed)?;
    let crew = Crew::fork(client, wanted)?;
    let command = command(crew.granted());
    job.list(crew.ticket()).map_err(failed)?;
    let socket = UnixListener::bind(job.0.join(SOCKET)).map_err(failed)?;
    let desk = Desk {
        by_name: crew
            .ticket()
            .clones
            .iter()
            .map(|clone| (clone.ip.to_string(), clone.id))
            .collect(),
        links: crew.links(),
        callers: Arc::default(),
    };
    // Ends with the process.
    let accepting = desk.clone();
    thread::spawn(move || accepting.accept(&socket));
    let stop = crew.stop();
    let ended = thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let ended = start(&command, &job);
            stop();
            ended
        });
        desk.route(&crew);
        waiter.join()
    });
    let code = ended.unwrap_or_else(|_| Err(Failure::Failed("its thread ended".into())));
    crew.end()?;
    code
}

fn start(command: &[String], job: &Folder) -> Result<ExitCode, Failure> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| Failure::Usage("no command".into()))?;
    let mut command = Command::new(program);
    command.args(arguments).envs(job.variables());
    // A terminal's foreground is one group, and Ctrl-C is for all of it. Without one a signal for the
    // group would come twice: by itself, and passed on.
    let apart = !io::stdin().is_terminal();
    if apart {
        command.process_group(0);
    }
    let mut child = crew::unmasked(|| command.spawn())
        .map_err(|error| Failure::Failed(format!("cannot run {program}: {error}")))?;
    let process = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
    crew::pass_signals_to(Some(match apart {
        true => Foreman::Apart(process),
        false => Foreman::Beside(process),
    }));
    let status = child
        .wait()
        .map_err(|error| Failure::Failed(format!("cannot wait for {program}: {error}")))?;
    crew::pass_signals_to(None);
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

/// Folder with what the command needs to find its hosts.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Self> {
        let name = format!("forkyard-hosts-{}", std::process::id());
        let path = super::scratch().join(name);
        // One that is left is of a process that had this number, and was killed.
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        crew::remove_when_given_up(&path);
        let folder = Self(path);
        // Launchers take a path, not a command.
        let mut script = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o700)
            .open(folder.0.join("rsh"))?;
        let program = crate::PROGRAM;
        write!(script, "#!/bin/sh\nexec {program} vmfork rsh \"$@\"\n")?;
        Ok(folder)
    }

    /// Writes the hosts down.
    fn list(&self, ticket: &Ticket) -> io::Result<()> {
        let (mut slots, mut hydra) = (String::new(), String::new());
        for clone in &ticket.clones {
            // Writing to a string does not fail.
            let _ = writeln!(slots, "{} slots={}", clone.ip, clone.processes);
            let _ = writeln!(hydra, "{}:{}", clone.ip, clone.processes);
        }
        fs::write(self.0.join(HOSTS), slots)?;
        fs::write(self.0.join("hydra"), hydra)
    }

    fn variables(&self) -> Vec<(&'static str, PathBuf)> {
        let hosts = self.0.join(HOSTS);
        let rsh = self.0.join("rsh");
        let mut variables = vec![
            (FOLDER, self.0.clone()),
            ("FORKYARD_HOSTFILE", hosts.clone()),
            ("FORKYARD_RSH", rsh.clone()),
            // Open MPI 4. Each daemon is started from here, not by another.
            ("OMPI_MCA_plm_rsh_agent", rsh.clone()),
            ("OMPI_MCA_plm_rsh_no_tree_spawn", "1".into()),
            ("OMPI_MCA_orte_default_hostfile", hosts),
            // A lost clone closes no connection. Its own defaults would notice after five minutes.
            ("OMPI_MCA_oob_tcp_keepalive_time", "10".into()),
            ("OMPI_MCA_oob_tcp_keepalive_intvl", "5".into()),
            ("OMPI_MCA_oob_tcp_keepalive_probes", "4".into()),
            // MPICH, by Hydra. Clones do not know the parent by its name.
            ("HYDRA_LAUNCHER", "ssh".into()),
            ("HYDRA_LAUNCHER_EXEC", rsh),
            ("HYDRA_HOST_FILE", self.0.join("hydra")),
            // A fork is root's: only root gets here.
            ("OMPI_ALLOW_RUN_AS_ROOT", "1".into()),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".into()),
        ];
        if let Some(interface) = crew::own_interface() {
            variables.push(("HYDRA_IFACE", interface.into()));
        }
        // What the user has said counts.
        variables.retain(|(name, _)| *name == FOLDER || env::var_os(name).is_none());
        variables
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing more can be done about one that stays.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A call of `vmfork rsh` that is under way.
struct Caller {
    clone: u16,
    link: UnixStream,
    /// Told when the command has read a piece of its input.
    taken: mpsc::Sender<()>,
}

/// Desk at which calls come in, and their answers go out.
#[derive(Clone)]
struct Desk {
    by_name: BTreeMap<String, u16>,
    links: Links,
    callers: Arc<Mutex<(u32, BTreeMap<TaskNo, Caller>)>>,
}

impl Desk {
    fn callers(&self) -> MutexGuard<'_, (u32, BTreeMap<TaskNo, Caller>)> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(&self, socket: &UnixListener) {
        for link in socket.incoming().flatten() {
            let desk = self.clone();
            thread::spawn(move || desk.call(link));
        }
    }

    fn call(&self, mut link: UnixStream) {
        let Ok(copy) = link.try_clone() else { return };
        let mut words = FrameReader::new(copy);
        let Ok(Some(call)) = words.read_message() else {
            return;
        };
        let Call {
            host,
            command,
            input,
        } = call;
        let Some(clone) = self.by_name.get(&host).copied() else {
            let why = format!("{host} is no host of this job (they are in $FORKYARD_HOSTFILE)");
            // A caller that went away needs no answer.
            let _ = send(&mut link, &Answer::End(Ended::Failed(why)));
            return;
        };
        let (taken, told) = mpsc::channel();
        let number = {
            let mut callers = self.callers();
            callers.0 += 1;
            let number = TaskNo(callers.0);
            let caller = Caller { clone, link, taken };
            callers.1.insert(number, caller);
            number
        };
        let task = Task {
            number,
            words: vec!["sh".to_owned(), "-c".to_owned(), command],
            variables: Vec::new(),
            limit: None,
            folder: None,
            input,
        };
        let mut sent = self.links.order(clone, &Order::Run(task));
        if input == Input::Sent && sent.is_ok() {
            sent = self.pass_input(clone, number, &mut words, &told);
        }
        if let Err(error) = sent {
            self.end(
                number,
                Ended::Failed(format!("cannot reach {host}: {error}")),
            );
        }
    }

    /// Passes a caller's input to its command, a piece at a time, until either ends.
    fn pass_input(
        &self,
        clone: u16,
        number: TaskNo,
        words: &mut FrameReader<UnixStream>,
        told: &mpsc::Receiver<()>,
    ) -> io::Result<()> {
        loop {
            // A caller that went away has no more input.
            let piece = words.read_message().ok().flatten();
            let Piece(data) = piece.unwrap_or_default();
            let is_end = data.is_empty();
            self.links.order(clone, &Order::Input { number, data })?;
            // Without its sender the command has ended.
            if is_end || told.recv().is_err() {
                return Ok(());
            }
        }
    }

    fn end(&self, number: TaskNo, ended: Ended) {
        if let Some(mut caller) = self.callers().1.remove(&number) {
            let _ = send(&mut caller.link, &Answer::End(ended));
        }
    }

    /// Hands on what clones say, until the command has ended.
    fn route(&self, crew: &Crew) {
        while let Some(event) = crew.next() {
            match event {
                Event::Here { id: _ } => {}
                Event::Output { number, into, data } => {
                    if let Some(caller) = self.callers().1.get_mut(&number) {
                        let _ = send(&mut caller.link, &Answer::Output { into, data });
                    }
                }
                Event::Taken { number } => {
                    if let Some(caller) = self.callers().1.get(&number) {
                        // Fails only if its input has ended.
                        let _ = caller.taken.send(());
                    }
                }
                Event::End { number, ended } => self.end(number, ended),
                Event::Gone { id } => {
                    eprintln!("vmfork: clone {id} was lost");
                    let its = |(number, caller): (&TaskNo, &Caller)| {
                        (caller.clone == id).then_some(*number)
                    };
                    let lost: Vec<_> = self.callers().1.iter().filter_map(its).collect();
                    for number in lost {
                        self.end(number, Ended::Failed("the clone was lost".to_owned()));
                    }
                }
                Event::Stopped | Event::Joined(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_grant_is_refused_unless_it_is_said_to_do() {
        let words = parse(&["-n", "4", "--least", "2", "ring", "-n", "7"]).expect("good words");
        assert_eq!((words.wanted.count, words.wanted.least), (4, 2));
        assert_eq!(words.rest, ["ring", "-n", "7"]);
        assert_eq!(
            parse(&["-np", "4", "ring"])
                .expect("good words")
                .wanted
                .least,
            4
        );
        for words in [&["-n", "0", "x"][..], &["-n", "2"], &[]] {
            assert!(matches!(parse(words), Err(Failure::Usage(_))), "{words:?}");
        }
    }
}
