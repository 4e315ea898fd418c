//! The police as an order: it outlives the command that gave it, and the daemon. Which VMs it names
//! is a test of real guests (`needs_root::friendly`).

use forkyard_e2e::{Host, eventually};
use forkyard_types::PoliceState;

const FOREVER: [&str; 3] = ["--detach", "--interval", "0.5"];

fn police(host: &Host, words: &[&str]) -> PoliceState {
    host.json([&["friendly", "police"], words].concat())
}

fn shown(host: &Host) -> Option<PoliceState> {
    let words = ["friendly", "police", "--show", "-o", "json"];
    let outcome = host.start(words, "").wait();
    (outcome.code == Some(0)).then(|| serde_json::from_slice(&outcome.stdout).expect("a state"))
}

#[test]
fn the_police_goes_on_without_its_command_and_with_the_next_daemon() {
    let host = Host::fake_with_p();
    assert_eq!(shown(&host), None);
    let begun = police(&host, &FOREVER);
    assert_eq!(begun.settings.interval_s, 0.5);
    let looks = || shown(&host).is_some_and(|state| state.watched == 1);
    eventually("it to look at the VM", looks);
    // The same again is no other, and another there cannot be.
    police(&host, &FOREVER);
    let refused = host.fails(["friendly", "police", "--interval", "7"]);
    assert!(refused.contains("friendly police --end"), "{refused}");
    host.kill_9("forkyardd");
    eventually("the next daemon to look", looks);
    assert_eq!(police(&host, &["--show"]).settings, begun.settings);
    // One that is told to end has it rest.
    let daemon = host.processes("forkyardd").remove(0);
    daemon.interrupt();
    eventually("the daemon to end", || {
        let mut daemons = host.processes("forkyardd").into_iter();
        daemons.all(|other| other.pid != daemon.pid)
    });
    assert_eq!(police(&host, &["--show"]).settings, begun.settings);
    police(&host, &["--end"]);
    assert_eq!(shown(&host), None);
    host.fails(["friendly", "police", "--end"]);
    host.end();
}

#[test]
fn a_police_whose_time_is_over_ends_by_itself_and_one_that_is_followed_with_its_command() {
    let host = Host::fake_with_p();
    police(&host, &["--detach", "--seconds", "1"]);
    eventually("its time to be over", || shown(&host).is_none());
    host.ok(["friendly", "police", "--seconds", "1", "--interval", "0.1"]);
    assert_eq!(shown(&host), None);
    let words = ["friendly", "police", "--interval", "0.1"];
    let followed = host.start(words, "");
    eventually("it to begin", || shown(&host).is_some());
    // Another command may end it, and the one that follows it says so.
    police(&host, &["--end"]);
    let outcome = followed.wait().exited(1);
    assert!(outcome.stderr.contains("ended there"), "{}", outcome.stderr);
    host.end();
}
