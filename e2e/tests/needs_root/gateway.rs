//! HTTP and TCP for servers in real guests, through the gateway.

use forkyard_e2e::{Host, Running, eventually};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

/// Prints what a server is told, and its name.
const TOLD: &str = "#!/bin/sh\nprintf 'Content-Type: text/plain\\r\\n\\r\\n'\n\
    echo \"$(hostname) $REQUEST_METHOD $QUERY_STRING\"\n\
    env | grep -E '^HTTP_(X_|COOKIE)' | sort\n[ \"$REQUEST_METHOD\" = POST ] && cat\ntrue\n";
/// Takes a request for another protocol, and says back what comes then.
const ECHO: &str = "#!/bin/sh\nwhile read -r line && [ ${#line} -gt 1 ]; do :; done\n\
    printf 'HTTP/1.1 101 Switching Protocols\\r\\nconnection: upgrade\\r\\nupgrade: echo\\r\\n\\r\\n'\ncat\n";

/// An answer: its head, and its body.
pub struct Answer(pub String, pub String);

impl Answer {
    /// Returns its status.
    pub fn status(&self) -> &str {
        self.0.split(' ').nth(1).expect("a status")
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| {
            let (its, value) = line.split_once(": ")?;
            its.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// Addresses that a gateway has said it listens at, in order.
pub fn ports(gateway: &Running) -> Vec<u16> {
    let said = gateway.complaints();
    let of = |line: &str| line.split("127.0.0.1:").nth(1)?.trim().parse().ok();
    said.lines().filter_map(of).collect()
}

/// Asks at a port of the host's.
pub fn ask(host: &Host, port: u16, head: &str, body: &str) -> Answer {
    let mut stream = host.connect(port).expect("it listens");
    let length = match body.len() {
        0 => String::new(),
        length => format!("content-length: {length}\r\n"),
    };
    let request = format!("{head}connection: close\r\n{length}\r\n{body}");
    stream.write_all(request.as_bytes()).expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("HTTP");
    Answer(head.to_owned(), body.to_owned())
}

#[test]
fn ports_of_vms_are_reached_by_name_with_a_token_and_wait_for_daemons_and_sleepers() {
    let host = Host::with_woken_p([]);
    host.with_loopback();
    host.sh("p", "mkdir -p /www/cgi-bin");
    for (path, content) in [("/www/cgi-bin/told", TOLD), ("/www/echo", ECHO)] {
        host.put("p", path, content);
        host.sh("p", &format!("chmod 755 {path}"));
    }
    host.sh(
        "p",
        "httpd -p 127.0.0.1:8080 -h /www && (nc -l -p 9 -e /www/echo >/dev/null 2>&1 </dev/null &)",
    );
    let keys = tempfile::tempdir().expect("a folder");
    let key = keys.path().join("gateway.key");
    let key = key.to_str().expect("text").to_owned();
    let serve = |more: &[&str], count: usize| {
        let mut words = vec!["serve", "--domain", "vms.test", "--key", &key];
        words.extend(more);
        let gateway = host.start_program("forkyard-gateway", words, "");
        eventually("it listens", || ports(&gateway).len() == count);
        let ports = ports(&gateway);
        (gateway, ports)
    };
    let http = ["--listen", "127.0.0.1:0"];
    let forward = ["--tcp", "127.0.0.1:0=p:8080"];
    let (gateway, at) = serve(&[http, forward].concat(), 2);
    let share = |vm: &str, port: &str, expires: &str| {
        let words = ["share", vm, port, "--key", &key, "--expires", expires];
        let told = host.start_program("forkyard-gateway", words, "").wait();
        told.exited(0).text()
    };
    let token = share("p", "8080", "1h");
    let get = |target: &str, of: &str, header: &str| {
        let head = format!("GET {target} HTTP/1.0\r\nhost: {of}\r\n{header}");
        ask(&host, at[0], &head, "")
    };
    let shown = format!("x-forkyard-token: {token}\r\n");
    let told = "/cgi-bin/told?a=b";
    let of_p = "8080-p.vms.test";

    // With a token, by name and by path, and the server is not told the token.
    let answer = get(told, of_p, &format!("{shown}x-forwarded-for: 6.6.6.6\r\n"));
    assert_eq!(answer.status(), "200", "{}", answer.0);
    assert_eq!(
        answer.1,
        format!(
            "p GET a=b\nHTTP_X_FORWARDED_FOR=127.0.0.1\nHTTP_X_FORWARDED_HOST={of_p}\nHTTP_X_FORWARDED_PROTO=http\n"
        )
    );
    let answer = get(&format!("/vms/p/ports/8080{told}"), "x", &shown);
    assert!(answer.1.starts_with("p GET a=b\n"), "{}", answer.1);
    assert!(
        answer
            .1
            .contains("HTTP_X_FORWARDED_PREFIX=/vms/p/ports/8080\n")
    );

    // In the address it becomes a cookie.
    let answer = get(&format!("{told}&forkyard_token={token}"), of_p, "");
    assert_eq!(answer.status(), "303");
    assert_eq!(answer.header("location"), Some(told));
    let cookie = answer.header("set-cookie").expect("a cookie");
    assert!(cookie.contains("HttpOnly"), "{cookie}");
    let (cookie, _) = cookie.split_once(';').expect("attributes");
    let answer = get(told, of_p, &format!("cookie: x=1; {cookie}\r\n"));
    assert!(answer.1.contains("HTTP_COOKIE=x=1\n"), "{}", answer.1);
    let by_path = format!("/vms/p/ports/8080{told}");
    let answer = get(&by_path, "x", &format!("cookie: {cookie}\r\n"));
    assert_eq!(answer.status(), "401", "all ports share that origin");

    // What a page of another origin has a browser send with the cookie.
    let crossed = |origin: &str| {
        let head = format!(
            "POST /cgi-bin/told HTTP/1.0\r\nhost: {of_p}\r\norigin: {origin}\r\ncookie: {cookie}\r\n"
        );
        ask(&host, at[0], &head, "x").status().to_owned()
    };
    assert_eq!(crossed("http://9-evil.vms.test"), "403");
    assert_eq!(crossed(&format!("http://{of_p}")), "200");
    // A client cannot set the headers that name the asker.
    let lies = format!("{shown}connection: x-forwarded-for, host\r\nx_forwarded_for: 6.6.6.6\r\n");
    let answer = get(told, of_p, &lies);
    assert!(
        answer.1.contains("HTTP_X_FORWARDED_FOR=127.0.0.1\n"),
        "{}",
        answer.1
    );
    let outward = format!("/\\evil.test/?forkyard_token={token}");
    let answer = get(&outward, of_p, "");
    assert_eq!(answer.header("location"), Some("/evil.test/"));

    // Without, with another's, or too late, nothing is told.
    assert_eq!(get(told, of_p, "").status(), "401");
    assert_eq!(get(told, "8080-nobody.vms.test", "").status(), "401");
    assert_eq!(get(told, "22-p.vms.test", &shown).status(), "401");
    let late = format!("x-forkyard-token: {}\r\n", share("p", "8080", "0s"));
    let answer = get(told, of_p, &late);
    assert!(answer.1.contains("expired"), "{}", answer.1);
    assert_eq!(get(told, "vms.test", &shown).status(), "404");

    // A clone has a port of its own, which its parent's token does not open.
    host.fork("p", 1);
    let of_clone = "8080-p-1.vms.test";
    assert_eq!(get(told, of_clone, &shown).status(), "401");
    let clones = format!("x-forkyard-token: {}\r\n", share("p-1", "8080", "1h"));
    let answer = get(told, of_clone, &clones);
    assert!(answer.1.starts_with("p-1 GET"), "{}", answer.1);

    // Nothing listens; a body; another protocol; plain TCP.
    let closed = format!("x-forkyard-token: {}\r\n", share("p", "81", "1h"));
    let answer = get("/", "81-p.vms.test", &closed);
    assert_eq!(answer.status(), "502");
    assert!(answer.1.contains("nothing listens"), "{}", answer.1);
    let head = format!("POST /cgi-bin/told HTTP/1.0\r\nhost: {of_p}\r\n{shown}");
    let answer = ask(&host, at[0], &head, "the body");
    assert!(answer.1.ends_with("the body"), "{}", answer.1);
    let echo = share("p", "9", "1h");
    switched(host.connect(at[0]).expect("it listens"), &echo);
    let answer = ask(&host, at[1], &format!("GET {told} HTTP/1.0\r\n"), "");
    assert!(answer.1.starts_with("p GET a=b\n"), "{}", answer.1);

    // While no daemon runs, a request waits for the next.
    host.kill_9("forkyardd");
    let head = format!("GET {told} HTTP/1.0\r\nhost: {of_p}\r\n{shown}");
    let waiting = std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(&host, at[0], &head, ""));
        host.ok(["ps"]);
        asked.join().expect("answered")
    });
    assert_eq!(waiting.status(), "200", "{}", waiting.1);

    // One that is paused is woken by the gateway that may.
    host.ok(["pause", "p"]);
    let answer = get(told, of_p, &shown);
    assert_eq!(answer.status(), "503");
    assert!(answer.1.contains("paused"), "{}", answer.1);
    let (waking, others) = serve(&[&http[..], &["--open", "--wake"]].concat(), 1);
    let head = format!("GET {told} HTTP/1.0\r\nhost: {of_p}\r\n");
    let answer = ask(&host, others[0], &head, "");
    assert!(answer.1.starts_with("p GET a=b\n"), "{}", answer.1);

    for gateway in [gateway, waking] {
        gateway.interrupt();
        gateway.wait().exited(0);
    }
    host.end();
}

/// Becomes a connection of another protocol, and talks over it.
fn switched(mut stream: TcpStream, token: &str) {
    let request = format!(
        "GET / HTTP/1.1\r\nhost: 9-p.vms.test\r\nconnection: Upgrade\r\nupgrade: echo\r\nx-forkyard-token: {token}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("asked");
    let mut answers = BufReader::new(stream.try_clone().expect("a copy")).lines();
    let mut next = || answers.next().expect("a line").expect("text");
    assert!(next().contains(" 101 "));
    while !next().is_empty() {}
    for line in ["one", "two"] {
        writeln!(stream, "{line}").expect("sent");
        assert_eq!(next(), line);
    }
}
