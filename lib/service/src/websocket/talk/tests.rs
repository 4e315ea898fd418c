use super::*;
use forkyard_types::{ExecStarted, ExitStatus};
use tokio::{
    io::{DuplexStream, duplex},
    task::JoinHandle,
    time::sleep,
};

/// Longer than a client that answers nothing may be there.
const LONG: Duration = PING.saturating_mul(UNANSWERED * 3);
const EXIT: ExecEvent = ExecEvent::Exit(ExitStatus::Code(7));

type Client = WebSocketStream<DuplexStream>;

/// A client, over a connection that takes so many bytes that are not read.
async fn client<F>(
    room: usize,
    begin: impl FnOnce(Lines) -> F + Send + 'static,
) -> (Client, JoinHandle<()>)
where
    F: Future<Output = Result<mpsc::Receiver<ExecEvent>, Refusal>> + Send + 'static,
{
    let (here, there) = duplex(room);
    let talking = tokio::spawn(talk(there, begin));
    let client = WebSocketStream::from_raw_socket(here, Role::Client, None).await;
    (client, talking)
}

/// The next event; none if the other side has closed.
async fn event(client: &mut Client) -> Option<ExecEvent> {
    loop {
        match client.next().await?.ok()? {
            Message::Text(text) => return serde_json::from_str(&text).ok(),
            Message::Close(_) => return None,
            Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
}

#[tokio::test]
async fn a_client_that_closes_is_answered_and_what_it_asked_for_is_dropped() {
    let (events, told) = mpsc::channel(1);
    let (mut client, talking) = client(1 << 10, async |_| Ok(told)).await;
    client.close(None).await.expect("said");
    let answer = client.next().await.expect("answered").expect("a message");
    assert!(matches!(answer, Message::Close(_)), "{answer:?}");
    events.closed().await;
    talking.await.expect("no panic");
}

#[tokio::test]
async fn a_client_that_answers_nothing_has_left() {
    let (events, told) = mpsc::channel(1);
    let (_client, talking) = client(1 << 10, async |_| Ok(told)).await;
    events.closed().await;
    talking.await.expect("no panic");
}

#[tokio::test]
async fn a_client_whose_input_nothing_reads_is_still_there() {
    let (events, told) = mpsc::channel(1);
    let (client, _) = client(1 << 10, async |lines| {
        tokio::spawn(async move {
            sleep(LONG).await;
            drop(lines);
            let _ = events.send(EXIT).await;
        });
        Ok(told)
    })
    .await;
    let (mut to, mut from) = client.split();
    // More than is taken.
    let typing = tokio::spawn(async move {
        let message = Message::text("x".repeat(500));
        while to.send(message.clone()).await.is_ok() {}
    });
    let heard = loop {
        let message = from.next().await.expect("not closed").expect("a message");
        if !message.is_ping() {
            break message.into_text().expect("text");
        }
    };
    assert!(heard.contains("exit"), "{heard}");
    typing.abort();
}

#[tokio::test]
async fn a_client_that_reads_late_gets_all_of_it() {
    let (events, told) = mpsc::channel(1);
    let (mut client, _) = client(1 << 10, async |_| Ok(told)).await;
    let text = "x".repeat(5000);
    let saying = {
        let event = ExecEvent::Stdout(text.clone());
        tokio::spawn(async move {
            for _ in 0..3 {
                events.send(event.clone()).await.expect("taken");
            }
            // Pings that were due meanwhile are not counted one by one.
            sleep(PING * 3).await;
            events.send(EXIT).await.expect("taken");
        })
    };
    sleep(LONG).await;
    for _ in 0..3 {
        assert_eq!(
            event(&mut client).await,
            Some(ExecEvent::Stdout(text.clone()))
        );
    }
    assert_eq!(event(&mut client).await, Some(EXIT));
    assert_eq!(event(&mut client).await, None);
    saying.await.expect("no panic");
}

#[tokio::test]
async fn pings_of_a_client_that_reads_nothing_take_bounded_memory_and_it_hears_the_rest() {
    let (events, told) = mpsc::channel(1);
    let (mut client, _) = client(1 << 10, async |_| Ok(told)).await;
    const PINGS: usize = 50_000;
    let ping = Message::Ping(Bytes::from_static(&[7; 125]));
    for _ in 0..PINGS {
        client.feed(ping.clone()).await.expect("taken");
    }
    client.flush().await.expect("taken");
    events.send(EXIT).await.expect("taken");
    let mut answers = 0;
    let last = loop {
        let message = client.next().await.expect("not closed").expect("a message");
        if message.is_pong() {
            answers += 1;
        } else if !message.is_ping() {
            break message;
        }
    };
    assert!(last.is_text(), "{last:?}");
    assert!(answers < PINGS / 2, "{answers} answers were kept");
}

#[tokio::test]
async fn a_message_that_is_too_long_is_told_to_a_client_that_sends_all_of_it_first() {
    let (events, told) = mpsc::channel(1);
    let (mut client, talking) = client(1 << 10, async |_| Ok(told)).await;
    let long = Message::text("x".repeat(4 << 20));
    client.send(long).await.expect("all of it is read");
    match event(&mut client).await {
        Some(ExecEvent::Error(error)) => assert!(error.message.contains("longer than")),
        other => panic!("{other:?}"),
    }
    assert_eq!(event(&mut client).await, None);
    drop(client);
    talking.await.expect("no panic");
    events.closed().await;
}

#[tokio::test]
async fn an_end_that_nothing_tells_of_is_an_error_but_of_what_is_left_to_itself() {
    for (before, known) in [
        (ExecEvent::Stdout("eA==".into()), false),
        (ExecEvent::Started(ExecStarted { pid: 9 }), true),
    ] {
        let (events, told) = mpsc::channel(1);
        let (mut client, _) = client(1 << 10, async |_| Ok(told)).await;
        events.send(before.clone()).await.expect("taken");
        drop(events);
        assert_eq!(event(&mut client).await, Some(before));
        let last = event(&mut client).await;
        assert_eq!(
            matches!(last, Some(ExecEvent::Error(_))),
            !known,
            "{last:?}"
        );
    }
}

#[test]
fn a_message_is_one_line_whatever_breaks_it() {
    assert_eq!(line_of(b"{\n\"eof\"\n}"), &b"{ \"eof\" }\n"[..]);
}
