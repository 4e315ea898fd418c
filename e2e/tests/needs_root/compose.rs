//! Tests of VMs that one file describes, and of VMs that join others' networks.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{ListedVm, VmView};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

#[derive(Deserialize)]
struct IsUp {
    members: BTreeMap<String, Member>,
}

#[derive(Deserialize)]
struct Member {
    vm: VmView,
    made: bool,
}

const FILE: &str = r#"
name = "mix"

[members.user]
image = "tiny"
after = ["web"]
command = ["sh", "-c", "wget -q -O /root/got http://web:8080/word && mv /root/got /root/word"]
health = { test = ["test", "-e", "/root/word"], interval = "100ms" }

[members.web]
image = "tiny"
publish = ["127.0.0.1:18080:8080"]
copy = { "word" = "/root/word" }
command = ["httpd", "-f", "-p", "8080", "-h", "/root"]
health = { test = ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8080/word"], interval = "100ms" }
"#;

/// Compose file of these members, which copies nothing.
const YAML: &str = r#"
name: mix
services:
  user:
    image: tiny
    depends_on: { web: { condition: service_healthy } }
    command: wget -q -O /root/got http://web:8080/word && mv /root/got /root/word
    healthcheck: { test: ["CMD", "test", "-e", "/root/word"], interval: 100ms }
  web:
    image: tiny
    ports: ["127.0.0.1:18080:8080"]
    command: ["httpd", "-f", "-p", "8080", "-h", "/root"]
    healthcheck: { test: wget -q -O /dev/null http://127.0.0.1:8080/word, interval: 100ms }
"#;

/// Asks the published port, from the host.
fn word(host: &Host) -> Option<String> {
    host.within(|| {
        let mut stream = TcpStream::connect("127.0.0.1:18080").ok()?;
        stream.write_all(b"GET /word HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer.lines().last()?.to_owned())
    })
}

#[test]
fn members_of_a_file_find_each_other_by_name_and_begin_in_order() {
    let host = Host::new();
    host.with_loopback();
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("word"), "hello\n").expect("written");
    let file = folder.path().join("any.toml");
    fs::write(&file, FILE).expect("written");
    let file = file.to_str().expect("text");

    let up: IsUp = host.json(["up", file]);
    assert!(up.members.values().all(|member| member.made));
    let (user, web) = (&up.members["user"].vm, &up.members["web"].vm);
    assert_eq!((user.family, web.parent), (web.family, None));
    assert_eq!(host.sh("mix-user", "cat /root/word"), "hello");
    assert_eq!(word(&host).as_deref(), Some("hello"));
    // A member is forked as any VM, and its clones are on the same network.
    let clone = host.fork("mix-web", 1).remove(0);
    let ask = format!("wget -q -O - http://{}:8080/word", clone.address.ip);
    assert_eq!(host.sh("mix-user", &ask), "hello");
    host.ok(["rm", clone.name.as_str()]);

    // Its port leads to it after a daemon's death, and after its own end and return.
    host.kill_9("forkyardd");
    host.ok(["ps"]);
    assert_eq!(word(&host).as_deref(), Some("hello"));
    host.ok(["stop", "mix-web"]);
    assert_eq!(word(&host), None);
    let again: IsUp = host.json(["up", file]);
    assert!(again.members.values().all(|member| !member.made));
    eventually("it is served again", || {
        word(&host).as_deref() == Some("hello")
    });

    // As if `up` had been killed before it had begun that: the next one does, by whichever file.
    host.sh("mix-user", "rm /run/forkyard-up /root/word");
    let yaml = folder.path().join("any.yaml");
    fs::write(&yaml, YAML).expect("written");
    let again: IsUp = host.json(["up", yaml.to_str().expect("text")]);
    assert!(again.members.values().all(|member| !member.made));
    assert_eq!(host.sh("mix-user", "cat /root/word"), "hello");

    // A port that is taken refuses a VM, and leaves those that are there as they were.
    let words = ["run", "tiny", "--join", "mix-web", "--name", "late"];
    let taken = [&words[..], &["--publish", "127.0.0.1:18080:1"]].concat();
    let why = host.start(taken.iter(), "").wait().exited(1).stderr;
    assert!(why.contains("18080"), "{why}");
    assert_eq!(word(&host).as_deref(), Some("hello"));
    // The first of them may go; another that boots joins those that are left.
    host.ok(["rm", "mix-user"]);
    host.ok([
        "run", "tiny", "--cold", "--join", "mix-web", "--name", "late",
    ]);
    let ask = format!("wget -q -O - http://{}:8080/word", web.address.ip);
    assert_eq!(host.sh("late", &ask), "hello");
    host.ok(["down", file]);
    let left: Vec<ListedVm> = host.json(["ps"]);
    assert_eq!(left.len(), 1, "{left:?}");
    let why = host.fails(["down", "mix"]);
    assert!(why.contains("no composition"), "{why}");
    host.ok(["rm", "late"]);
}
