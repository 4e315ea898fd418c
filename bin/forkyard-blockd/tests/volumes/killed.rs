//! Servers that are killed, replaced and fenced.

use crate::place::{Place, Plain};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

const BLOCKS: u64 = 64;

fn block(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(512)
}

#[test]
fn a_server_killed_again_and_again_loses_no_answered_write() {
    // Segments of 32 slots, so that compaction has something to do all the time.
    let mut place = Place::with(&["--segment-bits=5"]);
    place.ok(&["create", "d", "256K"]);
    let export = place.ok(&["open", "d"]);
    let mut rng = fastrand::Rng::new();
    let mut value = 0;
    // What was answered, and what may have been written beyond it.
    let mut known = vec![(0, 0); 64];
    for round in 0..40 {
        let mut client = Plain::open(&place, &export).expect("the writer is open still");
        for (number, (least, most)) in known.iter_mut().enumerate() {
            let mut out = vec![0; 4096];
            assert_eq!(client.read(number as u64 * 4096, &mut out), Some(0));
            let found = u64::from_le_bytes(*out.first_chunk().expect("long"));
            assert_eq!(out, block(found), "round {round}: a torn block");
            assert!(
                found == *least || found == *most,
                "round {round}, block {number}: {found}, not {least} or {most}"
            );
            (*least, *most) = (found, found);
        }
        let pid = Pid::from_raw(i32::try_from(place.pid()).expect("a pid"));
        let wait = Duration::from_micros(rng.u64(0..30_000));
        let killer = thread::spawn(move || {
            thread::sleep(wait);
            // Not by a program: a small Debian has none, and then nothing here would end.
            kill(pid, Signal::SIGKILL).expect("our child");
        });
        let tidier = place
            .program()
            .args(["compact", "d"])
            .stderr(Stdio::null())
            .spawn();
        let mut tidier = tidier.expect("starts");
        loop {
            let number = rng.u64(0..BLOCKS);
            value += 1;
            let entry = &mut known[usize::try_from(number).expect("few")];
            entry.1 = value;
            match client.write(number * 4096, &block(value)) {
                Some(0) => entry.0 = value,
                None => break,
                Some(error) => panic!("error {error}"),
            }
            if rng.u8(0..20) == 0 && client.flush().is_none() {
                break;
            }
        }
        killer.join().expect("killed it");
        let _ = tidier.wait();
        place.kill();
        place.start(&["--segment-bits=5"]);
    }
    assert!(value > 1000, "{value} writes in all");
}

#[test]
fn qemu_goes_on_when_its_server_is_replaced_and_when_it_is_killed() {
    let mut place = Place::new();
    place.ok(&["create", "d", "64M"]);
    let export = place.ok(&["open", "d"]);
    let options = format!(
        "driver=nbd,server.type=unix,server.path={},export={export},reconnect-delay=60",
        place.path("n.sock").display()
    );
    let mut qemu = Command::new("qemu-io")
        .args(["--image-opts", &options])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts (`make setup` installs it)");
    let mut orders = qemu.stdin.take().expect("piped");
    let mut lines = BufReader::new(qemu.stdout.take().expect("piped")).lines();
    let mut order = |text: &str| {
        writeln!(orders, "{text}").expect("qemu-io lives");
        let done = |line: &String| {
            assert!(
                !line.contains("fail") && !line.contains("error"),
                "{text}: {line}"
            );
            line.contains("/sec")
        };
        let mut lines = lines.by_ref().map(|line| line.expect("text"));
        assert!(lines.any(|line| done(&line)), "{text} was not answered");
    };
    order("write -P 1 0 1M");
    let mut old = place.start(&["--replace"]).expect("there was one");
    assert!(old.wait().expect("ended").success());
    assert!(
        Plain::open(&place, &export).is_some(),
        "nothing of the old one is locked"
    );
    order("read -P 1 0 1M");
    order("write -P 2 512K 1M");
    place.kill();
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        place.start(&[]);
        place
    });
    order("read -P 2 512K 1M");
    order("read -P 1 0 512K");
    drop(orders);
    assert!(qemu.wait().expect("ended").success());
    late.join().expect("started");
}

#[test]
fn there_is_one_writer_and_a_replaced_one_is_fenced() {
    let place = Place::new();
    place.ok(&["create", "d", "1M"]);
    let export = place.ok(&["open", "d"]);
    assert_eq!(export, "d:1");
    let said = place.fails(&["open", "d"]);
    assert!(said.contains("epoch 1"), "{said}");
    assert!(Plain::open(&place, "d").is_none(), "a second writer");
    assert!(Plain::open(&place, "d:2").is_none(), "an epoch that is not");
    let mut first = Plain::open(&place, &export).expect("opens");
    assert_eq!(first.write(0, &[1; 100]), Some(0));
    let taken = place.ok(&["open", "d", "--takeover"]);
    assert_eq!(first.write(0, &[2; 100]), Some(1), "EPERM");
    assert!(Plain::open(&place, &export).is_none());
    let mut second = Plain::open(&place, &taken).expect("opens");
    let mut out = [0; 100];
    assert_eq!(second.read(0, &mut out), Some(0));
    assert_eq!(out, [1; 100]);
    let said = place.fails(&["rm", "d"]);
    assert!(said.contains("open for writing"), "{said}");
    place.ok(&["close", "d"]);
    assert_eq!(second.write(0, &[2; 100]), Some(1), "EPERM");
    // A connection of its own ends its writer with itself.
    let own = Plain::open(&place, "d").expect("nothing writes it");
    assert!(Plain::open(&place, "d").is_none());
    drop(own);
    while place.run(&["rm", "d"]).status.code() != Some(0) {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(place.ok(&["ls"]), "");
}
