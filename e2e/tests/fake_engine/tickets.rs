//! Tickets: what guests' programs ask for, and what becomes of it.

use crate::MACHINE;
use forkyard_e2e::{Host, eventually, is_sound};
use forkyard_types::{CloneResult, ErrorKind, ForkResponse, TicketView};

#[test]
fn a_join_gives_the_status_of_each_clone_and_leaves_none() {
    let host = Host::fake_with_p();
    let said = host.sh("p", "request 3 && clone && child exit 7 && join");
    assert_eq!(said, "granted 3\ncloned 0\njoined 1=7 2=7 3=7");
    eventually("the clones' end", || host.processes(MACHINE).len() == 1);
    is_sound(&host);
    host.end();
}

#[test]
fn a_clone_that_is_killed_has_no_status_and_holds_up_no_join() {
    let host = Host::fake_with_p();
    let job = host.start(
        [
            "exec",
            "p",
            "--",
            "sh",
            "-c",
            "request 2; clone; child wait; join",
        ],
        "",
    );
    eventually("two clones", || {
        host.vms().iter().filter(|vm| vm.parent.is_some()).count() == 2
    });
    let mut clones = host.processes(MACHINE);
    let p = host.vm("p").pid;
    clones.retain(|machine| Some(machine.pid) != p);
    for clone in clones {
        clone.kill();
    }
    let said = job.wait().exited(0).text();
    assert_eq!(said, "granted 2\ncloned 0\njoined 1=none 2=none");
    is_sound(&host);
    host.end();
}

#[test]
fn a_killed_tickets_clones_end_at_once() {
    let host = Host::fake_with_p();
    let said = host.sh("p", "request 2 && clone && child wait && kill");
    assert_eq!(said, "granted 2\ncloned 0\nKilled");
    assert_eq!(host.vms().len(), 1);
    eventually("the clones' end", || host.processes(MACHINE).len() == 1);
    host.end();
}

#[test]
fn a_join_that_waits_outlives_the_daemon() {
    let host = Host::fake_with_p();
    let job = host.start(
        [
            "exec",
            "-d",
            "p",
            "--",
            "sh",
            "-c",
            "request 2; clone; child wait; join; poke 5 5",
        ],
        "",
    );
    job.wait().exited(0);
    eventually("two clones", || host.vms().len() == 3);
    host.kill_9("forkyardd");
    for vm in host.vms().iter().filter(|vm| vm.parent.is_some()) {
        host.ok(["rm", vm.name.as_str()]);
    }
    is_sound(&host);
    host.end();
}

#[test]
fn a_checkpoint_that_a_guest_takes_is_kept_and_can_be_forked() {
    let host = Host::fake_with_p();
    host.sh("p", "poke 2 4");
    let said = host.sh("p", "checkpoint");
    let id = said.strip_prefix("kept ").expect("kept").to_owned();
    host.sh("p", "poke 2 5");
    let clone = host.fork(&id, 1).remove(0);
    assert_eq!(host.sh(clone.name.as_str(), "peek 2"), "4");
    is_sound(&host);
    host.end();
}

#[test]
fn a_family_has_no_more_clones_than_it_may_and_what_is_refused_leaves_nothing() {
    const LIMIT: &str = "limit of the family reached: 3";
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p", "--max-clones", "3"]);
    host.fork("p", 2);
    // One has room of two.
    let words = ["fork", "p", "-n", "2", "-o", "json"];
    let forked = host.start(words, "").wait().exited(3);
    let forked: ForkResponse = serde_json::from_slice(&forked.stdout).expect("an answer");
    let kinds = forked.clones.iter().map(|clone| match clone {
        CloneResult::Vm(_) => None,
        CloneResult::Error(error) => Some(error.kind),
    });
    let kinds: Vec<_> = kinds.collect();
    assert_eq!(kinds, [None, Some(ErrorKind::Exhausted)]);
    let is_full = || {
        // Clones of clones count, and what guests ask for does.
        for parent in ["p", "p-1"] {
            let refused = host.fails(["fork", parent]);
            assert!(refused.contains(LIMIT), "{refused}");
        }
        let asks = host.start(["exec", "p", "--", "sh", "-c", "request 1"], "");
        let refused = asks.wait().exited(1).stderr;
        assert!(refused.contains(LIMIT), "{refused}");
        is_sound(&host);
    };
    is_full();
    assert_eq!(host.vms().len(), 4);
    let none: Vec<TicketView> = host.json(["ticket", "ls"]);
    assert_eq!(none, []);

    // A place that is promised is taken, until it is given back.
    let third = host.vms().into_iter().find(|vm| vm.name.as_str() == "p-3");
    host.ok(["rm", third.expect("the third clone").name.as_str()]);
    assert_eq!(host.sh("p", "request 5"), "granted 1");
    is_full();
    // Also by the next daemon.
    host.kill_9("forkyardd");
    is_full();
    let promised: Vec<TicketView> = host.json(["ticket", "ls"]);
    let [ticket] = &promised[..] else {
        panic!("{promised:?}");
    };
    host.ok(["ticket", "rm", &ticket.id.to_string()]);
    host.fork("p", 1);
    is_full();
    host.end();
}
