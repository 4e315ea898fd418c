//! Forks asked for by the guest itself.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{TicketView, VmState, VmView};

#[track_caller]
fn only_p_is_left(host: &Host) {
    let names: Vec<_> = host.vms().iter().map(|vm| vm.name.to_string()).collect();
    assert_eq!(names, ["p"]);
}

#[test]
fn a_guest_forks_itself_for_a_job_from_c_and_whatever_its_clones_do() {
    let host = Host::with_woken_p([]);
    vmfork_run_collects_output_and_exit_codes(&host);
    a_clone_that_dies_is_lost_to_the_join_and_to_nothing_else(&host);
    a_clone_that_lies_about_who_it_is_speaks_for_itself_alone(&host);
    a_c_program_forks_its_vm(&host);
    host.end();
}

#[test]
fn a_guest_forks_itself_from_a_shell_now_and_of_an_instant_that_it_kept() {
    let host = Host::with_woken_p([]);
    a_shell_clones_joins_exits_and_kills(&host);
    clones_of_a_checkpoint_that_a_guest_took_have_what_was_then_and_numbers_of_their_own(&host);
    a_ticket_is_of_use_only_to_the_vm_it_was_granted_to(&host);
    host.end();
}

#[track_caller]
fn vmfork_run_collects_output_and_exit_codes(host: &Host) {
    let job = "echo part $FORKYARD_ID of $FORKYARD_COUNT on $(hostname); echo oops $FORKYARD_ID >&2; [ $FORKYARD_ID != 2 ] || exit 7";
    let words = [
        "exec", "p", "--", "vmfork", "run", "-n", "3", "--", "sh", "-c", job,
    ];
    let outcome = host.start(words, "").wait().exited(7);
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let want = [1, 2, 3].map(|n| format!("[{n}] part {n} of 3 on p-{n}"));
    assert_eq!(sorted(&outcome.text()), want);
    assert_eq!(
        sorted(&outcome.stderr),
        [1, 2, 3].map(|n| format!("[{n}] oops {n}"))
    );
    only_p_is_left(host);

    // All of a large output, and success.
    let words = [
        "exec",
        "p",
        "--",
        "vmfork",
        "run",
        "-n",
        "2",
        "--no-prefix",
        "--",
        "seq",
        "1",
        "50000",
    ];
    let outcome = host.start(words, "").wait().exited(0);
    let text = outcome.text();
    let mut numbers: Vec<u32> = text
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    numbers.sort_unstable();
    let want: Vec<u32> = (1..=50000).flat_map(|n| [n, n]).collect();
    assert!(numbers == want, "{} lines", numbers.len());
    only_p_is_left(host);
}

#[track_caller]
fn a_shell_clones_joins_exits_and_kills(host: &Host) {
    let script = "t=$(vmfork ticket 2); n=$(vmfork clone $t); \
        [ $n = 0 ] || { echo $n >/m/me; vmfork exit $((n + 4)); }; \
        vmfork join $t; ls /m; vmfork id; vmfork join $t";
    let outcome = host
        .start(["exec", "p", "--", "sh", "-c", script], "")
        .wait()
        .exited(1);
    assert_eq!(outcome.text(), "1 5\n2 6\n0");
    assert!(outcome.stderr.contains("used up"), "{}", outcome.stderr);
    only_p_is_left(host);

    let script = "t=$(vmfork ticket 2); n=$(vmfork clone $t); [ $n = 0 ] || sleep 1000; vmfork kill $t; vmfork join $t";
    host.start(["exec", "p", "--", "sh", "-c", script], "")
        .wait()
        .exited(1);
    only_p_is_left(host);

    // What holds a ticket is gone, and nothing of the ticket is left.
    for (signal, code) in [("KILL", 128 + 9), ("TERM", 128 + 15)] {
        let words = ["vmfork", "run", "-n", "2", "--", "sleep", "1000"];
        let job = host.start([&["exec", "p", "--"], &words[..]].concat(), "");
        let running = |vm: &&VmView| vm.state == VmState::Running;
        eventually("its clones", || {
            host.vms().iter().filter(running).count() == 3
        });
        host.sh("p", &format!("kill -{signal} $(pidof vmfork)"));
        job.wait().exited(code);
        // The ticket is used up a moment after the last clone has gone.
        eventually("their end, and the ticket's", || {
            host.vms().len() == 1 && host.json::<Vec<TicketView>>(["ticket", "ls"]).is_empty()
        });
    }

    // One that no process holds is the operator's to remove.
    let ticket = host.sh("p", "vmfork ticket 2");
    host.ok(["ticket", "rm", &ticket]);
    let tickets: Vec<TicketView> = host.json(["ticket", "ls"]);
    assert!(tickets.is_empty(), "{tickets:?}");
    host.fails(["exec", "p", "--", "vmfork", "clone", &ticket]);
    host.fails(["ticket", "rm", &ticket]);
}

#[track_caller]
fn a_clone_that_dies_is_lost_to_the_join_and_to_nothing_else(host: &Host) {
    let script = "t=$(vmfork ticket 2); n=$(vmfork clone $t); [ $n != 1 ] || poweroff -f; [ $n = 0 ] || vmfork exit 3; vmfork join $t";
    assert_eq!(host.sh("p", script), "1 lost\n2 3");
    only_p_is_left(host);
}

#[track_caller]
fn a_ticket_is_of_use_only_to_the_vm_it_was_granted_to(host: &Host) {
    let ticket = host.ok(["exec", "p", "--", "vmfork", "ticket", "1"]);
    let clone = host.fork("p", 1).remove(0);
    let clone = clone.name.as_str();
    // The fork is of another kind and takes nothing from the ticket.
    host.fails(["exec", clone, "--", "vmfork", "clone", &ticket]);
    host.fails(["exec", clone, "--", "vmfork", "kill", &ticket]);
    let script =
        format!("n=$(vmfork clone {ticket}); [ $n = 0 ] || vmfork exit 9; vmfork join {ticket}");
    assert_eq!(host.sh("p", &script), "1 9");
    host.fails(["exec", "p", "--", "vmfork", "exit", "0"]);
}

#[track_caller]
fn a_c_program_forks_its_vm(host: &Host) {
    let dist = host.dist().to_owned();
    host.put_program("p", "caller", Some(&dist));
    assert_eq!(
        host.ok(["exec", "p", "--", "caller"]),
        "0 exited with 0\n1: 31\n2: 32\n3: 33"
    );
    only_p_is_left(host);
}

#[track_caller]
fn clones_of_a_checkpoint_that_a_guest_took_have_what_was_then_and_numbers_of_their_own(
    host: &Host,
) {
    let script = "echo then >/m/word; set -- $(vmfork checkpoint); \
        [ $1 = 0 ] || { [ $(cat /m/word) = then ] && vmfork exit $((10 + $1)); vmfork exit 1; }; \
        echo now >/m/word; for round in 1 2; do \
        t=$(vmfork ticket 2); vmfork create-clones $2 $t; vmfork join $t; done; \
        cat /m/word; vmfork id; vmfork drop $2; vmfork create-clones $2 $(vmfork ticket 1)";
    let outcome = host
        .start(["exec", "p", "--", "sh", "-c", script], "")
        .wait()
        .exited(1);
    assert_eq!(outcome.text(), "1 11\n2 12\n1 11\n2 12\nnow\n0");
    assert!(
        outcome.stderr.contains("no checkpoint"),
        "{}",
        outcome.stderr
    );
    only_p_is_left(host);

    let dist = host.dist().to_owned();
    host.put_program("p", "caller", Some(&dist));
    let told = host.ok(["exec", "p", "--", "caller", "checkpoint"]);
    assert_eq!(told, "60: 31 32");
    only_p_is_left(host);
}

#[test]
fn a_guests_checkpoint_is_its_familys_outlives_a_daemon_and_goes_with_the_family() {
    let host = Host::new();
    let bounds = [("FORKYARD_GUEST_CHECKPOINTS", "1")];
    host.start_with(["run", "tiny", "--name", "p"], bounds)
        .wait()
        .exited(0);
    host.ok(["run", "tiny", "--name", "q"]);
    let script = "mkdir /m; mount -t tmpfs m /m; echo then >/m/word; set -- $(vmfork checkpoint); \
        [ $1 = 0 ] || vmfork exit $1; echo now >/m/word; echo $2";
    let kept = host.sh("p", script);
    let states: Vec<_> = host.vms().iter().map(|vm| vm.state).collect();
    assert!(states.contains(&VmState::Checkpoint), "{states:?}");
    let refused = host.fails(["exec", "p", "--", "vmfork", "checkpoint"]);
    assert!(refused.contains("checkpoint limit"), "{refused}");
    // To another family it does not exist; what was kept from outside, to no guest.
    host.fails(["exec", "q", "--", "vmfork", "drop", &kept]);
    let own: VmView = host.json(["checkpoint", "q", "--name", "then"]);
    let refused = host.fails(["exec", "q", "--", "vmfork", "drop", own.id.as_str()]);
    assert!(refused.contains("no checkpoint"), "{refused}");
    host.ok(["rm", "q", "then"]);

    host.kill_9("forkyardd");
    // A clone may use it, but not take it from the VM that took it.
    let clone = host.fork("p", 1).remove(0).name.to_string();
    let script = format!(
        "t=$(vmfork ticket 1); vmfork create-clones {kept} $t; vmfork join $t; cat /m/word"
    );
    assert_eq!(host.sh(&clone, &script), "1 1\nnow");
    let refused = host.fails(["exec", &clone, "--", "vmfork", "drop", &kept]);
    assert!(refused.contains("p's to drop"), "{refused}");
    host.ok(["rm", "p"]);
    assert_eq!(host.vms().len(), 2);
    host.ok(["rm", &clone]);
    assert_eq!(host.vms().len(), 0);
    host.end();
}

#[track_caller]
fn a_clone_that_lies_about_who_it_is_speaks_for_itself_alone(host: &Host) {
    // It takes its sibling's number and another epoch, and its parent's ticket.
    let script = "t=$(vmfork ticket 2); n=$(vmfork clone $t); \
        [ $n != 1 ] || { sed -i -e s/^FORKYARD_ID=.*/FORKYARD_ID=2/ \
        -e s/^FORKYARD_EPOCH=./FORKYARD_EPOCH=f/ /opt/forkyard/identity; \
        [ $(vmfork id) = 2 ] || vmfork exit 1; \
        vmfork kill $t || vmfork join $t || vmfork exit 9; vmfork exit 2; }; \
        [ $n = 0 ] || vmfork exit 6; vmfork join $t";
    assert_eq!(host.sh("p", script), "1 9\n2 6");
    only_p_is_left(host);
}

#[test]
fn a_python_program_forks_its_vm() {
    const PROGRAM: &str = "
import forkyard, random
callbacks = []
forkyard.at_clone(callbacks.append)
random.seed(1)
ticket = forkyard.request_ticket(3)
me = forkyard.clone(ticket)
if me:
    forkyard.exit(random.randrange(100) if callbacks == [me] == [forkyard.id()] else 101)
drawn = forkyard.join(ticket)
print(len(ticket.clones), sorted(drawn), max(drawn.values()) < 100)
try:
    forkyard.join(ticket)
except forkyard.ForkError as error:
    print(error.kind)
random.seed(1)
print(set(drawn.values()) != {random.randrange(100)})
";
    let host = Host::new();
    host.build_image("debian");
    host.ok(["run", "debian", "--name", "p", "--memory", "512"]);
    let outcome = host
        .start(["exec", "-i", "p", "--", "python3", "-"], PROGRAM)
        .wait()
        .exited(0);
    assert_eq!(outcome.text(), "3 [1, 2, 3] True\nnot_found\nTrue");
    only_p_is_left(&host);
    functions_run_in_clones_of_the_program_itself(&host);
    host.end();
}

#[track_caller]
fn functions_run_in_clones_of_the_program_itself(host: &Host) {
    const PROGRAM: &str = "
import forkyard, socket
loaded = {n: lambda x, n=n: n * x for n in range(100)}   # nothing that pickle takes
with forkyard.ForkExecutor(2) as executor:
    print(list(executor.map(lambda n: loaded[n](n), range(5))))
    hosts = set(executor.map(lambda _: socket.gethostname(), range(2)))
    print(socket.gethostname() in hosts)
    failing, working = executor.submit(lambda: 1 // 0), executor.submit(len, b'x' * 3)
print(repr(failing.exception()), working.result(), type(executor.submit(lambda: lambda: 1).exception()).__name__)
import time
try:
    executor.map(time.sleep, [0, 1000], timeout=10)
except TimeoutError as error:
    print(error)
";
    let outcome = host
        .start(["exec", "-i", "p", "--", "python3", "-"], PROGRAM)
        .wait()
        .exited(0);
    assert_eq!(
        outcome.text(),
        "[0, 1, 4, 9, 16]\nFalse\nZeroDivisionError('integer division or modulo by zero') 3 TypeError\n1 of 2 calls are not done after 10 s"
    );
    only_p_is_left(host);
}
