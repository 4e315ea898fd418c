//! The agent, in a guest whose cgroups are plain files.

use super::*;
use forkyard_agent_link::Session;
use forkyard_types::ExitStatus;
use std::{
    fs::{self, File},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    time::Duration,
};
use tempfile::TempDir;

struct Guest {
    cgroups: TempDir,
    agent: Agent,
    host: FrameReader<UnixStream>,
}

impl Guest {
    fn new(frozen: &str) -> Self {
        let cgroups = tempfile::tempdir().expect("folder");
        let user = cgroups.path().join("user");
        fs::create_dir_all(user.join("exec")).expect("made");
        fs::create_dir(cgroups.path().join("hooks")).expect("made");
        fs::write(user.join("exec/cgroup.procs"), "").expect("written");
        fs::write(user.join("cgroup.freeze"), frozen).expect("written");
        // As if the kernel stopped them as soon as it is told.
        fs::write(user.join("cgroup.events"), "populated 1\nfrozen 1\n").expect("written");
        let (host, agent) = Self::worker(cgroups.path());
        Self {
            cgroups,
            agent,
            host,
        }
    }

    fn worker(cgroups: &Path) -> (FrameReader<UnixStream>, Agent) {
        let (port, host) = UnixStream::pair().expect("a pair");
        host.set_read_timeout(Some(Duration::from_secs(20)))
            .expect("set");
        let outbox = Arc::new(Outbox::new(File::from(OwnedFd::from(port)).into()));
        outbox.start();
        let clock = Clock::new(Box::new(clock::tests::Fake::default()));
        let agent = Agent::new(outbox, Userland::at(cgroups), clock);
        (FrameReader::new(host), agent)
    }

    /// Another worker in place of this one.
    fn restart(&mut self) {
        (self.host, self.agent) = Self::worker(self.cgroups.path());
    }

    fn hear(&mut self) -> ToHost {
        let heard = self.host.read_message::<ToHost>().expect("sense");
        heard.expect("a message")
    }

    /// Answers the agent's question for the time.
    fn tell_time(&mut self) {
        self.tell_time_of(1);
    }

    fn tell_time_of(&mut self, host: u64) {
        let ToHost::AskTime { asked } = self.hear() else {
            panic!("it does not ask for the time");
        };
        self.agent.act(ToGuest::Time { asked, host });
    }

    fn quiesce(&mut self, fork: ForkId) {
        self.agent.act(ToGuest::Quiesce { fork });
        self.tell_time();
    }

    fn resume(&mut self) {
        self.agent.act(ToGuest::Resume);
        self.tell_time();
    }

    fn socket(&self) -> UnixStream {
        self.host.get_ref().try_clone().expect("a descriptor")
    }

    fn is_frozen(&self) -> bool {
        self.agent.userland.is_held()
    }

    fn exec(&mut self, session: u32, script: &str) {
        self.agent.act(ToGuest::Exec {
            session: Session(session),
            command: Box::new(forkyard_agent_link::Command {
                argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
                ..Default::default()
            }),
        });
    }
}

#[test]
fn hello_while_held_is_answered_at_once_and_lets_nothing_else_out() {
    let mut guest = Guest::new("0");
    let fork = ForkId::random();
    guest.quiesce(fork);
    assert_eq!(guest.hear(), ToHost::Quiesced { fork, failed: None });
    let waits = ToHost::Forget {
        call: forkyard_agent_link::CallId(1),
    };
    guest.agent.act(ToGuest::Hello { version: VERSION });
    guest.agent.outbox.push(waits.clone());
    let hello = guest.hear();
    assert!(matches!(hello, ToHost::Hello { .. }), "{hello:?}");
    assert!(guest.is_frozen(), "another host's fork is not ours to end");
    let socket = guest.socket();
    socket
        .set_read_timeout(Some(Duration::from_millis(50)))
        .expect("set");
    assert!(guest.host.read_message::<ToHost>().is_err(), "silence");
    socket.set_read_timeout(None).expect("set");
    guest.resume();
    assert_eq!(guest.hear(), waits);
    assert!(!guest.is_frozen());
}

#[test]
fn a_worker_that_follows_one_that_died_holding_user_code_does_not_let_it_go() {
    let mut guest = Guest::new("0");
    let fork = ForkId::random();
    guest.quiesce(fork);
    guest.restart();
    assert!(guest.is_frozen(), "it may be a clone that is nobody yet");
    assert_eq!(guest.agent.epoch, None, "its identity is to be applied");
    guest.resume();
    assert!(!guest.is_frozen());
}

#[test]
fn guest_that_stood_still_without_being_held_catches_up_when_it_is_let_go_on() {
    const S: u64 = 1_000_000_000;
    let mut guest = Guest::new("0");
    let fake = clock::tests::Fake::default();
    guest.agent.clock = Clock::new(Box::new(fake.clone()));
    guest.agent.act(ToGuest::Ping);
    guest.tell_time_of(100 * S);
    fake.pass(S);
    // A disk that was full stopped it for 20 s, and another daemon has it by now.
    guest.agent.act(ToGuest::Resume);
    guest.tell_time_of(121 * S);
    assert_eq!(fake.wall_now(), i128::from(21 * S));
}

#[test]
fn a_question_whether_it_is_there_that_comes_first_costs_no_guest_the_time_it_stood_still() {
    const S: u64 = 1_000_000_000;
    let mut guest = Guest::new("0");
    let fake = clock::tests::Fake::default();
    guest.agent.clock = Clock::new(Box::new(fake.clone()));
    guest.agent.act(ToGuest::Ping);
    guest.tell_time_of(100 * S);
    fake.pass(S);
    // It stood still for 20 s; the daemon, which did not know, asked meanwhile.
    guest.agent.act(ToGuest::Ping);
    guest.tell_time_of(121 * S);
    guest.agent.act(ToGuest::StoodStill);
    guest.tell_time_of(121 * S);
    assert_eq!(fake.wall_now(), i128::from(21 * S));
}

#[test]
fn the_end_of_a_command_does_not_touch_another_that_has_its_number_by_now() {
    let mut guest = Guest::new("0");
    let folder = guest.cgroups.path().join("go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.01; done", folder.display());
    guest.exec(7, &wait);
    let first = guest.agent.sessions.held_by(Session(7)).expect("it runs");
    // Another host, or the clone's: it knows of no command and begins to count.
    guest.agent.act(ToGuest::Hello { version: VERSION });
    assert!(matches!(guest.hear(), ToHost::Hello { .. }));
    guest.exec(7, "read word; exit $word");
    fs::write(&folder, "").expect("written");
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while first.strong_count() > 0 {
        let waits = std::time::Instant::now() < deadline;
        assert!(waits, "the first is not cleared away");
        std::thread::sleep(Duration::from_millis(10));
    }
    guest.agent.act(ToGuest::ExecInput {
        session: Session(7),
        data: b"42\n".to_vec(),
    });
    let end = loop {
        let heard = guest.hear();
        if !matches!(heard, ToHost::ExecMore { .. }) {
            break heard;
        }
    };
    let want = ToHost::ExecEnd {
        session: Session(7),
        outcome: Ok(ExitStatus::Code(42)),
    };
    assert_eq!(end, want, "the second's end");
}

#[test]
fn what_a_clones_own_program_says_is_on_its_console_and_a_parents_is_not() {
    let mut guest = Guest::new("0");
    let console = guest.cgroups.path().join("console");
    fs::write(&console, "").expect("written");
    guest.agent.sessions.console = console::Console::at(&console);
    let (go, said) = (
        guest.cgroups.path().join("go"),
        guest.cgroups.path().join("said"),
    );
    let script = |word: &str| {
        let (go, said) = (go.display(), said.display());
        format!("while [ ! -e {go} ]; do sleep 0.01; done; echo {word}; echo >{said}.{word}")
    };
    // The host's daemon has started again: no client follows this command, and this is no clone. (These
    // processes are in no cgroup, where those to be hung up on are found.)
    guest.exec(1, &script("parents"));
    guest.agent.sessions.hang_up_all();
    guest.exec(2, &script("clones"));
    guest.agent.sessions.leave_to_console();
    fs::write(&go, "").expect("written");
    let told = || fs::read_to_string(&console).expect("there");
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    let over = || {
        ["parents", "clones"]
            .iter()
            .all(|word| fs::exists(format!("{}.{word}", said.display())).is_ok_and(|it| it))
    };
    while !(over() && told().contains("clones")) && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(told(), "sh: clones\n");
}

#[test]
fn a_command_that_comes_before_user_code_goes_on_is_started_after_it() {
    let mut guest = Guest::new("0");
    guest.quiesce(ForkId::random());
    assert!(matches!(guest.hear(), ToHost::Quiesced { .. }));
    guest.agent.act(ToGuest::Resume);
    let started = guest.cgroups.path().join("started");
    guest.exec(3, &format!("echo >{}", started.display()));
    assert!(!started.exists() && guest.is_frozen());
    guest.tell_time();
    assert!(!guest.is_frozen());
    let end = guest.hear();
    assert!(matches!(end, ToHost::ExecEnd { .. }), "{end:?}");
    assert!(started.exists());
}
