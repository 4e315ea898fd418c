use super::*;
use qapi::qmp::{blockdev_del, cont, query_status, stop};
use std::{
    future::Future,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        UnixListener,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}"#;
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(100);

/// The other side of a connection: speaks lines, as QEMU does.
struct Peer {
    lines: Lines<BufReader<OwnedReadHalf>>,
    out: OwnedWriteHalf,
}

impl Peer {
    async fn say(&mut self, line: &str) {
        // A client that has given up is part of some tests.
        let _ = self.out.write_all(format!("{line}\n").as_bytes()).await;
    }

    /// The next command.
    async fn asked(&mut self) -> serde_json::Value {
        let line = self.lines.next_line().await.expect("read").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }

    /// Receives a command, and returns its name.
    async fn hear(&mut self) -> String {
        let command = self.asked().await;
        command["execute"].as_str().expect("a command").to_owned()
    }

    /// Stays until the client has gone.
    async fn linger(mut self) {
        let _ = self.lines.next_line().await;
    }

    async fn shake_hands(&mut self) {
        self.say(GREETING).await;
        self.agree(&[]).await;
    }

    /// Answers the first command, after what else it says.
    async fn agree(&mut self, before: &[&str]) {
        let command = self.asked().await;
        assert_eq!(command["execute"], "qmp_capabilities");
        for line in before {
            self.say(line).await;
        }
        let id = &command["id"];
        self.say(&format!(r#"{{"return": {{}}, "id": {id}}}"#))
            .await;
    }

    async fn answer(&mut self, value: &str) {
        self.say(&format!(r#"{{"return": {value}}}"#)).await;
    }

    async fn event(&mut self, name: &str) {
        let stamp = r#"{"seconds": 1, "microseconds": 0}"#;
        self.say(&format!(r#"{{"event": "{name}", "timestamp": {stamp}}}"#))
            .await;
    }
}

/// A socket on which `script` is played to the first client that connects.
fn played<F>(script: impl FnOnce(Peer) -> F + Send + 'static) -> (TempDir, PathBuf)
where
    F: Future<Output = ()> + Send,
{
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("qmp");
    let listener = UnixListener::bind(&path).expect("bound");
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a client");
        let (reading, out) = stream.into_split();
        let lines = BufReader::new(reading).lines();
        script(Peer { lines, out }).await;
    });
    (dir, path)
}

#[tokio::test]
async fn a_socket_nobody_listens_on_is_no_connection() {
    let error = Qmp::connect(Path::new("/nonexistent/qmp"), LONG).await;
    assert!(matches!(error, Err(QmpError::Connect { .. })));
}

#[tokio::test]
async fn a_peer_that_hangs_up_without_a_greeting_is_refused() {
    let (_dir, path) = played(|peer| async { drop(peer) });
    let error = Qmp::connect(&path, LONG).await;
    assert!(matches!(error, Err(QmpError::Greeting { .. })), "{error:?}");
}

#[tokio::test]
async fn a_peer_that_says_nothing_is_given_up_on() {
    let (_dir, path) = played(|peer| async move {
        peer.linger().await;
    });
    let error = Qmp::connect(&path, SHORT).await;
    assert!(matches!(error, Err(QmpError::Timeout { .. })), "{error:?}");
}

#[tokio::test]
async fn a_greeting_that_is_no_json_is_refused() {
    let (_dir, path) = played(|mut peer| async move { peer.say("220 mail ready").await });
    let error = Qmp::connect(&path, LONG).await;
    assert!(matches!(error, Err(QmpError::Greeting { .. })), "{error:?}");
}

/// Messages of a QEMU that was in the middle of a command when the client
/// before was killed.
const STALE: [&str; 5] = [
    r#" "status": "paused"}"#,
    r#"{"return": {}}"#,
    r#"{"return": {}, "id": 1}"#,
    r#"{"error": {"class": "GenericError", "desc": "no"}, "id": null}"#,
    r#"{"event": "STOP", "timestamp": {"seconds": 1, "microseconds": 0}}"#,
];

#[tokio::test]
async fn answers_to_the_client_before_are_not_taken_for_this_ones() {
    let (_dir, path) = played(|mut peer| async move {
        for line in STALE {
            peer.say(line).await;
        }
        peer.say(GREETING).await;
        peer.agree(&STALE).await;
        peer.hear().await;
        peer.answer(r#"{"running": true, "status": "running"}"#)
            .await;
        peer.linger().await;
    });
    let qmp = Qmp::connect(&path, LONG).await.expect("connected");
    assert!(qmp.execute(query_status {}).await.expect("status").running);
    // It was not this client's to hear of.
    assert!(!qmp.seen_stopped());
}

#[tokio::test]
async fn a_handshake_that_is_refused_says_why() {
    let (_dir, path) = played(|mut peer| async move {
        peer.say(GREETING).await;
        let command = peer.asked().await;
        let error = r#"{"class": "GenericError", "desc": "not today"}"#;
        peer.say(&format!(r#"{{"error": {error}, "id": {}}}"#, command["id"]))
            .await;
        peer.linger().await;
    });
    match Qmp::connect(&path, LONG).await {
        Err(QmpError::Greeting { source }) => assert_eq!(source.to_string(), "not today"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_peer_that_never_comes_to_its_greeting_is_given_up_on() {
    let (_dir, path) = played(|mut peer| async move {
        // It ends when the client has gone.
        while peer.out.write_all(&[b'x'; 4096]).await.is_ok() {}
    });
    let error = Qmp::connect(&path, LONG).await;
    assert!(matches!(error, Err(QmpError::Greeting { .. })), "{error:?}");
}

#[tokio::test]
async fn a_refusal_keeps_its_class_and_its_reason() {
    let (_dir, path) = played(|mut peer| async move {
        peer.shake_hands().await;
        peer.hear().await;
        peer.say(r#"{"error": {"class": "DeviceNotFound", "desc": "no such node"}}"#)
            .await;
        peer.linger().await;
    });
    let qmp = Qmp::connect(&path, LONG).await.expect("connected");
    let node_name = "slice-9".to_owned();
    match qmp.execute(blockdev_del { node_name }).await {
        Err(QmpError::Refused { class, desc }) => {
            assert_eq!(class, qapi::ErrorClass::DeviceNotFound);
            assert_eq!(desc, "no such node");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_answer_of_another_form_is_not_understood_and_the_next_one_is() {
    let (_dir, path) = played(|mut peer| async move {
        peer.shake_hands().await;
        peer.hear().await;
        peer.answer("[1, 2]").await;
        peer.hear().await;
        peer.answer(r#"{"running": true, "singlestep": false, "status": "running"}"#)
            .await;
    });
    let qmp = Qmp::connect(&path, LONG).await.expect("connected");
    let first = qmp.execute(query_status {}).await;
    assert!(matches!(first, Err(QmpError::Answer { .. })), "{first:?}");
    assert!(qmp.execute(query_status {}).await.expect("status").running);
}

#[tokio::test]
async fn garbage_in_place_of_an_answer_closes_the_connection() {
    let (_dir, path) = played(|mut peer| async move {
        peer.shake_hands().await;
        peer.hear().await;
        peer.say("{\"return\": ").await;
        peer.linger().await;
    });
    let qmp = Qmp::connect(&path, LONG).await.expect("connected");
    let error = qmp.execute(stop {}).await;
    assert!(matches!(error, Err(QmpError::Closed)), "{error:?}");
}

#[tokio::test]
async fn what_a_machine_said_of_its_end_is_known_once_its_connection_has_ended() {
    for (reason, wanted) in [
        (Some("guest-reset"), Cause::Reset),
        (Some("guest-shutdown"), Cause::PoweredOff),
        (Some("host-qmp-quit"), Cause::Told),
        (None, Cause::Unknown),
    ] {
        let (_dir, path) = played(move |mut peer| async move {
            peer.shake_hands().await;
            if let Some(reason) = reason {
                let data = format!(r#"{{"guest": true, "reason": "{reason}"}}"#);
                let stamp = r#"{"seconds": 1, "microseconds": 0}"#;
                let event =
                    format!(r#"{{"event": "SHUTDOWN", "data": {data}, "timestamp": {stamp}}}"#);
                peer.say(&event).await;
            }
        });
        let qmp = Qmp::connect(&path, LONG).await.expect("connected");
        assert_eq!(qmp.cause().await, wanted, "{reason:?}");
    }
}

#[tokio::test]
async fn a_connection_that_breaks_midway_is_closed_for_every_caller() {
    let (_dir, path) = played(|mut peer| async move {
        peer.shake_hands().await;
        peer.hear().await;
        let _ = peer.out.write_all(b"{\"retu").await;
    });
    let qmp = Qmp::connect(&path, LONG).await.expect("connected");
    let (answer, resumed) = tokio::join!(qmp.execute(stop {}), qmp.resumed());
    assert!(matches!(answer, Err(QmpError::Closed)), "{answer:?}");
    assert!(matches!(resumed, Err(QmpError::Closed)), "{resumed:?}");
    let later = qmp.execute(stop {}).await;
    assert!(matches!(later, Err(QmpError::Closed)), "{later:?}");
}

#[tokio::test]
async fn an_answer_that_comes_too_late_does_not_answer_the_next_command() {
    let (given_up, late) = tokio::sync::oneshot::channel();
    let (_dir, path) = played(|mut peer| async move {
        peer.shake_hands().await;
        peer.hear().await;
        late.await.expect("the test goes on");
        peer.answer("{}").await;
        assert_eq!(peer.hear().await, "query-status");
        peer.answer(r#"{"running": false, "status": "paused"}"#)
            .await;
        peer.linger().await;
    });
    let mut qmp = Qmp::connect(&path, LONG).await.expect("connected");
    qmp.patience = SHORT;
    let error = qmp.execute(stop {}).await;
    assert!(matches!(error, Err(QmpError::Timeout { .. })), "{error:?}");
    given_up.send(()).expect("the peer waits");
    qmp.patience = LONG;
    assert!(!qmp.execute(query_status {}).await.expect("status").running);
}

#[tokio::test]
async fn a_command_whose_caller_went_away_does_not_disturb_the_next() {
    let (heard, first_heard) = tokio::sync::oneshot::channel();
    let (gone, late) = tokio::sync::oneshot::channel();
    let (_dir, path) = played(|mut peer| async move {
        peer.shake_hands().await;
        peer.hear().await;
        heard.send(()).expect("the test waits");
        late.await.expect("the test goes on");
        peer.answer("{}").await;
        peer.hear().await;
        peer.answer(r#"{"running": true, "status": "running"}"#)
            .await;
        peer.linger().await;
    });
    let qmp = Qmp::connect(&path, LONG).await.expect("connected");
    tokio::select! {
        answer = qmp.execute(stop {}) => panic!("{answer:?}"),
        heard = first_heard => heard.expect("heard"),
    }
    gone.send(()).expect("the peer waits");
    assert!(qmp.execute(query_status {}).await.expect("status").running);
}

#[tokio::test]
async fn a_flood_of_events_hides_neither_the_answer_nor_the_last_word() {
    let (_dir, path) = played(|mut peer| async move {
        peer.shake_hands().await;
        peer.hear().await;
        for _ in 0..20_000 {
            peer.event("STOP").await;
            peer.event("RESUME").await;
        }
        peer.answer("{}").await;
        peer.event("STOP").await;
        peer.hear().await;
        peer.answer("{}").await;
        peer.linger().await;
    });
    let qmp = Qmp::connect(&path, LONG).await.expect("connected");
    qmp.execute(cont {}).await.expect("answered");
    qmp.execute(stop {}).await.expect("answered");
    assert!(qmp.seen_stopped());
}

#[tokio::test]
async fn peer_whose_line_has_no_end_fails_what_waits_and_is_read_no_more() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let (_dir, path) = played(move |mut peer| async move {
        peer.shake_hands().await;
        let piece = vec![b'a'; 64 << 10];
        // Far more than its socket holds: it is written only as far as it is read.
        while peer.out.write_all(&piece).await.is_ok() {
            counted.fetch_add(piece.len(), Ordering::Relaxed);
        }
    });
    let qmp = Qmp::connect(&path, LONG).await.expect("connects");
    let answer = qmp.execute(query_status {}).await;
    assert!(matches!(answer, Err(QmpError::Closed)), "{answer:?}");
    let sent = sent.load(Ordering::Relaxed);
    assert!(sent < 2 * bounded::LINE, "{sent} bytes were read");
}
