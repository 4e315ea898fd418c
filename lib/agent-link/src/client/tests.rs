use super::*;
use std::{os::unix::net::UnixListener, thread};
use tempfile::TempDir;

/// An agent that gives one caller these bytes, whatever it asks.
fn agent(
    answer: Option<Result<Answer, ApiError>>,
) -> (TempDir, AgentClient, thread::JoinHandle<Ask>) {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).expect("bound");
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a caller");
        let mut reader = FrameReader::new(stream.try_clone().expect("a descriptor"));
        let request = reader.read_message::<Request>().expect("whole");
        if let Some(answer) = answer {
            send(&mut stream, &answer).expect("taken");
        }
        request.expect("a call").ask
    });
    let client = AgentClient::at(socket).with_patience(Duration::ZERO);
    (dir, client, thread)
}

#[test]
fn clone_tells_parent_and_clone_apart() {
    let ticket = TicketId::random();
    for (id, failed, wanted) in [
        (
            0,
            vec![(2, "no room".into())],
            Cloning::Parent {
                failed: vec![(2, "no room".into())],
            },
        ),
        (
            3,
            vec![],
            Cloning::Clone {
                id: 3,
                processes: 2,
            },
        ),
    ] {
        let answer = Answer::Cloned {
            id,
            processes: 2,
            failed,
        };
        let (_dir, client, agent) = agent(Some(Ok(answer)));
        assert_eq!(client.clone_vm(ticket).expect("cloned"), wanted);
        assert_eq!(agent.join().expect("no panic"), Ask::Clone { ticket });
    }
}

#[test]
fn checkpoint_tells_the_vm_that_took_it_and_its_clones_apart() {
    let checkpoint = VmId::random();
    let cloned = |id| Answer::Cloned {
        id,
        processes: 2,
        failed: vec![],
    };
    let told = |answer| {
        let (_dir, client, agent) = agent(Some(Ok(answer)));
        let told = client.checkpoint();
        assert_eq!(agent.join().expect("no panic"), Ask::Checkpoint);
        told
    };
    let taken = told(Answer::Checkpointed { checkpoint }).expect("taken");
    assert_eq!(taken, Checkpointing::Taken { checkpoint });
    let clone = told(cloned(3)).expect("cloned");
    let wanted = Checkpointing::Clone {
        id: 3,
        processes: 2,
    };
    assert_eq!(clone, wanted);
    for wrong in [cloned(0), Answer::Dropped] {
        assert!(matches!(told(wrong), Err(CallError::Unexpected)));
    }
}

#[test]
fn only_the_caller_of_create_clones_is_answered() {
    let (checkpoint, ticket) = (VmId::random(), TicketId::random());
    for (id, wanted) in [(0, Some(vec![(2, "no room".to_owned())])), (1, None)] {
        let answer = Answer::Cloned {
            id,
            processes: 1,
            failed: vec![(2, "no room".into())],
        };
        let (_dir, client, agent) = agent(Some(Ok(answer)));
        assert_eq!(client.create_clones(checkpoint, ticket).ok(), wanted);
        let asked = agent.join().expect("no panic");
        assert_eq!(asked, Ask::CreateClones { checkpoint, ticket });
    }
}

#[test]
fn refusal_keeps_its_kind() {
    let refusal = ApiError {
        kind: ErrorKind::Exhausted,
        message: "no room".into(),
        hint: None,
    };
    let (_dir, client, _agent) = agent(Some(Err(refusal)));
    let error = client
        .request_ticket(4, TicketKind::Flat)
        .expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
}

#[test]
fn answer_to_another_question_is_unexpected() {
    let (_dir, client, _agent) = agent(Some(Ok(Answer::Killed)));
    let error = client.join(TicketId::random()).expect_err("not joined");
    assert!(matches!(error, CallError::Unexpected));
}

#[test]
fn agent_that_goes_away_is_an_error() {
    let (_dir, client, _agent) = agent(None);
    let error = client.exit(0, vec![]).expect_err("nobody ended us");
    assert!(matches!(error, CallError::Gone));
}

#[test]
fn a_request_whose_answer_was_lost_is_made_again_under_the_same_id() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).expect("bound");
    let agents = thread::spawn(move || {
        let mut asked = Vec::new();
        // The first dies with the call, its successor answers.
        for last in [false, true] {
            let (mut stream, _) = listener.accept().expect("a caller");
            let mut reader = FrameReader::new(stream.try_clone().expect("a descriptor"));
            asked.extend(reader.read_message::<Request>().expect("whole"));
            if last {
                send(&mut stream, &Ok::<_, ApiError>(Answer::Killed)).expect("taken");
            }
        }
        asked
    });
    let ticket = TicketId::random();
    AgentClient::at(socket).kill(ticket).expect("killed");
    let asked = agents.join().expect("no panic");
    assert_eq!(asked[0].ask, Ask::Kill { ticket });
    assert_eq!(asked[0], asked[1]);
}

#[test]
fn no_agent_is_an_error_that_names_the_socket() {
    let client = AgentClient::at("/nowhere/agent.sock".into());
    let error = client.kill(TicketId::random()).expect_err("no agent");
    assert!(matches!(error, CallError::Unreachable { path, .. } if path.starts_with("/nowhere")));
}

#[test]
fn id_is_read_from_beside_the_socket() {
    let dir = tempfile::tempdir().expect("a directory");
    let client = AgentClient::at(dir.path().join("agent.sock"));
    assert!(matches!(client.id(), Err(CallError::Identity { .. })));
    fs::write(
        dir.path().join(IDENTITY_FILE),
        "FORKYARD_VM=x\nFORKYARD_ID=7\n",
    )
    .expect("written");
    assert_eq!(client.id().expect("there"), 7);
}
