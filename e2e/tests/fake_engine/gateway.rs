//! Tokens of the gateway that the daemon gives out, as far as they are the same with any guest. A made-up
//! machine's server speaks no HTTP: a request that is let through is answered 502.

use forkyard_e2e::{Host, eventually};
use forkyard_types::ShareView;
use std::io::{Read, Write};

#[test]
fn a_token_is_given_out_by_the_api_and_holds_for_its_port_until_it_is_taken_back() {
    let host = Host::fake();
    host.with_loopback();
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", "serve 7 && serve 8");
    let keys = tempfile::tempdir().expect("a folder");
    let key = keys.path().join("key");
    let key = key.to_str().expect("text");
    let words = [
        "serve",
        "--domain",
        "vms.test",
        "--key",
        key,
        "--metrics",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
    ];
    let gateway = host.start_program("forkyard-gateway", words, "");
    let ports = || -> Vec<u16> {
        let said = gateway.complaints();
        let of = |line: &str| line.split("127.0.0.1:").nth(1)?.trim().parse().ok();
        said.lines().filter_map(of).collect()
    };
    eventually("it listens", || ports().len() == 2);
    let [metrics, http] = ports()[..] else {
        panic!("two addresses")
    };
    let get = |at: u16, path: &str, of: &str, token: &str| {
        let mut stream = host.connect(at).expect("it listens");
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {of}\r\nx-forkyard-token: {token}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer
    };
    let status = |of: &str, token: &str| {
        let answer = get(http, "/", of, token);
        answer.split(' ').nth(1).expect("a status").to_owned()
    };

    let made = "import forkyard_host as f; p = f.Forkyard().vm('p')\n\
        made = p.share(7, 600, base='https://vms.test', note='for ada')\n\
        assert made['url'] == 'https://7-p.vms.test/?forkyard_token=' + made['token'], made\n\
        assert [it['id'] for it in p.shares()] == [made['share']['id']]\n\
        assert made['token'].split('.')[3] not in str(p.shares())\n\
        print(made['token'])";
    let by_python = host.python(made).trim().to_owned();
    let by_command = host.ok(["share", "add", "p", "8"]);
    assert_eq!(status("7-p.vms.test", &by_python), "502", "let through");
    assert_eq!(status("8-p.vms.test", &by_command), "502");
    assert_eq!(status("8-p.vms.test", &by_python), "401", "another port's");
    assert_eq!(status("7-p.vms.test", &format!("{by_python}x")), "401");
    // A clone is another VM.
    host.fork("p", 1);
    assert_eq!(status("7-p-1.vms.test", &by_python), "401");
    let of_clone: Vec<ShareView> = host.json(["share", "ls", "p-1"]);
    assert_eq!(of_clone, []);

    // They are the next daemon's as well, and taken back one by one.
    host.kill_9("forkyardd");
    let listed: Vec<ShareView> = host.json(["share", "ls", "p"]);
    let notes: Vec<_> = listed.iter().map(|it| it.note.as_str()).collect();
    assert_eq!(notes, ["for ada", ""]);
    host.ok(["share", "rm", "p", listed[0].id.as_str()]);
    eventually("it holds no more", || {
        status("7-p.vms.test", &by_python) == "401"
    });
    assert_eq!(status("8-p.vms.test", &by_command), "502");
    let gone = host.fails(["share", "rm", "p", listed[0].id.as_str()]);
    assert!(gone.contains("has no token"), "{gone}");
    let short = host.ok(["share", "add", "p", "7", "--expires", "1"]);
    eventually("it expires", || status("7-p.vms.test", &short) == "401");

    let told = get(metrics, "/metrics", "x", "");
    for line in [
        "forkyard_gateway_requests_total{class=\"4xx\",by=\"gateway\"}",
        "forkyard_gateway_connections ",
    ] {
        assert!(told.contains(line), "{told}");
    }
    gateway.interrupt();
    gateway.wait();
    host.end();
}
