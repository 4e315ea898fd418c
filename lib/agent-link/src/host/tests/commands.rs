//! Commands: their numbers, their length, and that they are hung up on.

use super::*;

#[tokio::test]
async fn words_too_long_for_a_message_are_refused_at_once() {
    let (guest, mut agent, _calls) = pair().await;
    let words = vec!["x".repeat(crate::MAX_PAYLOAD)];
    let refused = guest.exec(Command::of_root(words)).await;
    assert!(matches!(refused, Err(LinkError::TooLong { .. })));
    // Nothing of it was sent but that it has no reader.
    guest.resume().await.expect("queued");
    assert_eq!(agent.hear().await, ToGuest::Resume);
}

#[tokio::test]
async fn commands_of_two_connections_have_different_numbers() {
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let (guest, mut agent, _calls) = pair().await;
        let _exec = guest
            .exec(Command::of_root(vec!["ls".into()]))
            .await
            .expect("queued");
        let ToGuest::Exec { session, .. } = agent.hear().await else {
            panic!("no command");
        };
        numbers.push(session);
    }
    assert_ne!(numbers[0], numbers[1]);
}

#[tokio::test]
async fn every_command_that_nobody_holds_is_hung_up_on_however_full_the_way_there_is() {
    let (guest, mut agent, _calls) = pair().await;
    let mut running = Vec::new();
    for _ in 0..QUEUE + 10 {
        let exec = guest.exec(Command::of_root(vec!["x".into()])).await;
        running.push(exec.expect("asked"));
        assert!(matches!(agent.hear().await, ToGuest::Exec { .. }));
    }
    quiesced(&guest, &mut agent).await;
    let many = running.len();
    drop(running);
    guest.resume().await.expect("said");
    assert_eq!(agent.hear().await, ToGuest::Resume);
    for _ in 0..many {
        assert!(matches!(agent.hear().await, ToGuest::ExecDetach { .. }));
    }
}
