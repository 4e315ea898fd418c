//! An agent's session, as its client leads it: JSON-RPC, a line a message.

use base64::{Engine, prelude::BASE64_STANDARD};
use forkyard_e2e::{Host, eventually};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout},
};

struct Agent {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    asked: u64,
}

impl Agent {
    fn new(host: &Host) -> Self {
        let mut child = host.talk_to(["mcp"]);
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut agent = Self {
            child,
            to,
            from,
            asked: 0,
        };
        let me = json!({ "name": "test", "version": "1" });
        let hello =
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": me });
        let server = agent.ask("initialize", hello);
        assert_eq!(server["serverInfo"]["name"], "forkyard", "{server}");
        agent.say(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        agent
    }

    fn say(&mut self, message: Value) {
        writeln!(self.to, "{message}").expect("it listens");
    }

    /// Asks for something that is not waited for.
    fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.asked += 1;
        let id = self.asked;
        self.say(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        loop {
            let mut line = String::new();
            self.from.read_line(&mut line).expect("text");
            let answer: Value = serde_json::from_str(&line).expect("JSON-RPC");
            // What has no such id is a notification.
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{answer}");
                return answer["result"].clone();
            }
        }
    }

    /// Calls a tool; returns its answer, and whether that is marked as an
    /// error.
    fn call(&mut self, tool: &str, arguments: Value) -> (String, bool) {
        let result = self.ask(
            "tools/call",
            json!({ "name": tool, "arguments": arguments }),
        );
        let text = result["content"][0]["text"].as_str();
        let text = text.unwrap_or_else(|| panic!("{result}")).to_owned();
        (text, result["isError"] == true)
    }

    fn done(&mut self, tool: &str, arguments: Value) -> Value {
        let (text, failed) = self.call(tool, arguments);
        assert!(!failed, "{tool}: {text}");
        serde_json::from_str(&text).expect("JSON")
    }

    fn refused(&mut self, tool: &str, arguments: Value) -> String {
        let (text, failed) = self.call(tool, arguments);
        assert!(failed, "{tool}: {text}");
        text
    }
}

#[test]
fn an_agent_runs_forks_and_uses_vms() {
    let host = Host::new();
    let mut agent = Agent::new(&host);
    let tools = agent.ask("tools/list", json!({}));
    assert_eq!(tools["tools"].as_array().map(Vec::len), Some(13), "{tools}");
    let none = agent.refused("activate", json!({ "substrate": "s", "count": 2 }));
    assert!(none.contains("there is no substrate"), "{none}");

    let vm = agent.done("run", json!({ "image": "tiny", "name": "p" }));
    assert_eq!(vm["name"], "p");
    let path = "/root/a/b.txt";
    let content = "é\n".repeat(1000);
    let written = agent.done(
        "write_file",
        json!({ "vm": "p", "path": path, "content": content }),
    );
    assert_eq!(written["bytes"], 3000, "{written}");
    let forked = agent.done("fork", json!({ "vm": "p", "count": 2 }));
    assert_eq!(forked["clones"][1]["name"], "p-2", "{forked}");
    agent.done(
        "write_file",
        json!({ "vm": "p-1", "path": path, "content": "other" }),
    );
    let read = agent.done("read_file", json!({ "vm": "p-2", "path": path }));
    assert_eq!(
        (read["content"].as_str(), &read["more"]),
        (Some(content.as_str()), &json!(false))
    );
    let part = json!({ "vm": "p-1", "path": path, "offset": 2, "limit": 2 });
    let part = agent.done("read_file", part);
    assert_eq!(
        (&part["content"], &part["more"]),
        (&json!("he"), &json!(true))
    );

    let bytes = BASE64_STANDARD.encode([0, 255, 254, 7]);
    let binary = json!({ "vm": "p", "path": "/tmp/x", "content": bytes, "encoding": "base64" });
    agent.done("write_file", binary);
    let read = agent.done("read_file", json!({ "vm": "p", "path": "/tmp/x" }));
    assert_eq!(
        (&read["content"], &read["encoding"]),
        (&json!(bytes), &json!("base64"))
    );

    let argv = ["sh", "-c", "cat; echo err >&2; exit 7"];
    let ran = agent.done("exec", json!({ "vm": "p-1", "argv": argv, "stdin": "in" }));
    assert_eq!(
        ran,
        json!({ "exit": { "code": 7 }, "stdout": "in", "stderr": "err\n" })
    );
    let argv = [
        "sh",
        "-c",
        "echo begin; head -c 4m /dev/zero | tr '\\0' x; echo end",
    ];
    let ran = agent.done("exec", json!({ "vm": "p", "argv": argv }));
    let text = ran["stdout"].as_str().expect("text");
    assert!(text.len() < 100_000 && text.starts_with("begin") && text.ends_with("end\n"));

    for (argv, code) in [(["nosuch"], 127), (["/root"], 126)] {
        let told = agent.refused("exec", json!({ "vm": "p", "argv": argv }));
        assert!(told.contains(&format!("exit code {code}")), "{told}");
    }

    let argv = ["sh", "-c", "pwd; id -u"];
    let ran = agent.done(
        "exec",
        json!({ "vm": "p", "argv": argv, "cwd": "/tmp", "user": "nobody" }),
    );
    assert_eq!(ran["stdout"], "/tmp\n65534\n");

    let folder = json!({ "vm": "p", "path": "/root/a", "content": "x" });
    assert!(agent.refused("write_file", folder).contains("folder"));
    let folder = agent.refused("read_file", json!({ "vm": "p", "path": "/root/a" }));
    assert!(folder.contains("folder"), "{folder}");
    let argv = ["sh", "-c", "chmod 755 /tmp/x; ln -s x /tmp/l"];
    agent.done("exec", json!({ "vm": "p", "argv": argv }));
    let through = json!({ "vm": "p", "path": "/tmp/l", "content": "y" });
    agent.done("write_file", through);
    let argv = [
        "sh",
        "-c",
        "ls /root; readlink /tmp/l; stat -c %a /tmp/x /root/a/b.txt; cat /tmp/x",
    ];
    let ran = agent.done("exec", json!({ "vm": "p", "argv": argv }));
    assert_eq!(ran["stdout"], "a\nx\n755\n644\ny");

    let sleep = json!({ "vm": "p", "argv": ["sleep", "1234"], "timeout_s": "600" });
    let slept = agent.begin("tools/call", json!({ "name": "exec", "arguments": sleep }));
    let seen = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'slee[p] 1234' || true";
    let sleeps = || host.sh("p", seen).trim() == "1";
    eventually("a command in the guest", sleeps);
    let cancelled = json!({ "requestId": slept });
    agent
        .say(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled }));
    eventually("its end", || !sleeps());

    commands_go_on_in_the_background(&mut agent, "p");

    // What goes wrong is told, and the session goes on.
    let missing = agent.refused("read_file", json!({ "vm": "p", "path": "/none" }));
    assert!(missing.contains("/none"), "{missing}");
    let nobody = agent.refused("fork", json!({ "vm": "q" }));
    assert!(nobody.contains("forkyard ps"), "{nobody}");
    let slow = json!({ "vm": "p", "argv": ["sleep", "1000"], "timeout_s": 1 });
    assert!(agent.refused("exec", slow).contains("longer than 1 s"));
    let odd = agent.refused("rm", json!({ "vm": "../images/tiny" }));
    assert!(odd.contains("../images/tiny"), "{odd}");

    for vm in ["p-1", "p-2", "p"] {
        agent.done("rm", json!({ "vm": vm }));
    }
    // The daemon has gone with the last VM; the session has not.
    eventually("the daemon's end", || {
        host.processes("forkyardd").is_empty()
    });
    assert_eq!(agent.done("ls", json!({})), json!([]));
    drop(agent.to);
    assert!(agent.child.wait().expect("reaped").success());
    host.nothing_left();
}

fn commands_go_on_in_the_background(agent: &mut Agent, vm: &str) {
    let script = "echo $0; read a; echo got $a; cat >&2; exit 3";
    let argv = ["sh", "-c", script, "begun"];
    let started = json!({ "vm": vm, "argv": argv, "stdin": "on", "background": true });
    let pid = agent.done("exec", started)["pid"].clone();
    let mut next = 0;
    let mut read = |agent: &mut Agent, wanted: &str| {
        let mut said = String::new();
        loop {
            let from = json!({ "vm": vm, "pid": pid, "from": next, "wait_s": 60 });
            let part = agent.done("session_read", from);
            said += part["stdout"].as_str().expect("text");
            said += part["stderr"].as_str().expect("text");
            next = part["next"].as_u64().expect("a number");
            if said == wanted {
                return part["exit"].clone();
            }
            assert!(wanted.starts_with(&said), "{said}");
        }
    };
    read(agent, "begun\n");
    agent.done(
        "session_write",
        json!({ "vm": vm, "pid": pid, "input": "e\n" }),
    );
    // What came with the start was read before.
    let exit = read(agent, "got one\n");
    assert_eq!(exit, Value::Null, "it runs");
    let last = json!({ "vm": vm, "pid": pid, "input": "é", "eof": true });
    agent.done("session_write", last);
    read(agent, "é");
    let ended = json!({ "vm": vm, "pid": pid, "from": 0, "wait_s": 60 });
    let ended = loop {
        let read = agent.done("session_read", ended.clone());
        if !read["exit"].is_null() {
            break read;
        }
    };
    assert_eq!(
        ended,
        json!({
            "stdout": "begun\ngot one\n", "stderr": "é", "next": 16, "more": false, "missed": 0,
            "exit": { "code": 3 },
        })
    );
    let late = json!({ "vm": vm, "pid": pid, "input": "x" });
    assert!(agent.refused("session_write", late).contains("has ended"));

    // Of much output parts are read, and what was lost is counted.
    let argv = [
        "sh",
        "-c",
        "head -c 300000 /dev/zero | tr '\\0' x; sleep 1234",
    ];
    let much = json!({ "vm": vm, "argv": argv, "background": true });
    let pid = agent.done("exec", much)["pid"].clone();
    eventually("all of its output", || {
        let all = agent.done("sessions", json!({ "vm": vm }));
        let mut all = all.as_array().expect("a list").iter();
        let found = all.find(|it| it["pid"] == pid).expect("it is there");
        found["kept"]
            .as_u64()
            .zip(found["lost"].as_u64())
            .is_some_and(|(kept, lost)| kept + lost == 300_000)
    });
    let part = json!({ "vm": vm, "pid": pid });
    let part = agent.done("session_read", part);
    let text = part["stdout"].as_str().expect("text");
    let lost = part["missed"].as_u64().expect("a number");
    assert!(lost > 100_000 && text.len() == 64 << 10 && part["more"] == true);
    assert_eq!(part["next"], lost + (64 << 10));
    agent.done("session_end", json!({ "vm": vm, "pid": pid }));
    let part = json!({ "vm": vm, "pid": pid, "from": 300_000, "wait_s": 60 });
    let part = agent.done("session_read", part);
    assert_eq!(part["exit"], json!({ "signal": 9 }), "{part}");
}
