//! Names that a family may reach.

use crate::guest::{Guest, PATIENCE, SILENCE, alone, family_with, until};
use forkyard_e2e::{
    Outside,
    outside::{PRIVATE, RESOLVER, SERVER},
};
use forkyard_types::{NetworkPolicy, WayOut};
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RData, Record, RecordType, rdata},
};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

const PORT: u16 = 7777;

/// Has this thread, and no other, see a host that asks outside for names.
fn asks_outside() {
    unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
    let none = None::<&str>;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(none, "/", none, private, none).expect("one's own mounts");
    let file = std::env::temp_dir().join(format!("resolv-{}", nix::unistd::gettid()));
    fs::write(&file, format!("nameserver {RESOLVER}\n")).expect("written");
    mount(
        Some(&file),
        "/etc/resolv.conf",
        none,
        MsFlags::MS_BIND,
        none,
    )
    .expect("mounted");
    fs::remove_file(&file).expect("removed");
}

/// Answers outside what it is asked, and remembers that.
fn resolver(outside: &Outside) -> Arc<Mutex<Vec<String>>> {
    let socket = outside.within(|| UdpSocket::bind((RESOLVER, 53)).expect("bound"));
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = asked.clone();
    thread::spawn(move || {
        let mut bytes = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let question = Message::from_vec(&bytes[..length]).expect("a question");
            let query = question.queries[0].clone();
            let name = query.name().to_ascii();
            heard.lock().expect("whole").push(name.clone());
            let address = if name.starts_with("inner") {
                PRIVATE
            } else {
                SERVER
            };
            let mut answer = Message::response(question.metadata.id, OpCode::Query);
            answer.add_query(query.clone());
            let data = RData::A(rdata::A(address));
            answer.add_answer(Record::from_rdata(query.name().clone(), 60, data));
            let answer = answer.to_vec().expect("bytes");
            let _ = socket.send_to(&answer, from);
        }
    });
    asked
}

async fn ask(guest: &Guest, port: u16, name: &str) -> Message {
    let mut question = Message::new(port, MessageType::Query, OpCode::Query);
    let name = Name::from_ascii(name).expect("a name");
    question.add_query(Query::query(name, RecordType::A));
    let question = question.to_vec().expect("bytes");
    let to = SocketAddrV4::new(RESOLVER, 53);
    guest.sends_out(port, to, &question);
    let mut heard = None;
    // The forwarder is of this thread.
    until(async || {
        heard = guest.hears(port, Duration::from_millis(1));
        heard.is_some()
    })
    .await;
    let (from, answer) = heard.expect("heard");
    assert_eq!(from, to, "the address that the guest has asked");
    let answer = Message::from_vec(&answer).expect("a message");
    assert_eq!(answer.metadata.id, port, "its own number");
    answer
}

fn is_heard(socket: &UdpSocket, payload: &[u8], within: Duration) -> bool {
    socket.set_read_timeout(Some(within)).expect("set");
    let mut bytes = [0; 2048];
    while let Ok((length, _)) = socket.recv_from(&mut bytes) {
        if &bytes[..length] == payload {
            return true;
        }
    }
    false
}

fn allowing(words: &[&str]) -> NetworkPolicy {
    NetworkPolicy {
        out: WayOut::Nat,
        allow: words
            .iter()
            .map(|it| it.parse().expect("a destination"))
            .collect(),
        ..NetworkPolicy::default()
    }
}

#[test]
fn a_name_that_may_be_reached_opens_its_addresses_once_it_is_asked_for_and_no_other_does() {
    alone(|networks| async move {
        asks_outside();
        let outside = Outside::join();
        let asked = resolver(&outside);
        let policy = allowing(&["www.test:7777", "*.cdn.test", "inner.test"]);
        let [guest, clone] = family_with(&networks, 0, policy).await;
        let [server, private] = [SERVER, PRIVATE].map(|at: Ipv4Addr| {
            outside.within(move || UdpSocket::bind((at, PORT)).expect("bound"))
        });
        let reaches = |guest: &Guest, socket: &UdpSocket, to: Ipv4Addr, said: &[u8]| {
            guest.sends_out(2000, SocketAddrV4::new(to, PORT), said);
            is_heard(
                socket,
                said,
                if said[0] == b'y' { PATIENCE } else { SILENCE },
            )
        };
        let route = networks.route(guest.family).expect("a way out");
        assert_eq!(route.resolvers, [route.gateway]);
        assert!(!reaches(&guest, &server, SERVER, b"not yet"));
        let answer = ask(&guest, 1000, "WWW.test.").await;
        assert_eq!(answer.answers.len(), 1);
        assert!(reaches(&guest, &server, SERVER, b"yes"));
        assert!(reaches(&clone, &server, SERVER, b"yes, a clone"));
        guest.sends_out(2001, SocketAddrV4::new(SERVER, 9), b"another port");
        assert!(guest.waits(PATIENCE, |frame| frame.get(34..36) == Some(&[3, 13])));

        // Other names are not even asked for, and private addresses not opened.
        let answer = ask(&guest, 1001, "secret.of.guest.evil.").await;
        assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
        ask(&guest, 1002, "inner.test.").await;
        assert!(!reaches(&guest, &private, PRIVATE, b"not private"));
        assert_eq!(*asked.lock().expect("whole"), ["WWW.test.", "inner.test."]);

        // What is still allowed stays open, what is not does not.
        let family = guest.family;
        let wider = allowing(&["www.test:7777", "*.test"]);
        networks.set_way(family, &wider).await.expect("changed");
        assert!(reaches(&guest, &server, SERVER, b"yes, still"));
        networks
            .set_way(family, &allowing(&["*.cdn.test"]))
            .await
            .expect("narrowed");
        assert!(!reaches(&guest, &server, SERVER, b"no more"));
        ask(&guest, 1003, "a.cdn.test.").await;
        assert!(reaches(&guest, &server, SERVER, b"yes, by another name"));
        networks.remove_family(family).await.expect("removed");
    });
}
