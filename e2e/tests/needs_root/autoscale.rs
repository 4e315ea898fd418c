//! Servers that grow by forking, behind a real HAProxy.

use forkyard_e2e::{Host, Running, eventually};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// Names the server that answers, all at once after a while: if it is killed before, nothing has
/// been answered.
const WHO: &str =
    "#!/bin/sh\nusleep 300000\nprintf 'Content-Type: text/plain\\r\\n\\r\\n%s\\n' $(hostname)\n";
const LISTEN: u16 = 8080;

/// Users, each with one request at a time.
#[derive(Default)]
struct Users {
    active: AtomicUsize,
    over: AtomicUsize,
    /// Answers by their servers.
    answers: Mutex<BTreeMap<String, usize>>,
    /// Requests without an answer, or with another than was asked for.
    lost: Mutex<Vec<String>>,
}

impl Users {
    fn ask(&self, host: &Host, number: usize) {
        while self.over.load(Ordering::Relaxed) == 0 {
            if number >= self.active.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            let mut answer = String::new();
            let asked = host.connect(LISTEN).and_then(|mut stream| {
                stream.write_all(b"GET /cgi-bin/who HTTP/1.0\r\n\r\n")?;
                stream.read_to_string(&mut answer)
            });
            let (head, body) = answer.split_once("\r\n\r\n").unwrap_or(("", ""));
            if !head.contains(" 200 ") {
                let mut lost = self.lost.lock().expect("whole");
                lost.push(format!("{asked:?} {answer}"));
                continue;
            }
            let mut answers = self.answers.lock().expect("whole");
            *answers.entry(body.trim().to_owned()).or_default() += 1;
        }
    }

    fn forget(&self) {
        self.answers.lock().expect("whole").clear();
    }

    fn who(&self) -> Vec<String> {
        self.answers
            .lock()
            .expect("whole")
            .keys()
            .cloned()
            .collect()
    }
}

/// Lines of an event, whole ones.
fn events(scaler: &Running, event: &str) -> Vec<Value> {
    let said = scaler.said();
    let whole = said
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    let lines = whole.map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["event"] == event).collect()
}

#[test]
fn servers_double_under_load_are_replaced_when_sick_and_retire_without_losing_a_request() {
    let host = Host::with_woken_p([]);
    host.with_loopback();
    host.sh("p", "mkdir -p /www/cgi-bin && echo ok >/www/index.html");
    host.put("p", "/www/cgi-bin/who", WHO);
    host.sh(
        "p",
        "chmod 755 /www/cgi-bin/who && httpd -p 127.0.0.1:80 -h /www",
    );
    let listen = format!("127.0.0.1:{LISTEN}");
    let words = [
        "autoscale",
        "p",
        "--listen",
        &listen,
        "--max",
        "4",
        "--concurrency",
        "1",
    ];
    let times = [
        "--grow-after",
        "1s",
        "--shrink-after",
        "2s",
        "--sick-after",
        "1s",
    ];
    let scaler = host.start([&words[..], &times, &["-o", "json"]].concat(), "");
    eventually("p gets requests", || !events(&scaler, "admit").is_empty());
    let users = Users::default();
    thread::scope(|scope| {
        (0..4).for_each(|number| {
            let (users, host) = (&users, &host);
            scope.spawn(move || users.ask(host, number));
        });
        // Whatever fails below, they end.
        let end = End(&users);
        users.active.store(4, Ordering::Relaxed);
        eventually("four servers answer", || users.who().len() >= 4);
        let forks: Vec<_> = events(&scaler, "fork")
            .iter()
            .map(|it| it["count"].clone())
            .collect();
        assert_eq!(forks, [1, 2], "each fork doubles, up to four");

        // Its requests are another's meanwhile, and another takes its place.
        let sick = users
            .who()
            .into_iter()
            .find(|who| who != "p")
            .expect("a clone");
        host.sh(&sick, "killall httpd");
        eventually("it is replaced", || {
            host.vms().iter().all(|vm| vm.name.as_str() != sick)
        });
        users.forget();
        eventually("four servers answer", || users.who().len() >= 4);
        assert!(!users.who().contains(&sick));

        users.active.store(0, Ordering::Relaxed);
        eventually("the clones are removed", || host.vms().len() == 1);
        users.forget();
        users.active.store(1, Ordering::Relaxed);
        eventually("p answers", || users.who() == ["p"]);
        let drained = events(&scaler, "remove");
        let drained = drained.iter().filter(|it| it["why"] == "drained").count();
        assert_eq!(drained, 3);
        drop(end);
    });
    let lost = users.lost.lock().expect("whole");
    assert!(lost.is_empty(), "{lost:#?}");

    // What is left is removed at the end.
    scaler.interrupt();
    scaler.wait().exited(130);
    host.end();
}

/// Dropped, users ask no more.
struct End<'a>(&'a Users);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.over.store(1, Ordering::Relaxed);
    }
}
