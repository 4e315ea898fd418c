//! Requests of many connections, through a front-end, while their VM moves over a long link.

use forkyard_e2e::{Cluster, Host, LinkFaults, eventually, frontend::Frontend};
use forkyard_types::MigrateResponse;
use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Connections of clients.
const CONNECTIONS: u32 = 200;
/// Requests of all of them; `FORKYARD_E2E_REQUESTS=10000` is the full figure.
const REQUESTS: u32 = 600;

/// Makes a request, and reads its whole answer.
fn ask(stream: &mut BufReader<TcpStream>, method: &str, body: &str) -> String {
    let length = body.len();
    let request =
        format!("{method} / HTTP/1.1\r\nhost: p.test\r\ncontent-length: {length}\r\n\r\n{body}");
    stream
        .get_mut()
        .write_all(request.as_bytes())
        .expect("asked");
    let (mut status, mut length) = (String::new(), 0);
    stream.read_line(&mut status).expect("answered");
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).expect("a head");
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().expect("a number");
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("a body");
    let body = String::from_utf8_lossy(&body);
    assert!(status.starts_with("HTTP/1.1 200"), "{status}{body}");
    body.into_owned()
}

#[test]
fn no_request_of_two_hundred_connections_fails_while_the_vm_moves() {
    let wanted = env::var("FORKYARD_E2E_REQUESTS").ok();
    let wanted = wanted.map_or(REQUESTS, |text| text.parse().expect("a number"));
    // Two sites, 20 ms apart.
    let cluster = Cluster::linked(
        2,
        LinkFaults {
            rate: 25_000_000,
            queue: Duration::from_millis(100),
            delay: Duration::from_millis(10),
            ..LinkFaults::default()
        },
    );
    let (here, there) = (cluster.host(0), cluster.host(1));
    here.ok(["run", "tiny", "--name", "p"]);
    here.put_program("p", "httpd", None);
    here.sh("p", "/bin/httpd 8080");
    let hosts = Frontend::hosts(&cluster);
    let frontend = Frontend::start(
        here,
        &format!(
            // However busy this host is.
            "metrics = \"127.0.0.1:0\"\nbounds = {{ patience_s = 120 }}\n{hosts}\
             [[http]]\nlisten = \"127.0.0.1:0\"\n\
             [service.p]\nport = 8080\nnames = [\"p.test\"]\nhealth = {{ path = \"/\", every_s = 1, timeout_s = 60 }}\n\
             [service.tcp]\nvms = [\"p\"]\nport = 8080\nlisten = [\"127.0.0.1:0\"]\n"
        ),
        3,
    );
    let (at, tcp) = (frontend.port("HTTP"), frontend.port("tcp"));
    let mut direct = BufReader::new(here.connect(tcp).expect("it listens"));
    ask(&mut direct, "GET", "");

    let (done, moved) = (AtomicU32::new(0), AtomicBool::new(false));
    let (done, moved) = (&done, &moved);
    let begun = Instant::now();
    let (longest, report) = thread::scope(|scope| {
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|number| {
                let stream = here.connect(at).expect("it listens");
                let goes_on = || done.load(Relaxed) < wanted || !moved.load(Relaxed);
                scope.spawn(move || client(stream, number, begun, done, goes_on))
            })
            .collect();
        eventually("requests of all", || {
            done.load(Relaxed) >= CONNECTIONS.min(wanted / 4)
        });
        let move_at = begun.elapsed();
        let words = ["migrate", "p", "--to", "h1", "--if-stuck", "stop"];
        let answer: MigrateResponse = here.json(words);
        println!("it moved from {move_at:?} to {:?}", begun.elapsed());
        let after = done.load(Relaxed);
        eventually("requests after it", || {
            done.load(Relaxed) > after + CONNECTIONS
        });
        moved.store(true, Relaxed);
        let longest = clients
            .into_iter()
            .map(|it| it.join().expect("all answered"));
        (longest.max().unwrap_or_default(), answer.report)
    });
    println!(
        "{} requests of {CONNECTIONS} connections in {:?}, none failed; the longest (took, begun at): \
         {longest:?}; the VM stood still for {} us",
        done.load(Relaxed),
        begun.elapsed(),
        report.gap_us,
    );
    assert!(done.load(Relaxed) >= wanted);
    // One that was open before goes on, and new ones go to where it is.
    ask(&mut direct, "GET", "");
    let is_there = "forkyard_frontend_requests_total{service=\"p\",class=\"5xx\"";
    assert!(!metrics(here, &frontend).contains(is_there));
    frontend.interrupt();
    drop(direct);
    frontend.wait().exited(0);
    assert!(there.vms().iter().any(|vm| vm.host.is_none()));
    cluster.end();
}

fn metrics(host: &Host, frontend: &Frontend) -> String {
    forkyard_e2e::frontend::get(host, frontend.port("metrics"), "/metrics", "x")
}

/// Asks again and again on one connection, for as long as it is to go on; the longest that an answer
/// took, and when that was asked for.
fn client(
    stream: TcpStream,
    number: u32,
    start: Instant,
    done: &AtomicU32,
    goes_on: impl Fn() -> bool,
) -> (Duration, Duration) {
    let mut stream = BufReader::new(stream);
    let mut longest = (Duration::ZERO, Duration::ZERO);
    while goes_on() {
        let begun = Instant::now();
        // A few that may not be sent twice.
        match number % 50 {
            0 => ask(&mut stream, "POST", "body"),
            1 => ask(&mut stream, "PUT", "body"),
            _ => ask(&mut stream, "GET", ""),
        };
        longest = longest.max((begun.elapsed(), begun - start));
        done.fetch_add(1, Relaxed);
    }
    longest
}
