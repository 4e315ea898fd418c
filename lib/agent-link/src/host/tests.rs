//! The host's end against an agent that speaks real frames.

mod commands;
mod flood;
mod moves;

use super::*;
use crate::{Ask, Decoder, Stream, ToHost, WINDOW, encode};
use forkyard_types::{
    Address, ExitStatus, FamilyId, Identity, Mac, Member, RequestId, TicketId, VmId,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
};

const SOON: Duration = Duration::from_secs(20);

/// An agent that says just what a test has it say.
struct Agent {
    stream: UnixStream,
    decoder: Decoder,
    listener: UnixListener,
    _folder: tempfile::TempDir,
}

impl Agent {
    async fn hear(&mut self) -> ToGuest {
        let mut buffer = [0; 4096];
        loop {
            if let Some(message) = self.decoder.next_message() {
                return message.expect("sense");
            }
            let read = self.stream.read(&mut buffer).await.expect("read");
            assert!(read > 0, "the host hung up");
            self.decoder.feed(&buffer[..read]);
        }
    }

    async fn say(&mut self, message: &ToHost) {
        self.stream
            .write_all(&encode(message).expect("small"))
            .await
            .expect("written");
    }

    /// Waits until the host has acted on all that was said: it answers in order.
    async fn is_heard(&mut self) {
        self.say(&ToHost::AskTime { asked: 7 }).await;
        let answer = self.hear().await;
        assert!(
            matches!(answer, ToGuest::Time { asked: 7, .. }),
            "{answer:?}"
        );
    }
}

async fn pair() -> (Guest, Agent, mpsc::Receiver<(CallId, Request)>) {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("port");
    let listener = UnixListener::bind(&path).expect("listening");
    let (calls, called) = mpsc::channel(2);
    let guest = Guest::connect(&path, calls).await.expect("connected");
    let (stream, _) = listener.accept().await.expect("accepted");
    (
        guest,
        Agent {
            stream,
            decoder: Decoder::default(),
            listener,
            _folder: folder,
        },
        called,
    )
}

fn request() -> Request {
    Request {
        id: RequestId::random(),
        ask: Ask::Join {
            ticket: TicketId::random(),
        },
    }
}

fn identify() -> Identify {
    let address = Address {
        ip: [10, 128, 0, 3].into(),
        prefix: 21,
        mac: Mac([2, 0, 0, 0, 0, 1]),
    };
    Identify {
        identity: Identity {
            vm: VmId::random(),
            family: FamilyId::random(),
            member: Member(1),
            epoch: Epoch::random(),
            name: "p-1".parse().expect("a name"),
            address,
            route: None,
            parent_ip: address.ip,
            seed: [1; 32],
        },
        cloned: None,
        scrub: vec![],
        growth: None,
    }
}

/// Has the guest hold still for a fork.
async fn quiesced(guest: &Guest, agent: &mut Agent) {
    let fork = ForkId::random();
    let answer = async {
        agent.hear().await;
        agent.say(&ToHost::Quiesced { fork, failed: None }).await;
    };
    let (still, ()) = tokio::join!(guest.quiesce(fork, SOON), answer);
    still.expect("still");
}

#[tokio::test]
async fn an_agent_of_another_version_is_refused() {
    let (guest, mut agent, _calls) = pair().await;
    let answer = async {
        assert_eq!(agent.hear().await, ToGuest::Hello { version: VERSION });
        agent
            .say(&ToHost::Hello {
                version: VERSION + 1,
                epoch: None,
            })
            .await;
    };
    let (hello, ()) = tokio::join!(guest.hello(SOON), answer);
    assert!(matches!(hello, Err(LinkError::Version { guest }) if guest == VERSION + 1));
}

#[tokio::test]
async fn while_a_guest_holds_still_all_else_waits() {
    let (guest, mut agent, _calls) = pair().await;
    let fork = ForkId::random();
    let answer = async {
        assert_eq!(agent.hear().await, ToGuest::Quiesce { fork });
        agent.say(&ToHost::Quiesced { fork, failed: None }).await;
    };
    let (still, ()) = tokio::join!(guest.quiesce(fork, SOON), answer);
    still.expect("still");
    let exec = guest
        .exec(Command::of_root(vec!["ls".into()]))
        .await
        .expect("queued");
    guest.resume().await.expect("said");
    assert_eq!(
        agent.hear().await,
        ToGuest::Resume,
        "before the command that was asked for earlier"
    );
    assert!(matches!(agent.hear().await, ToGuest::Exec { .. }));
    drop(exec);
    assert!(
        matches!(agent.hear().await, ToGuest::ExecDetach { .. }),
        "nobody listens any more"
    );
}

#[tokio::test]
async fn a_guest_that_cannot_hold_still_is_told_to_go_on() {
    let (guest, mut agent, _calls) = pair().await;
    let fork = ForkId::random();
    let answer = async {
        agent.hear().await;
        agent
            .say(&ToHost::Quiesced {
                fork,
                failed: Some("stuck".into()),
            })
            .await;
        agent.hear().await
    };
    let (still, last) = tokio::join!(guest.quiesce(fork, SOON), answer);
    assert!(matches!(still, Err(LinkError::Refused { why, .. }) if why == "stuck"));
    assert_eq!(last, ToGuest::Resume);
}

#[tokio::test]
async fn an_answer_that_came_early_is_not_lost_and_one_to_another_fork_is_not_taken() {
    let (guest, mut agent, _calls) = pair().await;
    let (fork, earlier) = (ForkId::random(), ForkId::random());
    let answer = async {
        agent.hear().await;
        agent
            .say(&ToHost::Quiesced {
                fork: earlier,
                failed: None,
            })
            .await;
        agent.is_heard().await;
        agent
            .say(&ToHost::Quiesced {
                fork,
                failed: Some("no".into()),
            })
            .await;
    };
    let (still, ()) = tokio::join!(guest.quiesce(fork, SOON), answer);
    assert!(matches!(still, Err(LinkError::Refused { .. })));
}

#[tokio::test]
async fn a_guest_that_speaks_of_another_life_fork_command_or_call_is_not_heard() {
    let (guest, mut agent, _calls) = pair().await;
    let told = identify();
    let epoch = told.identity.epoch;
    guest.identify(told).await.expect("said");
    let lies = async {
        agent.hear().await;
        let identified = |epoch, problem: &str| ToHost::Identified {
            epoch,
            problems: vec![problem.to_owned()],
        };
        let session = Session(7);
        for lie in [
            identified(Epoch::random(), "another's"),
            ToHost::Quiesced {
                fork: ForkId::random(),
                failed: None,
            },
            ToHost::ExecEnd {
                session,
                outcome: Ok(ExitStatus::Code(0)),
            },
            ToHost::ExecMore { session, chunks: 9 },
            ToHost::Forget { call: CallId(7) },
        ] {
            agent.say(&lie).await;
        }
        // So that each is taken by itself.
        agent.is_heard().await;
        agent.say(&identified(epoch, "its own")).await;
    };
    let (problems, ()) = tokio::join!(guest.identified(SOON), lies);
    assert_eq!(problems.expect("heard"), ["its own"]);
    assert!(lock(&guest.shared.desks).is_empty());
    assert!(lock(&guest.shared.calls).is_empty());
}

#[tokio::test]
async fn output_arrives_in_order_and_its_reader_makes_room() {
    let (guest, mut agent, _calls) = pair().await;
    let mut exec = guest
        .exec(Command::of_root(vec!["x".into()]))
        .await
        .expect("asked");
    let ToGuest::Exec { session, .. } = agent.hear().await else {
        panic!("not a command")
    };
    for n in 0..WINDOW {
        agent
            .say(&ToHost::ExecOutput {
                session,
                stream: Stream::Out,
                data: n.to_le_bytes().to_vec(),
            })
            .await;
    }
    for n in 0..WINDOW {
        let Some(ExecOut::Output { data, .. }) = exec.next().await else {
            panic!("no output")
        };
        assert_eq!(data, n.to_le_bytes());
    }
    let (_, more) = tokio::join!(
        tokio::time::timeout(Duration::from_millis(100), exec.next()),
        async {
            let mut more = 0;
            while more < WINDOW {
                let ToGuest::ExecMore {
                    session: of,
                    chunks,
                } = agent.hear().await
                else {
                    panic!("no room")
                };
                assert_eq!(of, session);
                more += chunks;
            }
            more
        }
    );
    assert_eq!(more, WINDOW, "all the room it took was given back");
    agent
        .say(&ToHost::ExecEnd {
            session,
            outcome: Ok(ExitStatus::Code(3)),
        })
        .await;
    assert!(matches!(
        exec.next().await,
        Some(ExecOut::Ended(ExitStatus::Code(3)))
    ));
    assert!(exec.next().await.is_none());
}

#[tokio::test]
async fn a_guest_that_overruns_its_window_loses_the_command_not_the_link() {
    let (guest, mut agent, _calls) = pair().await;
    let mut exec = guest
        .exec(Command::of_root(vec!["x".into()]))
        .await
        .expect("asked");
    let ToGuest::Exec { session, .. } = agent.hear().await else {
        panic!("not a command")
    };
    for _ in 0..=WINDOW {
        agent
            .say(&ToHost::ExecOutput {
                session,
                stream: Stream::Err,
                data: vec![1],
            })
            .await;
    }
    let mut last = None;
    while let Some(out) = exec.next().await {
        last = Some(out);
    }
    assert!(matches!(last, Some(ExecOut::Lost(LinkError::Lost))));
    let answer = async {
        while !matches!(agent.hear().await, ToGuest::Hello { .. }) {}
        agent
            .say(&ToHost::Hello {
                version: VERSION,
                epoch: None,
            })
            .await;
    };
    let (hello, ()) = tokio::join!(guest.hello(SOON), answer);
    hello.expect("the link lives");
}

#[tokio::test]
async fn calls_beyond_what_the_host_has_room_for_are_refused() {
    let (_guest, mut agent, mut calls) = pair().await;
    for n in 1..=3 {
        agent
            .say(&ToHost::Call {
                call: CallId(n),
                request: request(),
            })
            .await;
    }
    let ToGuest::Reply {
        call: CallId(3),
        outcome: Err(error),
    } = agent.hear().await
    else {
        panic!("no refusal")
    };
    assert_eq!(error.kind, forkyard_types::ErrorKind::Exhausted);
    assert_eq!(calls.recv().await.map(|(call, _)| call), Some(CallId(1)));
}

#[tokio::test]
async fn a_link_that_closes_ends_everything_that_waits_on_it() {
    let (guest, agent, _calls) = pair().await;
    let mut exec = guest
        .exec(Command::of_root(vec!["x".into()]))
        .await
        .expect("asked");
    drop(agent);
    assert!(matches!(exec.next().await, Some(ExecOut::Lost(_))));
    assert!(matches!(guest.hello(SOON).await, Err(LinkError::Closed)));
    assert!(matches!(guest.closed().await, LinkError::Closed));
}

#[tokio::test]
async fn garbage_before_a_message_is_skipped() {
    let (guest, mut agent, _calls) = pair().await;
    agent.stream.write_all(&[0x5a; 999]).await.expect("written");
    let answer = async {
        agent.hear().await;
        agent
            .say(&ToHost::Hello {
                version: VERSION,
                epoch: None,
            })
            .await;
    };
    let (hello, ()) = tokio::join!(guest.hello(SOON), answer);
    assert_eq!(hello.expect("heard"), Hello { epoch: None });
}

#[tokio::test]
async fn the_connection_closes_with_the_last_handle() {
    let (guest, mut agent, _calls) = pair().await;
    drop(guest.clone());
    drop(guest);
    assert_eq!(agent.stream.read(&mut [0; 16]).await.expect("read"), 0);
}

#[tokio::test]
async fn forgotten_call_makes_room_for_another() {
    let (guest, mut agent, mut calls) = pair().await;
    for number in 0..200 {
        let call = CallId(number);
        let request = request();
        agent
            .say(&ToHost::Call {
                call,
                request: request.clone(),
            })
            .await;
        assert_eq!(calls.recv().await, Some((call, request)));
        agent.say(&ToHost::Forget { call }).await;
    }
    // An answer to one of them is not awaited.
    let late = guest.reply(CallId(0), Ok(Answer::Killed)).await;
    late.expect("ignored");
    guest.resume().await.expect("queued");
    assert_eq!(agent.hear().await, ToGuest::Resume);
}

#[tokio::test]
async fn an_agent_that_died_before_it_was_somebody_has_a_successor_that_is_told_again() {
    let (guest, mut agent, _calls) = pair().await;
    let told = identify();
    let epoch = told.identity.epoch;
    guest.identify(told).await.expect("said");
    let hears = async |agent: &mut Agent| {
        let ToGuest::Identify(identify) = agent.hear().await else {
            panic!("not told who it is");
        };
        assert_eq!(identify.identity.epoch, epoch);
    };
    hears(&mut agent).await;
    agent.say(&ToHost::Started).await;
    hears(&mut agent).await;
    let identified = ToHost::Identified {
        epoch,
        problems: vec![],
    };
    agent.say(&identified).await;
    guest.identified(SOON).await.expect("heard");

    // Nor does one go on that died before it was told to.
    let goes_on = async {
        assert_eq!(agent.hear().await, ToGuest::Release);
        agent.say(&ToHost::Started).await;
        hears(&mut agent).await;
        assert_eq!(agent.hear().await, ToGuest::Release);
        agent.say(&identified).await;
        agent.say(&ToHost::Released { problems: vec![] }).await;
        // From here on there is nothing to repeat.
        agent.say(&ToHost::Started).await;
        assert_eq!(agent.hear().await, ToGuest::Resume);
    };
    let (released, ()) = tokio::join!(guest.release(SOON), goes_on);
    assert_eq!(released.expect("heard"), Vec::<String>::new());
}

#[tokio::test]
async fn an_agent_that_died_while_its_guest_held_still_has_a_successor_that_waits() {
    let (guest, mut agent, _calls) = pair().await;
    quiesced(&guest, &mut agent).await;
    agent.say(&ToHost::Started).await;
    agent.is_heard().await;
    drop(
        guest
            .exec(Command::of_root(vec!["ls".into()]))
            .await
            .expect("queued"),
    );
    guest.resume().await.expect("said");
    assert_eq!(agent.hear().await, ToGuest::Resume, "and nothing before");
}

mod hostile;

#[tokio::test]
async fn a_guest_that_floods_its_channel_waits_for_the_host_and_loses_nothing() {
    let (guest, mut agent, mut calls) = pair().await;
    let begun = std::time::Instant::now();
    let flood = async {
        let forget = encode(&ToHost::Forget { call: CallId(7) }).expect("small");
        // What comes at once is free; as many more take a second, of which the
        // last that is read at once may be a third.
        let burst = forget.repeat(2 * usize::try_from(pace::MESSAGES).expect("64-bit"));
        agent.stream.write_all(&burst).await.expect("never refused");
        let (call, request) = (CallId(8), request());
        agent.say(&ToHost::Call { call, request }).await;
    };
    let (heard, ()) = tokio::join!(calls.recv(), flood);
    assert_eq!(heard.map(|(call, _)| call), Some(CallId(8)));
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(500), "read within {took:?}");
    drop(guest);
}
