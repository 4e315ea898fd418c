//! Commands over WebSockets, as far as they are the same with any guest.

use base64::{Engine, prelude::BASE64_STANDARD};
use forkyard_e2e::{
    Cluster, Host,
    websocket::{Refused, Socket, asked},
};
use forkyard_tls::Trust;
use forkyard_types::TokenGrant;
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
};
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

fn script(text: &str) -> Value {
    json!({ "argv": ["sh", "-c", text] })
}

fn stdout(text: &str) -> Value {
    json!({ "stdout": BASE64_STANDARD.encode(text) })
}

/// Runs a command that copies its input, until its end.
fn copies<S: Read + Write>(mut socket: Socket<S>) {
    socket.say(&script("echo hi\ncat"));
    assert_eq!(socket.told(), Some(stdout("hi\n")));
    for text in ["one", "two"] {
        socket.say(&json!({ "stdin": BASE64_STANDARD.encode(text) }));
        assert_eq!(socket.told(), Some(stdout(text)));
    }
    socket.say(&json!("eof"));
    assert_eq!(socket.told(), Some(json!({ "exit": { "code": 0 } })));
    assert_eq!(socket.told(), None);
}

/// Error that a socket ends with.
fn error<S: Read + Write>(socket: &mut Socket<S>) -> String {
    let last = socket.told().expect("told");
    assert_eq!(socket.told(), None);
    last["error"]["message"].as_str().expect("text").to_owned()
}

/// Answer to a request that asks for no WebSocket.
fn asked_plainly(host: &Host) -> String {
    let socket = host.folder().join("run/api.sock");
    let mut stream = UnixStream::connect(socket).expect("a daemon");
    let head = "GET /v1/vms/p/exec HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

#[test]
fn an_error_is_the_last_message_and_a_refusal_comes_before_the_upgrade() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p"]);
    let open = || host.socket("/v1/vms/p/exec").expect("opened");
    copies(open());
    let mut socket = open();
    socket.say(&json!({ "argv": "echo" }));
    let told = error(&mut socket);
    assert!(told.contains("a line is wrong"), "{told}");
    let mut socket = open();
    socket.say(&script("cat"));
    socket.say(&json!({ "stdin": "x".repeat(300 << 10) }));
    let told = error(&mut socket);
    assert!(told.contains("longer than 262144 bytes"), "{told}");
    let mut socket = host
        .socket("/v1/vms/p/sessions/9?output=false")
        .expect("opened");
    let told = error(&mut socket);
    assert!(told.contains("no session 9"), "{told}");

    // Refused before there is a socket: no such VM, no such parameter, not asked for at all.
    for (path, status) in [
        ("/v1/vms/q/exec", 404),
        ("/v1/vms/p/exec?output=true", 400),
        ("/v1/vms/p/sessions/x", 400),
    ] {
        assert_eq!(host.socket(path).err(), Some(Refused(status)), "{path}");
    }
    let answer = asked_plainly(&host);
    assert!(answer.starts_with("HTTP/1.1 426 "), "{answer}");
    assert!(answer.contains("WebSockets alone"), "{answer}");
    host.end();
}

#[test]
fn a_browsers_token_is_one_of_the_protocols_it_offers() {
    let host = Host::fake().telling("FORKYARD_LISTEN", "127.0.0.1:7433");
    host.with_loopback();
    host.ok(["run", "tiny", "--name", "p"]);
    let grant: TokenGrant = host.json(["token", "create", "ci"]);
    let pin = grant.remote.expect("it listens").fingerprint;
    let tls = pin.parse::<Trust>().expect("a pin").client().expect("TLS");
    let open = |protocols: &[&str]| {
        let name = "localhost".try_into().expect("a name");
        let tls = ClientConnection::new(Arc::clone(&tls), name).expect("TLS");
        let stream = StreamOwned::new(tls, host.connect(7433).expect("it listens"));
        Socket::open(asked("wss://localhost/v1/vms/p/exec", protocols), stream)
    };
    let token = format!("forkyard.token.{}", grant.token.0);
    copies(open(&["forkyard.v1", &token]).expect("let in"));
    for wrong in [&["forkyard.v1"][..], &["forkyard.v1", "forkyard.token.x"]] {
        assert_eq!(open(wrong).err(), Some(Refused(401)), "{wrong:?}");
    }
    host.end();
}

#[test]
fn any_node_passes_it_on() {
    let mut cluster = Cluster::of_fake_nodes(2);
    cluster.join(1);
    let [a, b] = [0, 1].map(|number| cluster.host(number));
    a.ok(["run", "tiny", "--name", "p", "--node", "h0"]);
    copies(b.socket("/v1/vms/p/exec").expect("opened"));
    let mut socket = b
        .socket("/v1/vms/p/sessions/9?output=false")
        .expect("opened");
    let told = error(&mut socket);
    assert!(told.contains("no session 9"), "{told}");
    a.ok(["rm", "--all"]);
    cluster.end();
}
