use super::Patience;
use crate::{Client, ClientError, Place, Trust};
use hyper::Method;
use std::{path::Path, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::watch,
};

fn client(socket: &Path) -> Client {
    let client = Client::at(Place::Socket(socket.to_owned()), None, &Trust::System);
    Client {
        patience: Patience {
            pause: Duration::from_millis(10),
            answer: Duration::from_millis(500),
            misses: 3,
        },
        ..client.expect("no TLS in it")
    }
}

/// Reads a request without a body; none at the end of the connection.
async fn request(stream: &mut UnixStream) -> Option<String> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

async fn answer(stream: &mut UnixStream, answer: &str) {
    // The client may be gone.
    let _ = stream.write_all(answer.as_bytes()).await;
}

/// Answers pings at once, and anything else after this many of them.
async fn serve(listener: UnixListener, pings: usize) {
    let pinged = watch::Sender::new(0);
    loop {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let pinged = pinged.clone();
        tokio::spawn(async move {
            let asked = request(&mut stream).await.unwrap_or_default();
            if asked.contains("/v1/ping") {
                answer(&mut stream, "HTTP/1.1 204 No Content\r\n\r\n").await;
                pinged.send_modify(|pinged| *pinged += 1);
            } else {
                let mut seen = pinged.subscribe();
                seen.wait_for(|seen| *seen >= pings).await.expect("kept");
                answer(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7").await;
            }
        });
    }
}

#[tokio::test]
async fn call_to_a_daemon_that_hangs_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("api.sock");
    // The kernel takes connections for it, and it never looks at them.
    let _hangs = UnixListener::bind(&socket).expect("bound");
    let called = client(&socket).call::<u8>(Method::GET, "/v1/vms").await;
    assert!(
        matches!(called, Err(ClientError::Hangs { .. })),
        "{called:?}"
    );
    assert!(!client(&socket).answers().await);
}

#[tokio::test]
async fn call_that_takes_long_is_waited_for_while_the_daemon_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("api.sock");
    let listener = UnixListener::bind(&socket).expect("bound");
    // More than the client would do without.
    tokio::spawn(serve(listener, 10));
    let called = client(&socket).call::<u8>(Method::GET, "/v1/vms").await;
    assert_eq!(called.expect("an answer"), 7);
}

#[tokio::test]
async fn stream_of_a_daemon_that_hangs_midway_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("api.sock");
    let listener = UnixListener::bind(&socket).expect("bound");
    let serving = async {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        request(&mut stream).await;
        let begun = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n";
        answer(&mut stream, begun).await;
        // Open, and silent from here on.
        stream
    };
    let client = client(&socket);
    let (logs, _open) = tokio::join!(client.logs("p", true), serving);
    let mut logs = logs.expect("begun");
    assert_eq!(
        logs.next().await.expect("said").as_deref(),
        Some(&b"hi"[..])
    );
    let next = logs.next().await;
    assert!(matches!(next, Err(ClientError::Hangs { .. })), "{next:?}");
}
