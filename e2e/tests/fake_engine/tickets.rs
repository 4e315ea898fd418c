//! Tickets: what guests' programs ask for, and what becomes of it.

use crate::MACHINE;
use forkyard_e2e::{Host, eventually, is_sound};

fn with_p() -> Host {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p"]);
    host
}

#[test]
fn a_join_gives_the_status_of_each_clone_and_leaves_none() {
    let host = with_p();
    let said = host.sh("p", "request 3 && clone && child exit 7 && join");
    assert_eq!(said, "granted 3\ncloned 0\njoined 1=7 2=7 3=7");
    eventually("the clones' end", || host.processes(MACHINE).len() == 1);
    is_sound(&host);
    host.end();
}

#[test]
fn a_clone_that_is_killed_has_no_status_and_holds_up_no_join() {
    let host = with_p();
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
    let host = with_p();
    let said = host.sh("p", "request 2 && clone && child wait && kill");
    assert_eq!(said, "granted 2\ncloned 0\nKilled");
    assert_eq!(host.vms().len(), 1);
    eventually("the clones' end", || host.processes(MACHINE).len() == 1);
    host.end();
}

#[test]
fn a_join_that_waits_outlives_the_daemon() {
    let host = with_p();
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
    let host = with_p();
    host.sh("p", "poke 2 4");
    let said = host.sh("p", "checkpoint");
    let id = said.strip_prefix("kept ").expect("kept").to_owned();
    host.sh("p", "poke 2 5");
    let clone = host.fork(&id, 1).remove(0);
    assert_eq!(host.sh(clone.name.as_str(), "peek 2"), "4");
    is_sound(&host);
    host.end();
}
