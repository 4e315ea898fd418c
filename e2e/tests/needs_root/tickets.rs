//! Tests of the grants of tickets, and that asking again asks for nothing new.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{CloneResult, ErrorKind, ForkResponse, TicketPhase, TicketView, VmInspect};
use std::{fs, os::unix::fs::MetadataExt};

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn processes_of_a_hierarchical_ticket_fill_the_vcpus_that_clones_were_granted() {
    let host = Host::with_p(["--vcpus", "2"]);
    let job = "echo $FORKYARD_ID of $FORKYARD_COUNT, $(nproc) vcpus, $(hostname)";
    let words = [
        "exec",
        "p",
        "--",
        "vmfork",
        "run",
        "--hierarchical",
        "-n",
        "3",
        "--no-prefix",
        "--",
        "sh",
        "-c",
        job,
    ];
    assert_eq!(
        sorted(&host.ok(words)),
        [
            "1 of 3, 2 vcpus, p-1",
            "2 of 3, 2 vcpus, p-1",
            "3 of 3, 1 vcpus, p-2"
        ]
    );
    assert_eq!(host.sh("p", "nproc"), "2", "the parent keeps its vCPUs");

    let dist = host.dist().to_owned();
    host.put_program("p", "caller", Some(&dist));
    let told = host.ok(["exec", "p", "--", "caller", "hierarchical"]);
    assert_eq!(told, "0 exited with 0\n1: 31\n2: 32\n3: 33");
    assert_eq!(host.vms().len(), 1);
    host.end();
}

#[test]
fn a_family_gets_as_many_clones_as_it_may_have_and_no_more() {
    let host = Host::with_p(["--max-clones", "3"]);
    host.fork("p", 2);
    let outcome = host
        .start(["fork", "p", "-n", "2", "-o", "json"], "")
        .wait();
    let outcome = outcome.exited(3);
    let forked: ForkResponse = serde_json::from_slice(&outcome.stdout).expect("an answer");
    let kinds: Vec<_> = forked
        .clones
        .iter()
        .map(|clone| match clone {
            CloneResult::Vm(_) => None,
            CloneResult::Error(error) => Some(error.kind),
        })
        .collect();
    assert_eq!(kinds, [None, Some(ErrorKind::Exhausted)]);
    let refused = host.fails(["fork", "p-1"]);
    assert!(
        refused.contains("limit of the family reached: 3"),
        "{refused}"
    );
    host.fails(["exec", "p", "--", "vmfork", "ticket", "1"]);

    host.ok(["rm", "p-1"]);
    let words = ["exec", "p", "--", "vmfork", "run", "-n", "5", "--", "true"];
    let outcome = host.start(words, "").wait().exited(0);
    assert!(outcome.stderr.contains("1 of 5"), "{}", outcome.stderr);
    // A place that is promised is taken, until the promise is.
    let ticket = host.ok(["exec", "p", "--", "vmfork", "ticket", "1"]);
    host.fails(["fork", "p"]);
    host.ok(["exec", "p", "--", "vmfork", "kill", &ticket]);
    host.fork("p", 1);
    host.end();
}

#[test]
fn programs_get_their_answers_though_the_agent_dies_during_the_call() {
    let host = Host::with_woken_p([]);
    host.put_agent_worker("p");
    let job = "vmfork run -n 2 -- sh -c 'echo on $(hostname); until [ -e /m/go ]; do sleep 0.1; done; exit 9' \
        >/m/out || echo $? >/m/code";
    host.sh("p", &format!("({job}) >/m/said 2>&1 </dev/null &"));
    eventually("both clones", || host.vms().len() == 3);
    host.wait_in("p", "[ $(grep -c 'on p' /m/out) = 2 ]");
    let before = host.sh("p", "agent-worker");
    let lost = "echo $$ >/m/lost; sleep 1000; :";
    let lost = host.start(["exec", "p", "--", "sh", "-c", lost], "");
    host.wait_in("p", "[ -s /m/lost ]");
    let kill = format!("kill -9 {before}");
    // It goes with the agent that ran it.
    host.start(["exec", "p", "--", "sh", "-c", &kill], "")
        .wait();
    assert_ne!(host.sh("p", "agent-worker"), before);
    host.sh("p", "[ ! -e /m/code ]");
    for clone in host.vms().iter().filter(|vm| vm.parent.is_some()) {
        // It may be cut off by what comes of it.
        host.start(["exec", clone.name.as_str(), "--", "touch", "/m/go"], "")
            .wait();
    }
    host.wait_in("p", "[ \"$(cat /m/code)\" = 9 ]");
    eventually("the clones' end", || host.vms().len() == 1);
    // What a client was told is lost ends, and what no client waited for went on.
    lost.wait().exited(125);
    host.wait_in("p", "! kill -0 $(cat /m/lost)");

    // A ticket ends with the VM of the process that held it, and with its clones theirs.
    let nested = "vmfork run -n 1 -- vmfork run -n 1 -- sleep 1000";
    host.sh("p", &format!("({nested}) >/dev/null 2>&1 </dev/null &"));
    eventually("a clone and its clone", || host.vms().len() == 3);
    host.ok(["rm", "p"]);
    assert!(host.vms().is_empty(), "{:?}", host.vms());
    host.end();
}

#[test]
fn a_ticket_is_granted_once_though_the_agent_dies_before_the_answer() {
    let host = Host::new().running_p_behind_a_door(&["--max-clones", "2"]);
    host.put_agent_worker("p");
    // While the daemon is still, the agent dies with the call that it has passed
    // on, and the program makes it again of the next agent. It has passed it on when the
    // program has a connection, and neither has anything to do.
    let worker = host.sh("p", "agent-worker");
    let script = format!(
        "rests() {{ ! cat /proc/$1/task/*/stat | grep -qv ') S '; }}; \
         ({knocked}; vmfork ticket 1 >/m/ticket 2>/m/said & \
         until v=$(pidof vmfork) && ls -l /proc/$v/fd | grep -q socket && rests $v && rests {worker}; do sleep 0.1; done; \
         kill -9 {worker}; touch /m/killed; dd if=/dev/urandom of=/d/grows bs=64k count=64 2>/dev/null; sync) \
         </dev/null >/dev/null 2>&1 &",
        knocked = Host::UNTIL_KNOCKED
    );
    host.sh("p", &script);
    // Grows when the agent has been killed, and takes no daemon to do so.
    let slice = host.json::<VmInspect>(["inspect", "p"]).disk[0]
        .path
        .clone();
    let size = || fs::metadata(&slice).expect("its disk").blocks() * 512;
    let before = size();
    let daemon = host.processes("forkyardd").remove(0);
    daemon.stop();
    host.knock();
    eventually("the agent's end", || size() > before + (3 << 20));
    daemon.go_on();
    // The first may still be asked of the agent that has been killed.
    eventually("the ticket", || {
        let words = ["exec", "p", "--", "cat", "/m/killed", "/m/ticket"];
        host.start(words, "").wait().text().len() == 11
    });
    // It took one of two places.
    let words = ["exec", "p", "--", "vmfork", "run", "-n", "5", "--", "true"];
    let outcome = host.start(words, "").wait().exited(0);
    assert!(outcome.stderr.contains("1 of 5"), "{}", outcome.stderr);
    host.sh("p", "vmfork kill $(cat /m/ticket)");
    host.fork("p", 2);
    host.end();
}

#[test]
fn a_vm_is_forked_once_though_the_agent_dies_during_the_clone() {
    let host = Host::with_woken_p([]);
    host.put_agent_worker("p");
    host.sh("p", "mkdir -p /etc/forkyard/clone.d");
    host.put("p", "/etc/forkyard/clone.d/10-slow", "#!/bin/sh\nsleep 8\n");
    let ticket = host.ok(["exec", "p", "--", "vmfork", "ticket", "1"]);
    let script = format!(
        "(n=$(vmfork clone {ticket}); echo $n >/m/said; [ $n = 0 ] || vmfork exit 7) \
         </dev/null >/m/complaint 2>&1 &"
    );
    let slices = || host.json::<VmInspect>(["inspect", "p"]).disk.len();
    let (before, worker) = (slices(), host.sh("p", "agent-worker"));
    host.sh("p", &script);
    // The guest stands still by then: it hears the next as it goes on, while its
    // clone is still busy with the hook.
    eventually("the instant", || slices() > before);
    let kill = format!("kill -9 {worker}");
    host.start(["exec", "p", "--", "sh", "-c", &kill], "")
        .wait();
    host.wait_in("p", "[ \"$(cat /m/said)\" = 0 ]");
    assert_ne!(host.sh("p", "agent-worker"), worker);
    let listed: Vec<TicketView> = host.json(["ticket", "ls"]);
    let own: Vec<_> = listed
        .iter()
        .filter(|it| it.id.to_string() == ticket)
        .collect();
    assert!(
        matches!(own[..], [TicketView { phase: TicketPhase::Cloned, clones, .. }] if clones.len() == 1),
        "{listed:?}"
    );
    let join = host.ok(["exec", "p", "--", "vmfork", "join", &ticket]);
    let listed: Vec<TicketView> = host.json(["ticket", "ls"]);
    assert!(listed.is_empty(), "{listed:?}");
    assert_eq!(join, "1 7");
    assert_eq!(host.json::<VmInspect>(["inspect", "p"]).forks.len(), 1);
    assert_eq!(host.vms().len(), 1);
    host.end();
}

#[test]
fn a_guest_is_asked_before_a_fork_from_outside_and_told_of_it_in_the_clones() {
    let host = Host::with_woken_p([]);
    host.sh("p", "mkdir -p /etc/forkyard/fork.d");
    host.put(
        "p",
        "/etc/forkyard/fork.d/10-note",
        "#!/bin/sh\necho $FORKYARD_NAME $FORKYARD_FORK >>/m/forks\n[ ! -e /m/busy ]\n",
    );
    host.sh("p", "vmfork wait >/m/told 2>&1 </dev/null &");
    host.wait_in("p", "pidof vmfork");
    let forked: ForkResponse = host.json(["fork", "p", "-n", "2"]);
    for number in ["1", "2"] {
        let name = format!("p-{number}");
        host.wait_in(&name, &format!("[ $(cat /m/told) = {number} ]"));
    }
    assert_eq!(host.sh("p", "cat /m/told; pidof vmfork | wc -w"), "1");
    assert_eq!(host.sh("p", "cat /m/forks"), format!("p {}", forked.fork));

    host.sh("p", "touch /m/busy");
    let refused = host.fails(["fork", "p"]);
    assert!(refused.contains("10-note"), "{refused}");
    host.sh("p", "rm /m/busy");
    host.fork("p", 1);
    host.end();
}
