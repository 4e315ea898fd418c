//! The daemon is killed at steps of a ticket's life: of its grant, of its clones, of their joining and
//! killing, of its being given back by the operator or after its time.
//!
//! Whatever became of the ticket then: it is one of this VM's that can be used up, and with it all
//! that it took is free again.

use super::former::sql;
use forkyard_e2e::{Host, eventually, is_sound, sweep_of};
use forkyard_types::{TicketPhase, TicketView, VmState};
use std::cell::RefCell;

/// Steps of each that are tried, spread evenly.
const SOME: u64 = 16;
/// Clones that the family may have: a ticket takes all of them.
const CLONES: u16 = 2;
/// Two clones that wait.
const CLONED: &str = "request 2 && clone && child wait";

fn with_p() -> Host {
    let host = Host::fake().counted();
    host.ok(["run", "tiny", "--name", "p", "--max-clones", "2"]);
    host
}

fn tickets(host: &Host) -> Vec<TicketView> {
    host.json(["ticket", "ls"])
}

/// Runs a script in p, of which the daemon's end may be the end.
fn try_in_p(host: &Host, script: &str) {
    host.start(["exec", "p", "--", "sh", "-e", "-c", script], "")
        .wait();
}

/// Uses up whatever ticket there is, and checks that p is what it was and nothing is taken.
#[track_caller]
fn is_as_before(host: &Host, pid: Option<u32>) {
    let p = host.vm("p");
    assert_eq!((p.pid, p.state), (pid, VmState::Running));
    let left = tickets(host);
    assert!(left.len() <= 1, "{left:?}");
    for ticket in &left {
        assert_eq!(ticket.owner, p.id, "{ticket:?}");
        match ticket.phase {
            TicketPhase::Granted => {
                assert_eq!(ticket.clones.len(), usize::from(CLONES), "{ticket:?}");
                let refused = host.fails(["fork", "p"]);
                assert!(refused.contains("limit of the family"), "{refused}");
            }
            TicketPhase::Cloned => {
                assert_eq!(ticket.clones.len(), usize::from(CLONES), "{ticket:?}");
            }
            // Of the clones those are left that have not ended yet.
            TicketPhase::Killed => {}
        }
    }
    // One that was being killed may be used up before it is named here.
    eventually("the ticket to be used up", || {
        let left = tickets(host);
        for ticket in &left {
            let id = ticket.id.to_string();
            host.start(["ticket", "rm", &id], "").wait();
        }
        left.is_empty()
    });
    eventually("the end of its clones", || host.vms().len() == 1);
    is_sound(host);
    host.fork("p", CLONES);
    for clone in host.vms().iter().filter(|vm| vm.parent.is_some()) {
        host.ok(["rm", clone.name.as_str()]);
    }
}

#[test]
fn a_daemon_killed_at_any_step_of_a_grant_has_granted_all_or_nothing() {
    let host = with_p();
    let pid = host.vm("p").pid;
    let work = || try_in_p(&host, "request 2");
    sweep_of(
        &host,
        "grant",
        SOME,
        || {},
        work,
        || {
            is_as_before(&host, pid);
        },
    );
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_of_a_tickets_use_leaves_what_can_be_used_up() {
    let host = with_p();
    let pid = host.vm("p").pid;
    for (what, script) in [
        ("join", "request 2 && clone && child exit 7 && join"),
        ("kill", "request 2 && clone && child wait && kill"),
    ] {
        let work = || try_in_p(&host, script);
        sweep_of(&host, what, SOME, || {}, work, || is_as_before(&host, pid));
    }
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_of_a_tickets_removal_leaves_what_can_be_removed() {
    let host = with_p();
    let pid = host.vm("p").pid;
    for script in ["request 2", CLONED] {
        let id = RefCell::new(String::new());
        let begin = || {
            host.sh("p", script);
            let granted = tickets(&host);
            let [ticket] = &granted[..] else {
                panic!("{granted:?}");
            };
            id.replace(ticket.id.to_string());
        };
        let work = || {
            host.start(["ticket", "rm", &id.borrow()], "").wait();
        };
        sweep_of(&host, script, SOME, begin, work, || {
            is_as_before(&host, pid);
        });
    }
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_has_a_successor_that_gives_back_what_was_not_used_in_time() {
    let host = with_p();
    let pid = host.vm("p").pid;
    // As a ticket is that no process holds, once its time is over.
    let overdue = "UPDATE ticket SET entry = json_set(entry, '$.until', 1)";
    let begin = || {
        host.sh("p", "request 2");
        host.kill_9("forkyardd");
        sql(&host.folder().join("state"), overdue);
    };
    let given_back = || {
        let told = host.start(["ticket", "ls", "-o", "json"], "").wait();
        let told = serde_json::from_slice::<Vec<TicketView>>(&told.stdout);
        told.is_ok_and(|tickets| tickets.is_empty())
    };
    // By the daemon that is killed, or by the next.
    let work = || eventually("it to be given back", given_back);
    sweep_of(&host, "time", SOME, begin, work, || {
        is_as_before(&host, pid);
    });
    host.end();
}
