//! Connections to ports of guests, as far as they are the same with any guest. The servers are
//! those of made-up machines: they greet by their guest's name, and say what they hear.

use forkyard_e2e::{Host, Running, eventually};
use forkyard_types::TokenGrant;
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    thread,
};

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: tcp\r\n";
/// Connections that one VM may have.
const MOST: usize = 64;

fn with_server() -> Host {
    let host = Host::fake();
    host.with_loopback();
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", "serve 7");
    host
}

/// A forwarder, and the ports that it listens on.
fn forward(host: &Host, words: &[&str]) -> (Running, Vec<u16>) {
    let wanted = words.len() - 1;
    let running = host.start([&["port-forward"], words, &["-o", "json"]].concat(), "");
    eventually("it listens", || ports_of(&running).len() == wanted);
    let ports = ports_of(&running);
    (running, ports)
}

/// Ports that a forwarder has said it listens on.
fn ports_of(running: &Running) -> Vec<u16> {
    let said = running.said();
    let whole = said
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    let ports = whole.map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let at = line["listen"].as_str().expect("an address").to_owned();
        let port = at.rsplit(':').next().map(str::parse);
        port.expect("a port").expect("a number")
    });
    ports.collect()
}

/// Sends all, ends, and returns all that came.
fn exchange(mut stream: TcpStream, sent: Vec<u8>) -> Vec<u8> {
    let mut to = stream.try_clone().expect("a copy");
    let sending = thread::spawn(move || {
        to.write_all(&sent).expect("sent");
        to.shutdown(Shutdown::Write).expect("ended");
    });
    let mut came = Vec::new();
    stream.read_to_end(&mut came).expect("the end");
    sending.join().expect("sent");
    came
}

/// A request on the daemon's socket, and the head of its answer.
fn ask(host: &Host, path: &str, headers: &str) -> (UnixStream, String) {
    let mut socket = UnixStream::connect(host.folder().join("run/api.sock")).expect("a daemon");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
    socket.write_all(request.as_bytes()).expect("asked");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).expect("a head");
        head.extend(byte);
    }
    (socket, String::from_utf8(head).expect("text"))
}

fn status(head: &str) -> u16 {
    let word = head.split(' ').nth(1).expect("a status");
    word.parse().expect("a number")
}

#[test]
fn bytes_pass_both_ways_to_a_vm_and_to_its_clones_and_each_direction_ends_by_itself() {
    let host = with_server();
    host.sh("p", "serve 8");
    host.fork("p", 1);
    let (p, ports) = forward(&host, &["p", "0:7", "0:8"]);
    let (clone, of_clone) = forward(&host, &["p-1", "0:7"]);
    let large: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    for (port, name) in [(ports[0], "p"), (ports[1], "p"), (of_clone[0], "p-1")] {
        let stream = host.connect(port).expect("it listens");
        let came = exchange(stream, large.clone());
        let wanted = [format!("{name}\n").as_bytes(), &large].concat();
        assert!(came == wanted, "{name}: {} bytes", came.len());
    }
    // Another VM may have its name by now: the port leads to the one that was meant.
    host.ok(["rm", "p-1"]);
    let gone = host.connect(of_clone[0]).expect("it listens");
    exchange_fails(gone);
    eventually("it is told", || {
        clone.complaints().contains("there is no VM")
    });
    for running in [p, clone] {
        running.interrupt();
        running.wait().exited(130);
    }
    host.end();
}

fn exchange_fails(mut stream: TcpStream) {
    let mut came = Vec::new();
    // Ended or reset: nothing has come.
    let _ = stream.read_to_end(&mut came);
    assert!(came.is_empty());
}

#[test]
fn a_port_without_a_server_is_told_of_and_costs_no_other_connection() {
    let host = with_server();
    let (running, ports) = forward(&host, &["p", "0:7", "0:9"]);
    exchange_fails(host.connect(ports[1]).expect("it listens"));
    let told = || running.complaints();
    eventually("it is told", || {
        told().contains("nothing listens on TCP port 9")
    });
    assert!(told().contains("start the server"), "{}", told());
    host.sh("p", "serve 9");
    for port in ports {
        let came = exchange(host.connect(port).expect("it listens"), b"x".to_vec());
        assert_eq!(came, b"p\nx");
    }
    running.interrupt();
    running.wait().exited(130);
    host.end();
}

#[test]
fn a_forward_of_no_vm_or_to_a_port_that_is_taken_does_not_begin() {
    let host = with_server();
    assert!(
        host.fails(["port-forward", "nosuch", "0:7"])
            .contains("nosuch")
    );
    let (running, ports) = forward(&host, &["p", "0:7"]);
    let taken = format!("{}:7", ports[0]);
    let told = host.fails(["port-forward", "p", "0:7", &taken]);
    assert!(told.contains("choose another port"), "{told}");
    host.start(["port-forward", "p", "0:0"], "")
        .wait()
        .exited(2);
    running.interrupt();
    running.wait().exited(130);
    host.end();
}

#[test]
fn each_wrong_request_has_a_status_of_its_own() {
    let host = with_server();
    for (path, headers, wanted) in [
        ("p/ports/7", "", 426),
        (
            "p/ports/7",
            "Connection: Upgrade\r\nUpgrade: websocket\r\n",
            426,
        ),
        ("p/ports/7", "Upgrade: tcp\r\n", 426),
        ("p/ports/0", UPGRADE, 400),
        ("p/ports/65536", UPGRADE, 400),
        ("p/ports/http", UPGRADE, 400),
        ("nosuch/ports/7", UPGRADE, 404),
        ("p/ports/9", UPGRADE, 502),
        ("p/ports/7", UPGRADE, 101),
    ] {
        let (_, head) = ask(&host, &format!("/v1/vms/{path}"), headers);
        assert_eq!(status(&head), wanted, "{path} {headers}");
        let named = head.to_ascii_lowercase().contains("upgrade: tcp");
        assert_eq!(named, [101, 426].contains(&wanted), "{head}");
    }
    host.ok(["pause", "p"]);
    assert_eq!(status(&ask(&host, "/v1/vms/p/ports/7", UPGRADE).1), 409);
    host.ok(["resume", "p"]);
    host.ok(["stop", "p"]);
    assert_eq!(status(&ask(&host, "/v1/vms/p/ports/7", UPGRADE).1), 409);
    host.end();
}

#[test]
fn a_client_that_reads_nothing_holds_up_itself_alone() {
    let host = with_server();
    let (mut socket, head) = ask(&host, "/v1/vms/p/ports/7", UPGRADE);
    assert_eq!(status(&head), 101);
    // More than all buffers on the way hold.
    let large = vec![7_u8; 64 << 20];
    let mut to = socket.try_clone().expect("a copy");
    let sent = large.clone();
    let sending = thread::spawn(move || {
        to.write_all(&sent).expect("sent");
        to.shutdown(Shutdown::Write).expect("ended");
    });
    let (mut other, _) = ask(&host, "/v1/vms/p/ports/7", UPGRADE);
    let mut greeting = [0; 2];
    other.read_exact(&mut greeting).expect("greeted");
    assert_eq!(host.sh("p", "hostname"), "p");
    assert!(!sending.is_finished(), "all of it lies somewhere");
    let mut came = Vec::new();
    socket.read_to_end(&mut came).expect("the end");
    assert!(came[2..] == large, "{} bytes", came.len());
    sending.join().expect("sent");
    drop(other);
    host.end();
}

#[test]
fn connections_of_a_vm_are_bounded_and_their_places_are_given_back() {
    let host = with_server();
    let connect = || ask(&host, "/v1/vms/p/ports/7", UPGRADE);
    let mut open: Vec<_> = (0..MOST).map(|_| connect().0).collect();
    assert_eq!(status(&connect().1), 429);
    host.fork("p", 1);
    let (_, head) = ask(&host, "/v1/vms/p-1/ports/7", UPGRADE);
    assert_eq!(status(&head), 101, "a clone has places of its own");
    open.pop();
    eventually("a place is given back", || status(&connect().1) == 101);
    drop(open);
    host.end();
}

#[test]
fn a_connection_ends_with_its_vm_and_with_the_daemon() {
    let host = with_server();
    host.fork("p", 1);
    let connect = |vm: &str| {
        let (mut socket, head) = ask(&host, &format!("/v1/vms/{vm}/ports/7"), UPGRADE);
        assert_eq!(status(&head), 101);
        let mut greeting = vec![0; vm.len() + 1];
        socket.read_exact(&mut greeting).expect("greeted");
        socket
    };
    let (of_clone, of_p) = (connect("p-1"), connect("p"));
    host.ok(["rm", "p-1"]);
    is_over(of_clone);
    host.kill_9("forkyardd");
    is_over(of_p);
    host.ok(["ps"]);
    drop(connect("p"));
    host.end();
}

fn is_over(mut socket: UnixStream) {
    match socket.read(&mut [0]) {
        Ok(read) => assert_eq!(read, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

#[test]
fn ports_are_reached_over_tls_with_a_token_and_their_connections_count_as_its_own() {
    let host = Host::fake().telling("FORKYARD_LISTEN", "127.0.0.1:7433");
    host.with_loopback();
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", "serve 7");
    let grant: TokenGrant = host.json(["token", "create", "ci"]);
    let pin = grant.remote.expect("it listens").fingerprint;
    let far = [
        ("FORKYARD_URL", "https://127.0.0.1:7433"),
        ("FORKYARD_TOKEN", grant.token.0.as_str()),
        ("FORKYARD_CA", pin.as_str()),
    ];
    let running = host.start_with(["port-forward", "p", "0:7", "-o", "json"], far);
    eventually("it listens", || !ports_of(&running).is_empty());
    let port = ports_of(&running)[0];
    let large = vec![7; 5 << 20];
    let came = exchange(host.connect(port).expect("it listens"), large.clone());
    assert!(came[2..] == large, "{} bytes", came.len());
    let connections = || {
        let metrics = host.get("/metrics");
        let mut lines = metrics.lines();
        let line = lines.find_map(|line| line.strip_prefix("forkyard_connections "));
        line.expect("a metric").parse::<u32>().expect("a number")
    };
    eventually("none is left", || connections() == 0);
    let mut open = host.connect(port).expect("it listens");
    open.read_exact(&mut [0; 2]).expect("greeted");
    assert_eq!(connections(), 1);
    drop(open);
    eventually("none is left", || connections() == 0);
    let told = host.python(&format!(
        "import os\nos.environ.update({{{}}}){PYTHON}",
        far.map(|(name, value)| format!("{name:?}: {value:?}"))
            .join(", ")
    ));
    assert_eq!(told, "p hello");
    // A token that is taken back opens no more.
    host.ok(["token", "rm", "ci"]);
    exchange_fails(host.connect(port).expect("it listens"));
    eventually("it is told", || running.complaints().contains("token"));
    running.interrupt();
    running.wait().exited(130);
    host.end();
}

const PYTHON: &str = r#"
from forkyard_host import Forkyard, ForkyardError

p = Forkyard().vm("p")
with p.connect(7) as sock:
    lines = sock.makefile("rw", newline="\n")
    name = lines.readline().strip()
    lines.write("hello\n")
    lines.flush()
    print(name, lines.readline().strip())
for port, kind, word in [(9, "guest", "nothing listens"), (0, "invalid", "path"), (65536, "invalid", "path")]:
    try:
        p.connect(port)
    except ForkyardError as error:
        assert error.kind == kind and word in str(error), (error.kind, str(error))
    else:
        raise AssertionError("not refused")
"#;

#[test]
fn a_python_program_talks_to_a_port() {
    let host = with_server();
    assert_eq!(host.python(PYTHON), "p hello");
    host.end();
}
