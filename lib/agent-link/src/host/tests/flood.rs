//! A guest that reads nothing, and says much or nothing.

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

#[tokio::test]
async fn requests_to_hold_still_that_are_not_answered_count_until_the_agent_says_something() {
    let (guest, mut agent, _calls) = pair().await;
    for missed in 1..3 {
        let still = guest.quiesce(ForkId::random(), Duration::from_millis(1));
        let still = still.await.expect_err("no answer");
        assert!(matches!(still, LinkError::Timeout { .. }));
        assert_eq!(guest.missed(), missed);
    }
    agent.say(&ToHost::Started).await;
    tokio::time::timeout(SOON, async {
        while guest.missed() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("heard");
}
