use super::*;
use forkyard_agent_link::Frames;
use forkyard_types::{Ticket, TicketKind};
use std::{fs::File, os::fd::OwnedFd, process::Command};

/// The calls of an agent, and the host's end of its port.
fn calls() -> (Arc<Calls>, FrameReader<UnixStream>) {
    let (port, host) = UnixStream::pair().expect("a pair");
    let outbox = Arc::new(Outbox::new(File::from(OwnedFd::from(port)).into()));
    outbox.start();
    (Arc::new(Calls::new(outbox)), FrameReader::new(host))
}

fn caller(calls: &Arc<Calls>, conversation: Conversation) -> UnixStream {
    let (program, stream) = UnixStream::pair().expect("a pair");
    let calls = calls.clone();
    thread::spawn(move || calls.converse(conversation, &stream));
    program
}

fn asked(ask: Ask) -> Request {
    Request {
        id: RequestId::random(),
        ask,
    }
}

fn join(program: &mut UnixStream, host: &mut FrameReader<UnixStream>) -> (CallId, RequestId) {
    let wanted = asked(Ask::Join {
        ticket: TicketId::random(),
    });
    send(program, &wanted).expect("taken");
    match host.read_message() {
        Ok(Some(ToHost::Call { call, request })) if request == wanted => (call, request.id),
        other => panic!("the host heard {other:?}"),
    }
}

fn answer(program: UnixStream) -> Outcome {
    let answer = FrameReader::new(program).read_message();
    answer.expect("sense").expect("an answer")
}

fn as_clone(request: Option<RequestId>) -> Cloned {
    Cloned {
        id: 3,
        processes: 2,
        vcpus: None,
        request,
    }
}

#[test]
fn caller_that_goes_is_forgotten_here_and_by_the_host() {
    let (calls, mut host) = calls();
    let (mut gone, mut stays) = (caller(&calls, 1), caller(&calls, 2));
    let (call, _) = join(&mut gone, &mut host);
    let (other, _) = join(&mut stays, &mut host);
    drop(gone);
    let heard = host.read_message::<ToHost>().expect("sense");
    assert_eq!(heard, Some(ToHost::Forget { call }));
    let waiting: Vec<_> = calls.lock().waiting.keys().copied().collect();
    assert_eq!(waiting, [other]);
}

#[test]
fn in_a_clone_every_call_fails_but_the_one_that_made_it() {
    let (calls, mut host) = calls();
    let (mut made_it, mut other) = (caller(&calls, 1), caller(&calls, 2));
    let (_, request) = join(&mut made_it, &mut host);
    join(&mut other, &mut host);
    calls.fail_all(Some(request), IN_A_CLONE);
    calls.cloned(as_clone(Some(request)));
    let refused = answer(other).expect_err("refused");
    assert_eq!(refused.kind, ErrorKind::Conflict);
    let cloned = answer(made_it);
    assert!(matches!(
        cloned,
        Ok(Answer::Cloned {
            id: 3,
            processes: 2,
            ..
        })
    ));
}

#[test]
fn whoever_waits_for_a_fork_is_told_in_the_clone_whoever_asked_for_it() {
    let (calls, _host) = calls();
    let mut watcher = caller(&calls, 1);
    let since = Epoch::random();
    send(&mut watcher, &asked(Ask::WaitFork { since })).expect("taken");
    while calls.lock().watching.is_empty() {
        thread::yield_now();
    }
    calls.fail_all(None, IN_A_CLONE);
    calls.cloned(as_clone(None));
    assert_eq!(answer(watcher).expect("told"), Answer::Forked { id: 3 });
}

#[test]
fn memory_that_a_program_marks_is_its_own_and_is_told_in_page_frames() {
    let (port, host) = UnixStream::pair().expect("a pair");
    let outbox = Arc::new(Outbox::new(File::from(OwnedFd::from(port)).into()));
    outbox.start();
    // This process is the caller; there is no other to be seen.
    let processes = addresses::tests::process(std::process::id(), 16, &[8, 9, 0, 3]);
    let calls = Arc::new(Calls {
        processes: processes.path().to_owned(),
        ..Calls::new(outbox)
    });
    let mut host = FrameReader::new(host);
    let mut program = caller(&calls, 1);
    let frames = |first, count| Frames { first, count };
    for (marked, refused) in [
        (Ask::DisjointFrames(vec![frames(1, 1)]), ErrorKind::Invalid),
        (
            Ask::Disjoint {
                address: 90 << 12,
                bytes: 1,
            },
            ErrorKind::Guest,
        ),
    ] {
        send(&mut program, &asked(marked)).expect("taken");
        let outcome: Option<Outcome> = FrameReader::new(&program).read_message().expect("sense");
        let error = outcome.expect("an answer").expect_err("refused");
        assert_eq!(error.kind, refused);
    }
    let marks = asked(Ask::Disjoint {
        address: 16 << 12,
        bytes: 4 << 12,
    });
    send(&mut program, &marks).expect("taken");
    // The first that it hears: the host never heard of the others.
    let heard = host.read_message().expect("sense");
    let Some(ToHost::Call { call, request }) = heard else {
        panic!("the host heard {heard:?}");
    };
    assert_eq!(request.id, marks.id);
    let want = Ask::DisjointFrames(vec![frames(3, 1), frames(8, 2)]);
    assert_eq!(request.ask, want);
    calls.answer(call, Ok(Answer::Marked));
    assert_eq!(answer(program), Ok(Answer::Marked));
}

#[test]
fn calls_beyond_the_most_are_refused() {
    let (calls, mut host) = calls();
    let mut program = caller(&calls, 1);
    for _ in 0..MOST {
        join(&mut program, &mut host);
    }
    let one_more = asked(Ask::Exit {
        status: 0,
        others: vec![],
    });
    send(&mut program, &one_more).expect("taken");
    let refused = answer(program).expect_err("refused");
    assert_eq!(refused.kind, ErrorKind::Exhausted);
}

/// Receives the next request to the host.
fn heard(host: &mut FrameReader<UnixStream>) -> (CallId, Request) {
    match host.read_message() {
        Ok(Some(ToHost::Call { call, request })) => (call, request),
        other => panic!("the host heard {other:?}"),
    }
}

fn granted(ticket: TicketId) -> Outcome {
    Ok(Answer::Ticket(Ticket {
        id: ticket,
        kind: TicketKind::Flat,
        clones: Vec::new(),
    }))
}

fn kill(ticket: TicketId) -> Ask {
    Ask::Kill { ticket }
}

#[test]
fn tickets_of_a_process_that_ends_are_killed_unless_they_are_used_up() {
    let (calls, mut host) = calls();
    let (mut child, held) = {
        let child = Command::new("sleep").arg("1000").spawn().expect("a child");
        let hold = |ticket| {
            let holder = Holder::of(child.id()).expect("it runs");
            calls.hold(holder, kill(ticket));
            ticket
        };
        let held = [(); 3].map(|()| hold(TicketId::random()));
        (child, held)
    };
    let [first, joined, last] = held;
    // Joined by whichever program.
    let mut program = caller(&calls, 1);
    send(&mut program, &asked(Ask::Join { ticket: joined })).expect("taken");
    let (call, _) = heard(&mut host);
    calls.answer(call, Ok(Answer::Joined(Vec::new())));
    answer(program).expect("joined");
    child.kill().expect("it runs");
    child.wait().expect("reaped");
    let asked = [heard(&mut host), heard(&mut host)];
    assert_eq!(
        asked.each_ref().map(|(_, request)| request.ask.clone()),
        [kill(first), kill(last)]
    );
    // A daemon that died before it answered is followed by one that is asked again.
    calls.answer(asked[0].0, Ok(Answer::Killed));
    calls.ask_again();
    assert_eq!(heard(&mut host), asked[1]);
}

#[test]
fn a_clones_copy_of_a_holder_holds_nothing_and_a_clone_ends_with_what_it_is_tied_to() {
    let (calls, mut host) = calls();
    let mut child = Command::new("sleep").arg("1000").spawn().expect("a child");
    let holder = || Holder::of(child.id()).expect("it runs");
    calls.hold(holder(), kill(TicketId::random()));
    calls.fail_all(None, IN_A_CLONE);
    let exit = Ask::Exit {
        status: 125,
        others: Vec::new(),
    };
    calls.hold(holder(), exit.clone());
    child.kill().expect("it runs");
    child.wait().expect("reaped");
    // The first that it hears: the host never heard of the ticket.
    assert_eq!(heard(&mut host).1.ask, exit);
}

#[test]
fn a_ticket_granted_to_a_process_that_has_gone_meanwhile_is_given_back() {
    let (calls, mut host) = calls();
    let mut program = caller(&calls, 1);
    let wanted = Ask::RequestTicket {
        count: 2,
        kind: TicketKind::Flat,
    };
    send(&mut program, &asked(wanted)).expect("taken");
    let (call, _) = heard(&mut host);
    drop(program);
    while !calls.lock().orphaned.contains(&call) {
        thread::yield_now();
    }
    let ticket = TicketId::random();
    calls.answer(call, granted(ticket));
    assert_eq!(heard(&mut host).1.ask, kill(ticket));
}

#[test]
fn a_granted_ticket_is_held_by_the_process_that_asked_for_it() {
    let (calls, mut host) = calls();
    let mut program = caller(&calls, 1);
    let wanted = Ask::RequestTicket {
        count: 2,
        kind: TicketKind::Flat,
    };
    send(&mut program, &asked(wanted)).expect("taken");
    let (call, _) = heard(&mut host);
    let ticket = TicketId::random();
    calls.answer(call, granted(ticket));
    answer(program).expect("granted");
    // This process is the caller.
    let own = Holder::of(std::process::id()).expect("it runs");
    let added = calls.lock().held.add(&own, kill(ticket));
    assert_eq!(added, None, "it is held already");
}
