//! Commands of a VM that moves.

use super::*;
use std::io;

/// A guest at the host that it has left, the same at the host where it is, and a command.
struct Moved {
    old: Guest,
    exec: Exec,
    session: Session,
    new: Guest,
    agent: Agent,
}

async fn moved() -> Moved {
    let (old, mut left, _calls) = pair().await;
    let mut exec = old.exec(Command::default()).await.expect("asked");
    let ToGuest::Exec { session, .. } = left.hear().await else {
        panic!("not asked");
    };
    left.say(&output(session, "before")).await;
    assert_eq!(said(&mut exec).await, "before");
    let (new, agent, _calls) = pair().await;
    let visitors = new.take_over(&old.sessions());
    let (here, there) = tokio::io::duplex(1 << 16);
    tokio::spawn(visitors.carry(there));
    old.follow("b", async { Ok(Box::new(here) as Box<dyn Duplex>) });
    // Its machine ends.
    drop(left);
    Moved {
        old,
        exec,
        session,
        new,
        agent,
    }
}

fn output(session: Session, text: &str) -> ToHost {
    let (stream, data) = (Stream::Out, text.as_bytes().to_vec());
    ToHost::ExecOutput {
        session,
        stream,
        data,
    }
}

async fn said(exec: &mut Exec) -> String {
    match exec.next().await {
        Some(ExecOut::Output { data, .. }) => String::from_utf8(data).expect("text"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_command_goes_on_over_the_host_that_has_its_vm() {
    let mut moved = moved().await;
    let session = moved.session;
    for _ in 0..3 * WINDOW {
        moved.agent.say(&output(session, "there")).await;
        assert_eq!(said(&mut moved.exec).await, "there");
    }
    let input = moved.exec.input();
    input.send(b"x".to_vec()).await.expect("sent");
    let heard = loop {
        if let ToGuest::ExecInput { data, .. } = moved.agent.hear().await {
            break data;
        }
    };
    assert_eq!(heard, b"x");
    let outcome = Ok(ExitStatus::Code(3));
    moved.agent.say(&ToHost::ExecEnd { session, outcome }).await;
    let end = moved.exec.next().await;
    assert!(
        matches!(end, Some(ExecOut::Ended(ExitStatus::Code(3)))),
        "{end:?}"
    );
    assert!(moved.new.sessions().is_empty());
}

#[tokio::test]
async fn what_was_asked_while_the_guest_held_still_is_begun_there() {
    let mut moved = moved().await;
    let mut more = moved.old.exec(Command::default()).await.expect("asked");
    let ToGuest::Exec { session, .. } = moved.agent.hear().await else {
        panic!("not asked");
    };
    moved.agent.say(&output(session, "more")).await;
    assert_eq!(said(&mut more).await, "more");
}

#[tokio::test]
async fn a_client_that_leaves_hangs_up_there() {
    let mut moved = moved().await;
    drop(moved.exec);
    let heard = moved.agent.hear().await;
    let session = moved.session;
    assert_eq!(heard, ToGuest::ExecDetach { session });
}

#[tokio::test]
async fn commands_of_a_host_that_has_gone_are_hung_up_on() {
    let mut moved = moved().await;
    let session = moved.session;
    drop((moved.exec, moved.old));
    let heard = moved.agent.hear().await;
    assert_eq!(heard, ToGuest::ExecDetach { session });
    assert!(moved.new.sessions().is_empty());
}

#[tokio::test]
async fn a_client_is_told_where_the_vm_is_if_the_way_there_breaks() {
    let Moved {
        mut exec,
        old: _old,
        agent,
        new,
        ..
    } = moved().await;
    drop((agent, new));
    let end = exec.next().await;
    assert!(
        matches!(&end, Some(ExecOut::Lost(LinkError::Moved { host, .. })) if host == "b"),
        "{end:?}"
    );
}

#[tokio::test]
async fn a_client_is_told_where_the_vm_is_if_that_host_is_not_reached() {
    let (old, left, _calls) = pair().await;
    let mut exec = old.exec(Command::default()).await.expect("asked");
    old.follow("b", async { Err(io::ErrorKind::ConnectionRefused.into()) });
    drop(left);
    let end = exec.next().await;
    assert!(
        matches!(
            &end,
            Some(ExecOut::Lost(LinkError::Moved { host, source: Some(_) })) if host == "b"
        ),
        "{end:?}"
    );
}
