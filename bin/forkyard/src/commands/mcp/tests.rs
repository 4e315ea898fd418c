//! Sessions as clients lead them, by lines of JSON-RPC, with a daemon that is a script.

use super::*;
use forkyard_api_client::{Place, Trust};
use serde_json::Value;
use std::{path::Path, time::Duration};
use tokio::{
    io::{
        AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf,
        duplex, split,
    },
    net::{UnixListener, UnixStream},
    sync::mpsc,
    time::timeout,
};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// A client of the server.
struct Session {
    to: WriteHalf<DuplexStream>,
    from: BufReader<ReadHalf<DuplexStream>>,
}

impl Session {
    async fn new(socket: &Path) -> Self {
        let mut session = Self::connected(socket);
        // Nothing is taken before it has begun.
        session
            .say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))
            .await;
        session.ask(0, "tools/list", json!({})).await;
        let early = session.until(|message| message["id"] == 0).await;
        let why = early["error"]["message"].as_str().unwrap_or_default();
        assert!(why.contains("`initialize` comes first"), "{early}");
        let me = json!({ "name": "test", "version": "1" });
        let hello =
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": me });
        session.ask(0, "initialize", hello).await;
        session.until(|message| message["id"] == 0).await;
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        session.say(&ready).await;
        session
    }

    fn connected(socket: &Path) -> Self {
        let client = Client::at(Place::Socket(socket.to_owned()), None, &Trust::System);
        let reach = Reach::There(client.expect("no TLS in it"));
        let (ours, theirs) = duplex(1 << 16);
        tokio::spawn(async move {
            let (from, to) = split(theirs);
            let service = Tools { reach }
                .serve(Lines::new(from, to, || false))
                .await
                .expect("a session");
            service.waiting().await.expect("its end")
        });
        let (from, to) = split(ours);
        let from = BufReader::new(from);
        Self { to, from }
    }

    async fn say(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.to
            .write_all(line.as_bytes())
            .await
            .expect("it listens");
    }

    async fn ask(&mut self, id: u64, method: &str, params: Value) {
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .await;
    }

    async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            let read = timeout(LONG, self.from.read_line(&mut line)).await;
            assert_ne!(
                read.expect("in time").expect("text"),
                0,
                "the session's end"
            );
            let message: Value = serde_json::from_str(&line).expect("JSON");
            if wanted(&message) {
                return message;
            }
        }
    }

    async fn cancel(&mut self, id: u64) {
        let params = json!({ "requestId": id });
        self.say(
            &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }),
        )
        .await;
    }

    /// Calls a tool; returns its answer, and whether that is marked as an
    /// error.
    async fn call(&mut self, id: u64, tool: &str, arguments: Value) -> (String, bool) {
        let params = json!({ "name": tool, "arguments": arguments });
        self.ask(id, "tools/call", params).await;
        let answer = self.until(|message| message["id"] == id).await;
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str();
        let text = text.unwrap_or_else(|| panic!("{answer}")).to_owned();
        (text, result["isError"] == true)
    }
}

/// A daemon on a socket: hands out each request, with the connection it is to be answered on.
fn daemon(socket: &Path) -> mpsc::UnboundedReceiver<(String, UnixStream)> {
    let listener = UnixListener::bind(socket).expect("bound");
    let (asked, requests) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let asked = asked.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.expect("a request"));
                }
                let head = String::from_utf8(head).expect("text").to_lowercase();
                let length = head.split("content-length: ").nth(1);
                let length = length.and_then(|rest| rest.split_whitespace().next());
                let mut body = vec![0; length.map_or(0, |it| it.parse().expect("a number"))];
                stream.read_exact(&mut body).await.expect("a body");
                let line = head.lines().next().unwrap_or_default();
                let body = String::from_utf8_lossy(&body);
                // The test may have ended.
                let _ = asked.send((format!("{line} {body}"), stream));
            });
        }
    });
    requests
}

/// The next request that is not one to look how a fork is.
async fn asked(
    requests: &mut mpsc::UnboundedReceiver<(String, UnixStream)>,
) -> (String, UnixStream) {
    loop {
        let next = timeout(LONG, requests.recv()).await;
        let (request, stream) = next.expect("in time").expect("a request");
        if !request.starts_with("get ") {
            return (request, stream);
        }
    }
}

async fn answer(stream: &mut UnixStream, body: &Value) {
    let body = body.to_string();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    let answer = head + &body;
    stream
        .write_all(answer.as_bytes())
        .await
        .expect("it listens");
}

/// Writes one event of a command whose stream goes on.
async fn event(stream: &mut UnixStream, head: &str, event: &Value) {
    let line = format!("{event}\n");
    let chunk = format!("{head}{:x}\r\n{line}\r\n", line.len());
    stream
        .write_all(chunk.as_bytes())
        .await
        .expect("it listens");
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

fn vm(name: &str) -> Value {
    let (id, family) = ("23456789abc", "23456789abd");
    json!({
        "id": id, "name": name, "state": "running", "family": family, "member": 0,
        "parent": null, "fork": null, "epoch": "00000000-0000-0000-0000-000000000000",
        "image": "tiny", "vcpus": 1, "memory": 1, "pid": 1, "accel": "tcg", "created": 1,
        "address": { "ip": "10.0.0.1", "prefix": 24, "mac": [2, 0, 0, 0, 0, 1] },
    })
}

#[test]
fn every_tool_is_described_in_plain_json_schema() {
    let tools = Tools::tool_router().list_all();
    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    let wanted = [
        "activate",
        "exec",
        "fork",
        "ls",
        "read_file",
        "rm",
        "run",
        "session_end",
        "session_read",
        "session_write",
        "sessions",
        "start",
        "write_file",
    ];
    assert_eq!(names, wanted);
    for tool in tools {
        assert!(tool.description.is_some_and(|text| text.len() > 10));
        let schema = Value::Object(tool.input_schema.as_ref().clone());
        let text = schema.to_string();
        for odd in [
            "\"format\"",
            "\"$ref\"",
            "\"$defs\"",
            "null",
            "nullable",
            "anyOf",
        ] {
            assert!(!text.contains(odd), "{}: {odd} in {text}", tool.name);
        }
        for (name, argument) in schema["properties"].as_object().into_iter().flatten() {
            let which = format!("{}: {name}", tool.name);
            assert!(argument["description"].is_string(), "{which}");
            assert!(argument["type"].is_string(), "{which}");
            if argument["type"] == "integer" {
                let bounds = [&argument["minimum"], &argument["maximum"]];
                assert!(bounds.iter().all(|bound| bound.is_u64()), "{which}");
            }
        }
    }
}

#[tokio::test]
async fn call_without_parameters_is_told_that_they_are_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut session = Session::new(&folder.path().join("api.sock")).await;
    for (id, method, code) in [(1, "tools/call", -32602), (2, "tools/none", -32601)] {
        session
            .say(&json!({ "jsonrpc": "2.0", "id": id, "method": method }))
            .await;
        let answer = session.until(|message| message["id"] == id).await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    // Words of ours, however long the name is.
    let long = "n".repeat(1 << 20);
    session.ask(3, &long, json!({})).await;
    let answer = session.until(|message| message["id"] == 3).await;
    let told = answer["error"]["message"].as_str().expect("text");
    assert!(told.starts_with("there is no method \"nnn") && told.len() < 100);
    let params = json!({ "name": "nonesuch", "arguments": {} });
    session.ask(4, "tools/call", params).await;
    let answer = session.until(|message| message["id"] == 4).await;
    let told = answer["error"]["message"].as_str().expect("text");
    assert!(told.starts_with("there is no tool \"nonesuch\""), "{told}");
}

#[tokio::test]
async fn every_line_that_is_no_message_is_answered_and_the_session_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut session = Session::new(&dir.path().join("none.sock")).await;
    for (line, code, id) in [
        (
            &br#"{"jsonrpc":"1.0","id":3,"method":"ping"}"#[..],
            -32600,
            json!(3),
        ),
        (br#"{"jsonrpc":"2.0","id":5,"method":5}"#, -32600, json!(5)),
        (
            br#"{"jsonrpc":"2.0","id":6,"method":"ping","params":5}"#,
            -32600,
            json!(6),
        ),
        (b"[]", -32600, json!(null)),
        (b"not json", -32700, json!(null)),
        (b"\xff", -32700, json!(null)),
        (&vec![b'['; 100_000], -32700, json!(null)),
    ] {
        session.to.write_all(line).await.expect("written");
        session.to.write_all(b"\n").await.expect("written");
        let told = session.until(|_| true).await;
        assert_eq!(
            (told["error"]["code"].as_i64(), &told["id"]),
            (Some(code), &id),
            "{told}"
        );
        assert!(told.get("id").is_some(), "{told}");
    }
    session.ask(9, "ping", json!({})).await;
    let told = session.until(|_| true).await;
    assert_eq!((&told["id"], &told["result"]), (&json!(9), &json!({})));
}

#[tokio::test]
async fn an_id_under_way_is_not_taken_twice() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("api.sock");
    let mut requests = daemon(&socket);
    let mut session = Session::new(&socket).await;
    let call = json!({ "name": "rm", "arguments": { "vm": "p" } });
    session.ask(1, "tools/call", call.clone()).await;
    let (_, mut stream) = asked(&mut requests).await;
    session.ask(1, "tools/call", call.clone()).await;
    let told = session.until(|message| message["id"] == 1).await;
    assert_eq!(told["error"]["code"], -32600, "{told}");
    answer(&mut stream, &vm("p")).await;
    let told = session.until(|message| message["id"] == 1).await;
    assert!(told.get("result").is_some(), "{told}");
    // It may be used again.
    session.ask(1, "tools/call", call).await;
    asked(&mut requests).await;
}

#[tokio::test]
async fn command_ends_when_its_call_is_cancelled() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("api.sock");
    let mut requests = daemon(&socket);
    let mut session = Session::new(&socket).await;
    let sleep = json!({ "vm": "p", "argv": ["sleep", "1234"] });
    // Before the daemon has answered, and after.
    for (id, begun) in [(1, false), (2, true)] {
        let params = json!({ "name": "exec", "arguments": sleep });
        session.ask(id, "tools/call", params).await;
        let (request, mut stream) = asked(&mut requests).await;
        assert!(request.starts_with("post /v1/vms/p/exec "), "{request}");
        if begun {
            event(&mut stream, STREAM, &json!({ "stdout": "" })).await;
        }
        session.cancel(id).await;
        let end = timeout(LONG, stream.read_u8()).await;
        assert!(end.expect("hung up").is_err());
    }
}

#[tokio::test]
async fn command_in_the_background_ends_if_its_call_was_cancelled() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("api.sock");
    let mut requests = daemon(&socket);
    let mut session = Session::new(&socket).await;
    let arguments = json!({ "vm": "p", "argv": ["sleep", "1234"], "background": true });
    let params = json!({ "name": "exec", "arguments": arguments });
    session.ask(1, "tools/call", params).await;
    let (request, mut stream) = asked(&mut requests).await;
    assert!(request.starts_with("post /v1/vms/p/exec "), "{request}");
    session.cancel(1).await;
    // Notifications are in order: what is answered afterwards was cancelled before.
    session.call(2, "run", json!({ "vcpus": 1 })).await;
    event(&mut stream, STREAM, &json!({ "started": { "pid": 7 } })).await;
    let (request, mut stream) = asked(&mut requests).await;
    assert!(
        request.starts_with("delete /v1/vms/p/sessions/7 "),
        "{request}"
    );
    answer(&mut stream, &Value::Null).await;
    // One that was not cancelled goes on; time is no argument of it.
    let arguments = json!({ "vm": "p", "argv": ["true"], "background": true, "timeout_s": 5 });
    let (text, failed) = session.call(3, "exec", arguments).await;
    assert!(failed && text.contains("session_end"), "{text}");
}

#[tokio::test]
async fn what_a_cancelled_call_made_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("api.sock");
    let mut requests = daemon(&socket);
    let mut session = Session::new(&socket).await;
    let report = forkyard_types::ForkReport::default();
    let clones = [json!({ "vm": vm("p-1") })];
    let fork = json!({ "fork": "23456789abe", "report": report, "clones": clones });
    for (id, tool, arguments, made) in [
        (1, "run", json!({ "image": "tiny" }), vm("tiny-1")),
        (2, "fork", json!({ "vm": "p" }), fork),
    ] {
        let params = json!({ "name": tool, "arguments": arguments });
        session.ask(id, "tools/call", params).await;
        let (request, mut stream) = asked(&mut requests).await;
        assert!(request.starts_with("post /v1/vms"), "{request}");
        session.cancel(id).await;
        // Notifications are in order: what is answered afterwards was cancelled before.
        session.call(10 + id, "run", json!({ "vcpus": 1 })).await;
        answer(&mut stream, &made).await;
        let (request, mut stream) = asked(&mut requests).await;
        assert!(
            request.starts_with("delete /v1/vms/23456789abc "),
            "{request}"
        );
        answer(&mut stream, &vm("gone")).await;
    }
}

#[tokio::test]
async fn long_call_tells_how_far_it_is_to_a_caller_that_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("api.sock");
    let mut requests = daemon(&socket);
    let mut session = Session::new(&socket).await;
    let arguments = json!({ "vm": "p", "argv": ["make"] });
    let meta = json!({ "progressToken": "t" });
    let params = json!({ "name": "exec", "arguments": arguments, "_meta": meta });
    session.ask(1, "tools/call", params).await;
    let (_, mut stream) = asked(&mut requests).await;
    // "cc main.c\n"
    event(
        &mut stream,
        STREAM,
        &json!({ "stdout": "Y2MgbWFpbi5jCg==" }),
    )
    .await;
    let mut last = 0.0;
    for wanted in ["cc main.c\n", "1 s", "2 s"] {
        let is_progress = |message: &Value| message["method"] == "notifications/progress";
        let told = session.until(is_progress).await;
        assert_eq!(told["params"]["progressToken"], "t");
        let progress = told["params"]["progress"].as_f64().expect("a number");
        assert!(progress > last, "{told}");
        let message = told["params"]["message"].as_str().unwrap_or_default();
        assert_eq!(message, wanted, "what was written is told once");
        last = progress;
    }
    event(&mut stream, "", &json!({ "exit": { "code": 0 } })).await;
    let answer = session.until(|message| message["id"] == 1).await;
    assert_ne!(answer["result"]["isError"], true, "{answer}");
}

#[tokio::test]
async fn numbers_are_taken_as_models_say_them_or_refused_with_what_is_wanted() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("api.sock");
    let mut requests = daemon(&socket);
    let mut session = Session::new(&socket).await;
    for (id, seconds) in [(1, json!("5")), (2, json!(5.0)), (3, json!(5))] {
        let arguments = json!({
            "vm": "p", "argv": ["true"], "timeout_s": seconds, "env": { "A": "b=c" }
        });
        let params = json!({ "name": "exec", "arguments": arguments });
        session.ask(id, "tools/call", params).await;
        let (request, mut stream) = asked(&mut requests).await;
        assert!(request.contains("\"timeout_s\":5"), "{request}");
        assert!(request.contains("[[\"A\",\"b=c\"]]"), "{request}");
        event(&mut stream, STREAM, &json!({ "exit": { "code": 0 } })).await;
    }
    let arguments = json!({ "vm": "p", "argv": ["true"], "timeout_s": "soon" });
    let (text, failed) = session.call(4, "exec", arguments).await;
    let wanted = "timeout_s: wanted a whole number from 1 to 600, not \"soon\"";
    assert_eq!((text.as_str(), failed), (wanted, true));
    let (text, failed) = session.call(5, "exec", json!({ "vm": "p" })).await;
    assert_eq!((text.as_str(), failed), ("`argv` is missing", true));
}

#[tokio::test]
async fn command_that_took_too_long_is_told_with_what_it_had_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("api.sock");
    let mut requests = daemon(&socket);
    let mut session = Session::new(&socket).await;
    let arguments = json!({ "vm": "p", "argv": ["make"] });
    let params = json!({ "name": "exec", "arguments": arguments });
    session.ask(1, "tools/call", params).await;
    let (_, mut stream) = asked(&mut requests).await;
    event(
        &mut stream,
        STREAM,
        &json!({ "stderr": "Y2MgbWFpbi5jCg==" }),
    )
    .await;
    let late = json!({ "kind": "timeout", "message": "took too long", "hint": "wait" });
    event(&mut stream, "", &json!({ "error": late })).await;
    let answer = session.until(|message| message["id"] == 1).await;
    assert_eq!(
        answer["result"]["content"][0]["text"],
        "took too long; wait\nstderr until then:\ncc main.c\n"
    );
}

#[tokio::test]
async fn what_was_asked_before_the_input_ended_is_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("api.sock");
    let mut requests = daemon(&socket);
    let mut session = Session::new(&socket).await;
    let call = json!({ "name": "rm", "arguments": { "vm": "p" } });
    session.ask(1, "tools/call", call).await;
    session.to.shutdown().await.expect("closed");
    let (_, mut stream) = asked(&mut requests).await;
    // Longer than calls are waited for by the protocol's library.
    tokio::time::sleep(Duration::from_secs(6)).await;
    answer(&mut stream, &vm("p")).await;
    let told = session.until(|message| message["id"] == 1).await;
    assert!(told["result"]["isError"] != true, "{told}");
}
