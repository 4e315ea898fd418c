//! A guest that says much and reads nothing.

use super::*;

#[tokio::test]
async fn guest_that_does_not_read_takes_up_no_more_than_its_calls() {
    flood(|number| number).await;
}

#[tokio::test]
async fn guest_that_uses_numbers_of_calls_again_takes_up_no_more_either() {
    flood(|number| number % 10).await;
}

async fn flood(name: impl Fn(u32) -> u32) {
    let (guest, mut agent, mut calls) = pair().await;
    let mut answering = tokio::task::JoinSet::new();
    for number in 0..5_000 {
        let call = CallId(name(number));
        agent
            .say(&ToHost::Call {
                call,
                request: request(),
            })
            .await;
        // The host has heard it, or has dropped it.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        while let Ok((call, _)) = calls.try_recv() {
            let guest = guest.clone();
            let long = ApiError {
                kind: forkyard_types::ErrorKind::Invalid,
                message: "x".repeat(64 << 10),
                hint: None,
            };
            answering.spawn(async move { guest.reply(call, Err(long)).await });
        }
        tokio::task::yield_now().await;
        // Neither of these frees what waits for the guest to read.
        agent.say(&ToHost::Forget { call }).await;
        agent.say(&ToHost::Started).await;
        while answering.try_join_next().is_some() {}
    }
    assert!(answering.len() <= 64, "{} wait", answering.len());
}
