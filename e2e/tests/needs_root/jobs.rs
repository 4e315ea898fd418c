//! Programs that grow by forking: `vmfork map`, `vmfork hosts`, and what they share with `vmfork run`.

use forkyard_e2e::{Host, eventually};
use forkyard_types::TicketView;
use std::time::{Duration, Instant};

#[test]
fn programs_grow_by_forking_and_what_their_clones_did_comes_home() {
    let host = Host::with_woken_p([]);
    let begun = Instant::now();
    items_are_done_in_order_with_the_environment_and_folder_of_the_caller(&host);
    // Longer than an item of those that are quick takes, as busy as this machine is.
    let enough = begun.elapsed().max(Duration::from_secs(5));
    an_item_that_takes_too_long_or_fails_is_done_again_as_often_as_was_said(&host, enough);
    folders_of_items_and_ranks_come_home(&host);
    a_command_has_clones_as_its_hosts_and_its_end_is_theirs(&host);
    files_are_scattered_over_hosts_and_gathered_from_them(&host);
    fewer_hosts_than_asked_for_are_refused_unless_they_will_do(&host);
    host.end();
}

#[track_caller]
fn nothing_is_left_of_the_job(host: &Host) {
    eventually("the end of its clones and ticket", || {
        host.vms().len() == 1 && host.json::<Vec<TicketView>>(["ticket", "ls"]).is_empty()
    });
    assert_eq!(
        host.sh(
            "p",
            "ls /tmp /var/tmp 2>/dev/null | grep -c forkyard- || true"
        ),
        "0"
    );
}

#[track_caller]
fn items_are_done_in_order_with_the_environment_and_folder_of_the_caller(host: &Host) {
    // The first item takes longest: what comes in order is put in order.
    let script = "mkdir -p /m/d; cd /m/d; export WORD=there; seq 5 | vmfork map -n 2 -- sh -c \
        '[ $1 != 1 ] || sleep 1; echo $1 $(pwd) $WORD $(hostname | cut -c1)' x {}";
    let want: Vec<_> = (1..=5).map(|n| format!("{n} /m/d there p")).collect();
    assert_eq!(host.sh("p", script), want.join("\n"));
    nothing_is_left_of_the_job(host);
}

#[track_caller]
fn an_item_that_takes_too_long_or_fails_is_done_again_as_often_as_was_said(
    host: &Host,
    enough: Duration,
) {
    // A process of its own group would outlive its shell, and hold the output open.
    let script = format!(
        "vmfork map -n 2 --timeout {} -- sh -c 'echo $1; [ $1 != slow ] || sleep 1000' x ::: slow quick",
        enough.as_secs()
    );
    let words = ["exec", "p", "--", "sh", "-c", &script];
    let outcome = host.start(words, "").wait().exited(124);
    assert_eq!(outcome.text(), "slow\nquick");
    // What the first try left is found by the second, in the one clone.
    let script = "vmfork map --retry 1 -- sh -c '[ -e /m/tried ] || { : >/m/tried; exit 3; }; echo again' ::: a";
    assert_eq!(host.sh("p", script), "again");
    let script = "vmfork map --retry 1 -- sh -c 'exit 3' ::: a";
    host.start(["exec", "p", "--", "sh", "-c", script], "")
        .wait()
        .exited(3);
    let script = "vmfork run --timeout 0.5 -- sleep 1000";
    let words = ["exec", "p", "--", "sh", "-c", script];
    host.start(words, "").wait().exited(124);
    nothing_is_left_of_the_job(host);
}

#[track_caller]
fn folders_of_items_and_ranks_come_home(host: &Host) {
    let script = "cd /m; rm -rf out; vmfork map -n 2 --out out -- sh -c 'mkdir $FORKYARD_OUT/in; echo $1 >$FORKYARD_OUT/in/word' x {} ::: a b c; \
        vmfork run -n 2 --out out/ranks -- sh -c 'head -c 3000000 /dev/zero >$FORKYARD_OUT/zeros'; \
        cat out/1/in/word out/2/in/word out/3/in/word; wc -c <out/ranks/1/zeros; wc -c <out/ranks/2/zeros";
    assert_eq!(host.sh("p", script), "a\nb\nc\n3000000\n3000000");
    nothing_is_left_of_the_job(host);
}

#[track_caller]
fn a_command_has_clones_as_its_hosts_and_its_end_is_theirs(host: &Host) {
    // As mpirun does it: a daemon is started on every host, and outlives its start.
    let script = "cd /m; vmfork hosts -n 2 -- sh -c '\
        while read host slots; do \
        $FORKYARD_RSH $host \"pwd; (sleep 1000 >/dev/null 2>&1 </dev/null &); hostname | cut -c1-2 >&2; exit 3\"; echo $? $slots; \
        done <$FORKYARD_HOSTFILE; $FORKYARD_RSH 1.2.3.4 true; read word; echo $word; \
        grep -c :1$ $HYDRA_HOST_FILE; cat /sys/class/net/$HYDRA_IFACE/operstate; exit 5'";
    let words = ["exec", "-i", "p", "--", "sh", "-c", script];
    let outcome = host.start(words, "input\n").wait().exited(5);
    assert_eq!(outcome.text(), "/m\n3 slots=1\n/m\n3 slots=1\ninput\n2\nup");
    let stderr = &outcome.stderr;
    assert!(
        stderr.contains("p-") && stderr.contains("no host of this job"),
        "{stderr}"
    );
    nothing_is_left_of_the_job(host);

    // A signal is the command's, and what it makes of it is the job's end.
    let script =
        "trap 'exit 9' TERM; trap 'echo told' INT; : >/m/trapped; while :; do sleep 0.1; done";
    let words = [
        "exec", "p", "vmfork", "hosts", "-n", "1", "--", "sh", "-c", script,
    ];
    let job = host.start(words, "");
    host.wait_in("p", "[ -e /m/trapped ]");
    job.interrupt();
    eventually("it is told", || job.said() == "told\n");
    host.sh("p", "kill -TERM $(pidof vmfork)");
    assert_eq!(job.wait().exited(9).text(), "told", "once");

    // Ctrl-C is for the group of processes. The command is in another, and is told by vmfork alone.
    let script = "trap : INT; vmfork hosts -n 1 -- sh -c 'trap \"echo got; : >/m/got\" INT; \
        [ $(cut -d\" \" -f5 /proc/$$/stat) = $$ ] && echo apart; : >/m/caught; until [ -e /m/leave ]; do sleep 0.1; done'";
    let job = host.start(["exec", "p", "--", "sh", "-c", script], "");
    host.wait_in("p", "[ -e /m/caught ]");
    let group = "kill -INT -$(cut -d' ' -f5 /proc/$(pidof vmfork)/stat)";
    host.sh("p", group);
    host.wait_in("p", "[ -e /m/got ]");
    host.sh("p", "sleep 0.3; : >/m/leave");
    assert_eq!(job.wait().exited(0).text(), "apart\ngot");
    nothing_is_left_of_the_job(host);
}

#[track_caller]
fn files_are_scattered_over_hosts_and_gathered_from_them(host: &Host) {
    // Made after the fork: clones have them by this way alone. More than a piece's worth, and a name for a shell to spoil.
    let script = r#"cd /m; rm -rf got; vmfork hosts -n 2 -- sh -c '
        mkdir -p parts; dd if=/dev/urandom of="parts/a b" bs=64k count=9 2>/dev/null; echo c >parts/c; echo d >all
        vmfork scatter "parts/a b" parts/c && vmfork scatter --all all || exit
        vmfork gather got /m/all /m/parts || exit
        vmfork gather got /m/parts/c; echo $?
        read host slots <$FORKYARD_HOSTFILE; echo piped | $FORKYARD_RSH --input $host "read word; echo \$word"
        dd if=/dev/zero bs=64k count=9 2>/dev/null | $FORKYARD_RSH --input $host true; echo $?'
        cmp "parts/a b" "got/1/parts/a b"; cat got/2/parts/c got/1/all got/2/all; ls got/1/parts got/2/parts"#;
    let outcome = host
        .start(["exec", "p", "--", "sh", "-c", script], "")
        .wait()
        .exited(0);
    let want = "1\npiped\n0\nc\nd\nd\ngot/1/parts:\na b\n\ngot/2/parts:\nc";
    assert_eq!(outcome.text(), want);
    let stderr = &outcome.stderr;
    assert!(stderr.contains("[1] /m/parts/c"), "{stderr}");
    assert!(!stderr.contains("[2]"), "{stderr}");
    nothing_is_left_of_the_job(host);
}

#[track_caller]
fn fewer_hosts_than_asked_for_are_refused_unless_they_will_do(host: &Host) {
    host.start(["run", "tiny", "--name", "few", "--max-clones", "1"], "")
        .wait()
        .exited(0);
    let script = "vmfork hosts -n 2 -- true";
    let refused = host.fails(["exec", "few", "--", "sh", "-c", script]);
    assert!(refused.contains("1 of 2 clones were granted"), "{refused}");
    let script = "vmfork hosts -n 2 --least 1 -- sh -c 'wc -l <$FORKYARD_HOSTFILE'";
    assert_eq!(host.sh("few", script), "1");
    host.ok(["rm", "few"]);
    nothing_is_left_of_the_job(host);
}
