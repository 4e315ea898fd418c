//! Front-ends as far as they are the same with any guest: TCP, roles, the DNS by a real name server,
//! redirects, health, and their end. What goes on while a VM moves, connections and HTTP, takes a real guest.

use forkyard_e2e::{
    Cluster, Host, eventually,
    frontend::{Caller, Frontend, NameServer, get},
};
use forkyard_types::ListedVm;
use std::io::Read;

/// Services that both front-ends have: `p`, whose server greets, and a port where nothing listens.
const SERVICES: &str = "\
    [frontend.zero]\nnear = [\"h0\"]\naddresses = [\"192.0.2.10\"]\nurl = \"http://zero.test\"\n\
    [frontend.one]\nnear = [\"h1\"]\naddresses = [\"192.0.2.11\", \"192.0.2.12\"]\nurl = \"http://one.test\"\n\
    [[http]]\nlisten = \"127.0.0.1:0\"\n\
    [service.p]\nport = 7\nlisten = [\"127.0.0.1:0\"]\nnames = [\"p.test\"]\nredirect = true\nrecord = \"p.test\"\n\
    [service.none]\nvms = [\"p\"]\nport = 9\nnames = [\"none.test\"]\nhealth = { fall = 2, every_s = 3600 }\n\
    [service.gone]\nport = 7\nnames = [\"gone.test\"]\n";

fn start(host: &Host, name: &str, more: &str) -> Frontend {
    let config = format!(
        "name = \"{name}\"\nmetrics = \"127.0.0.1:0\"\nbounds = {{ quiet_s = 2, drain_s = 60 }}\n{SERVICES}{more}"
    );
    Frontend::start(host, &config, 3)
}

fn is(frontend: &Frontend, host: &Host, role: &str) {
    let line = format!("forkyard_frontend_role{{service=\"p\",role=\"{role}\"}} 1");
    eventually(role, || frontend.counts(host, &line));
}

#[test]
fn an_address_leads_to_its_vm_wherever_it_is_and_whatever_daemon_dies() {
    let mut cluster = Cluster::fake_with_steps(2);
    let host = cluster.host(0);
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", "serve 7");
    // Front-ends ask for the VMs that they lead to, and for no others.
    assert_eq!(host.get("/v1/vms?names=none"), "[]");
    let listed: Vec<ListedVm> =
        serde_json::from_str(&host.get("/v1/vms?names=none,p")).expect("a list");
    assert_eq!(listed.len(), 1);
    let server = NameServer::start(host);
    // Both where the name server is, which makes no difference to them.
    let hosts = Frontend::hosts(&cluster);
    let more = format!("{}{hosts}", server.config());
    let zero = start(host, "zero", &more);
    let one = start(host, "one", &more);
    let published = |wanted: &str| {
        eventually("the DNS", || {
            let said = server.asked(host, "p.test");
            let mut all: Vec<_> = said.split(' ').collect();
            all.sort();
            all.join(" ") == wanted
        });
    };
    published("192.0.2.10");
    is(&zero, host, "active");
    is(&one, host, "drained");
    let mut before = Caller::connect(host, zero.port("p"), "p");
    before.says("before");
    // No client is sent on from where it is nearest, and no other VM is there.
    let answer = get(host, zero.port("HTTP"), "/x", "p.test");
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");

    host.ok(["migrate", "p", "--to", "h1"]);
    published("192.0.2.11 192.0.2.12");
    is(&one, host, "active");
    is(&zero, host, "forwarding");
    let answer = get(host, zero.port("HTTP"), "/x?y=z", "p.test").to_lowercase();
    assert!(answer.starts_with("http/1.1 307"), "{answer}");
    assert!(
        answer.contains("location: http://one.test/x?y=z"),
        "{answer}"
    );
    // It needs nothing of the host that it left, and goes there by itself.
    cluster.kill_daemon(0);
    let host = cluster.host(0);
    before.is_reset();
    let mut straight = Caller::connect(host, zero.port("p"), "p");
    straight.says("without it");
    is(&zero, host, "forwarding");
    drop(straight);
    is(&zero, host, "drained");
    // Which serves all the same.
    drop(Caller::connect(host, zero.port("p"), "p"));
    is(&zero, host, "forwarding");

    // Daemons may all be gone for a while: what comes waits.
    cluster.kill_daemon(1);
    let mut waits = cluster.host(0).connect(one.port("p")).expect("it listens");
    cluster.start(1);
    let mut greeted = [0; 2];
    waits.read_exact(&mut greeted).expect("it was waited for");
    assert_eq!(&greeted, b"p\n");
    drop(waits);
    cluster.start(0);
    // A VM that does not run is refused, and reached from the moment at which it does.
    cluster.host(1).ok(["pause", "p"]);
    Caller::refused(cluster.host(0), one.port("p"));
    cluster.host(1).ok(["resume", "p"]);
    drop(Caller::connect(cluster.host(0), one.port("p"), "p"));
    reasons_are_told(cluster.host(0), &one, &server, &more);

    let host = cluster.host(0);
    let mut last = Caller::connect(host, one.port("p"), "p");
    one.interrupt();
    eventually("it to take nothing new", || {
        host.connect(one.port("p")).is_err()
    });
    last.says("to the end");
    drop(last);
    let said = one.wait().exited(0).stderr;
    assert!(said.contains("all connections are over"), "{said}");
    zero.interrupt();
    zero.wait().exited(0);
    drop(server);
    cluster.end();
}

/// Checks that what cannot be served is refused with the reason, and at once if no waiting helps.
fn reasons_are_told(host: &Host, frontend: &Frontend, server: &NameServer, more: &str) {
    let asked = |name: &str| get(host, frontend.port("HTTP"), "/", name);
    let healthy = |is: u8| {
        let line = format!("forkyard_frontend_vm_healthy{{service=\"none\",vm=\"p\"}} {is}");
        eventually("its health", || frontend.counts(host, &line));
    };
    // Checked once at its start, and then by its clients.
    while !asked("none.test").starts_with("HTTP/1.1 503") {}
    healthy(0);
    let answer = asked("none.test");
    assert!(answer.contains("does not answer"), "{answer}");
    let answer = asked("gone.test");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("no host has it"), "{answer}");
    assert!(answer.contains("x-forkyard-frontend"), "{answer}");
    assert!(asked("other.test").starts_with("HTTP/1.1 421"));

    let wrong = more.replace("secret = \"c2", "secret = \"d2");
    server.write(host, "p.test", "192.0.2.66");
    let refused = start(host, "one", &wrong);
    eventually("it to be refused", || {
        // The other one may have mended it.
        server.write(host, "p.test", "192.0.2.66");
        refused.said().contains("refuses the update")
    });
    eventually("the other to mend it", || {
        server.asked(host, "p.test").contains("192.0.2.11")
    });
    refused.interrupt();
    refused.wait().exited(0);
}
