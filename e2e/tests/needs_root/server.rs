//! The daemon as others see it: over the network, by its metrics, its log and
//! its own description.

use forkyard_e2e::Host;
use forkyard_types::{TokenGrant, VmView};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
};

const URL: &str = "https://127.0.0.1:7433";

/// Exit codes: the request failed; no daemon could be reached.
const FAILED: i32 = 1;
const NOBODY: i32 = 4;

#[test]
fn the_network_takes_tls_and_a_token_and_nothing_less() {
    let host = Host::new();
    host.with_loopback();
    let run = ["run", "tiny", "--name", "p"];
    host.start_with(run, [("FORKYARD_LISTEN", "127.0.0.1:7433")])
        .wait()
        .exited(0);
    let grant: TokenGrant = host.json(["token", "create", "ci", "--expires", "1h"]);
    let remote = grant.remote.expect("it listens");
    let token = grant.token.0.as_str();
    let (right, pin) = (("FORKYARD_TOKEN", token), remote.fingerprint.as_str());
    let far = |words: &[&str], token: Option<(&'static str, &str)>, ca: Option<&str>| {
        let variables = [("FORKYARD_URL", URL)].into_iter().chain(token);
        let ca = ca.map(|ca| ("FORKYARD_CA", ca));
        host.start_with(words, variables.chain(ca)).wait()
    };

    // With both, all is as it is on the host itself.
    let vms = far(&["ps", "-o", "json"], Some(right), Some(pin)).exited(0);
    let vms: Vec<VmView> = serde_json::from_slice(&vms.stdout).expect("VMs");
    assert_eq!(vms.len(), 1);
    far(&["fork", "p"], Some(right), Some(pin)).exited(0);
    let cert = host.folder().join("state/tls/cert.pem");
    let cert = cert.to_str().expect("text");
    let words = ["exec", "p-1", "--", "sh", "-c", "hostname; exit 7"];
    let outcome = far(&words, Some(right), Some(cert)).exited(7);
    assert_eq!(outcome.text(), "p-1");

    // Its vCPUs are scheduled from afar, and its guest asked whether it adapts.
    let set = ["sched", "set", "p", "--level", "observe", "-o", "json"];
    let set = far(&set, Some(right), Some(pin)).exited(0);
    let state: Value = serde_json::from_slice(&set.stdout).expect("a state");
    assert_eq!(state["vms"][0]["name"], "p", "{state}");
    far(&["sched", "release", "p"], Some(right), Some(pin)).exited(0);
    let again = far(&["sched", "release", "p"], Some(right), Some(pin)).exited(FAILED);
    assert!(again.stderr.contains("not scheduled"), "{}", again.stderr);
    let friendly = far(&["friendly", "show", "p"], Some(right), Some(pin)).exited(0);
    assert_eq!(friendly.text(), "p is not friendly");

    // The log names the user and the request, and not what that was.
    let log = fs::read_to_string(host.folder().join("run/daemon.log")).expect("a log");
    let noted: Vec<_> = log.lines().filter(|line| line.contains("audit")).collect();
    for (who, what) in [
        ("user \"ci\" from 127.0.0.1:", "/exec: 200"),
        ("user \"ci\" from 127.0.0.1:", "/fork"),
        ("root of this host: ", "POST /v1/tokens: 2"),
    ] {
        let found = noted
            .iter()
            .any(|line| line.contains(who) && line.contains(what));
        assert!(found, "{who}{what}: {noted:#?}");
    }
    assert!(
        !noted.iter().any(|line| line.contains("hostname")),
        "{noted:#?}"
    );

    // Without one of them, nothing is.
    let told = far(&["ps"], None, Some(pin)).exited(NOBODY).stderr;
    assert!(told.contains("FORKYARD_TOKEN"), "{told}");
    let told = far(&["ps"], Some(right), None).exited(NOBODY).stderr;
    assert!(told.contains("FORKYARD_CA"), "{told}");
    let other = format!("sha256:{}", "0".repeat(64));
    far(&["ps"], Some(right), Some(&other)).exited(NOBODY);
    let wrong = format!("{token}x");
    let told = far(&["ps"], Some(("FORKYARD_TOKEN", &wrong)), Some(pin)).exited(FAILED);
    assert!(
        told.stderr.contains("forkyard token create"),
        "{}",
        told.stderr
    );
    let mut plain = host.connect(7433).expect("it listens");
    plain
        .write_all(
            format!("GET /v1/vms HTTP/1.0\r\nAuthorization: Bearer {token}\r\n\r\n").as_bytes(),
        )
        .expect("sent");
    let mut answer = Vec::new();
    // It may hang up on us as it likes.
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1"));

    // A token makes no tokens, and one that was taken back is worth nothing.
    let told = far(&["token", "create", "more"], Some(right), Some(pin)).exited(FAILED);
    assert!(told.stderr.contains("host itself"), "{}", told.stderr);
    // Nor does it schedule processes that are no VM's.
    let told = far(&["sched", "set", "--pid", "1"], Some(right), Some(pin)).exited(FAILED);
    assert!(told.stderr.contains("host itself"), "{}", told.stderr);
    host.ok(["token", "rm", "ci"]);
    far(&["ps"], Some(right), Some(pin)).exited(FAILED);
    host.end();
}

#[test]
fn the_daemon_tells_what_it_does() {
    let host = Host::new();
    let run = ["run", "tiny", "--name", "p"];
    let log = [
        ("FORKYARD_LOG", "info,forkyard_fork=debug"),
        ("FORKYARD_LOG_FORMAT", "json"),
    ];
    host.start_with(run, log).wait().exited(0);
    host.fork("p", 2);
    host.ok(["checkpoint", "p"]);
    host.fails(["fork", "nobody"]);

    let metrics = host.get("/metrics");
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        let line = line.unwrap_or_else(|| panic!("no {name}:\n{metrics}"));
        line.trim().parse().expect("a number")
    };
    for (name, wanted) in [
        ("forkyard_vms{state=\"running\"}", 3.0),
        ("forkyard_forks_total{outcome=\"done\"}", 1.0),
        ("forkyard_clones_total{outcome=\"made\"}", 2.0),
        ("forkyard_errors_total{kind=\"not_found\"}", 1.0),
    ] {
        assert!((value(name) - wanted).abs() < 0.5, "{name}:\n{metrics}");
    }
    for name in ["forkyard_pages_captured_total", "forkyard_page_images "] {
        assert!(value(name) > 0.0, "{name}:\n{metrics}");
    }
    for phase in [
        "shells",
        "quiesce",
        "pause",
        "disk",
        "descriptor",
        "capture",
        "load",
        "ready",
    ] {
        let name = format!("forkyard_fork_phase_seconds_count{{phase=\"{phase}\"}}");
        assert!((value(&name) - 1.0).abs() < 0.5, "{name}");
    }

    let log = fs::read_to_string(host.folder().join("run/daemon.log")).expect("a log");
    let (mut ended, mut within) = (BTreeSet::new(), BTreeSet::new());
    for line in log.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let of_a_fork = |span: &Value| span["name"] == "fork" && span["fork"].is_string();
        let spans = event["spans"].as_array().cloned().unwrap_or_default();
        let inside = spans.iter().chain([&event["span"]]).any(of_a_fork);
        if event["fields"]["message"] == "close" {
            let name = event["span"]["name"].as_str().unwrap_or_default();
            if inside {
                ended.insert(name.to_owned());
            }
            for around in spans.iter().chain([&event["span"]]) {
                let around = around["name"].as_str().unwrap_or_default();
                within.insert((around.to_owned(), name.to_owned()));
            }
        }
    }
    for (around, name) in [
        ("boot", "boot"),
        ("boot", "start"),
        ("boot", "guest"),
        ("boot", "identity"),
        ("checkpoint", "checkpoint"),
        ("checkpoint", "pause"),
        ("checkpoint", "keep"),
    ] {
        let wanted = (around.to_owned(), name.to_owned());
        assert!(
            within.contains(&wanted),
            "no {name} in {around}: {within:?}"
        );
    }
    for phase in [
        "fork",
        "shells",
        "ahead",
        "quiesce",
        "pause",
        "disk",
        "descriptor",
        "capture",
        "publish",
        "clone",
        "load",
        "identity",
        "hooks",
    ] {
        assert!(ended.contains(phase), "no span {phase}: {ended:?}");
    }

    let kept = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/openapi.json"));
    assert_eq!(host.get("/openapi.json"), kept.expect("it is kept"));
    host.end();
}

#[test]
fn top_shows_who_uses_what_in_the_tree_of_families() {
    let host = Host::with_woken_p([]);
    host.sh(
        "p",
        "dd if=/dev/urandom of=/m/x bs=64k count=256 2>/dev/null",
    );
    host.fork("p", 1);
    host.fork("p-1", 1);
    let rows: Vec<Value> = host.json(["top", "--once"]);
    let seen: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row["name"].as_str(),
                row["depth"].as_u64(),
                row["forks"].as_u64(),
            )
        })
        .collect();
    let row = |name, depth, forks| (Some(name), Some(depth), Some(forks));
    assert_eq!(seen, [row("p", 0, 1), row("p-1", 1, 1), row("p-2", 2, 0)]);
    let private = |n: usize| rows[n]["private"].as_u64().expect("bytes");
    assert!(private(0) > 16 << 20, "{rows:?}");
    assert!(private(1) > 0 && private(2) > 0, "{rows:?}");
    // What it copied lies in an image, which it shares.
    assert!(private(2) < private(0), "{rows:?}");
    // A request that computes is seen to.
    let mut busy = host.talk_to(["exec", "p-2", "--", "sh", "-c", "while :; do :; done"]);
    forkyard_e2e::eventually("a busy clone", || {
        let rows: Vec<Value> = host.json(["top", "--once"]);
        rows[2]["cpu_percent"].as_f64().is_some_and(|cpu| cpu > 5.0)
    });
    busy.kill().expect("ended");
    busy.wait().expect("reaped");
    let text = host.ok(["top"]);
    assert!(text.contains("\n    p-2"), "{text}");
    host.end();
}
