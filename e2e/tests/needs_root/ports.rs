//! Connections to ports of real guests: what the agent's program does there.

use forkyard_e2e::{Host, eventually};
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
};

/// Port 7 is listened on, as a shell of the guest's sees it.
const LISTENS: &str = "grep -q ':0007 00000000:0000 0A' /proc/net/tcp";

/// A forwarder's port here.
fn port_of(said: &str) -> Option<u16> {
    let (listen, _) = said.split_once(" -> ")?;
    listen.rsplit(':').next()?.parse().ok()
}

#[test]
fn servers_on_any_address_are_reached_and_a_connection_stays_the_parents_in_a_fork() {
    let host = Host::with_woken_p([]);
    host.with_loopback();
    host.sh("p", "mkdir -p /m && mount -t tmpfs m /m");
    let leave = |script: &str| {
        host.sh("p", &format!("({script}) >/dev/null 2>&1 </dev/null &"));
    };
    let running = host.start(["port-forward", "p", "0:7"], "");
    eventually("it listens", || port_of(&running.said()).is_some());
    let port = port_of(&running.said()).expect("a port");
    let connect = || host.connect(port).expect("it listens");
    let own = host.vm("p").address.ip;

    // Nothing listens yet.
    let mut came = Vec::new();
    let _ = connect().read_to_end(&mut came);
    assert!(came.is_empty());
    eventually("it is told", || {
        running.complaints().contains("nothing listens")
    });

    // On each address, both ways, each direction ending by itself.
    let large: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    host.put("p", "/m/answer", large.clone());
    host.put_program("p", "server", None);
    let serve = |address: &str, answer: &str| {
        leave(&format!(
            "rm -f /m/over; code=0; server {address} 7 /m/heard {answer} || code=$?; echo $code >/m/ended; mv /m/ended /m/over"
        ));
        host.wait_in("p", LISTENS);
    };
    for address in ["127.0.0.1", "0.0.0.0", &own.to_string()] {
        serve(address, "/m/answer");
        assert!(exchange(connect(), large.clone()) == large, "{address}");
        host.wait_in("p", "[ -e /m/over ]");
        assert_eq!(host.sh("p", "cmp /m/heard /m/answer; cat /m/over"), "0");
    }

    // In a fork: the parent's goes on, the clone's copy breaks.
    serve("127.0.0.1", "/dev/null");
    let mut open = connect();
    open.write_all(b"before ").expect("sent");
    host.wait_in("p", "grep -q before /m/heard");
    host.fork("p", 1);
    host.wait_in("p-1", "[ -e /m/over ]");
    assert_eq!(host.sh("p-1", "cat /m/heard /m/over"), "before 1");
    open.write_all(b"after").expect("sent");
    open.shutdown(Shutdown::Write).expect("ended");
    host.wait_in("p", "[ -e /m/over ]");
    assert_eq!(host.sh("p", "cat /m/heard /m/over"), "before after0");

    // Nothing of it stays in the guest.
    drop(open);
    for vm in ["p", "p-1"] {
        host.wait_in(vm, "! ps | grep 'forkyard-guest connec[t]'");
    }
    running.interrupt();
    running.wait().exited(130);
    host.end();
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
