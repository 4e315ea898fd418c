//! Guests that want too much, and what a QEMU that a guest has taken over could do.

use forkyard_e2e::{Host, eventually};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
};

#[test]
fn a_fork_bomb_is_refused_and_its_neighbours_do_not_notice() {
    let host = Host::new();
    let bounds = [
        ("FORKYARD_GUEST_CLONES", "3"),
        ("FORKYARD_GUEST_GENERATIONS", "2"),
        ("FORKYARD_GUEST_FORKS", "6"),
    ];
    host.start_with(["run", "tiny", "--name", "p"], bounds)
        .wait()
        .exited(0);
    host.ok(["run", "tiny", "--name", "q"]);
    let says = |script: &str| {
        let words = ["exec", "p", "--", "sh", "-c", script];
        let outcome = host.start(words, "").wait();
        format!("{}{}", outcome.text(), outcome.stderr)
    };
    let deep = says("vmfork run -n 1 -- vmfork run -n 1 -- vmfork run -n 1 -- true");
    assert!(deep.contains("2 generations"), "{deep}");
    let wide = says("vmfork run -n 200 -- true");
    assert!(wide.contains("3 of 200"), "{wide}");
    let ticket = host.ok(["exec", "p", "--", "vmfork", "ticket", "1"]);
    let often = says("while vmfork run -n 1 -- true; do :; done");
    assert!(often.contains("6 times within a minute"), "{often}");

    // What was granted to one is nothing to the other, which may do as before.
    host.fails(["exec", "q", "--", "vmfork", "kill", &ticket]);
    host.fails(["exec", "q", "--", "vmfork", "join", &ticket]);
    host.ok(["exec", "q", "--", "vmfork", "run", "-n", "2", "--", "true"]);
    // Nor is a fork of p from outside bound by it.
    host.fork("p", 4);
    host.end();
}

#[test]
fn tickets_that_are_killed_leave_no_qemu_behind_and_are_not_given_without_end() {
    let host = Host::new();
    let bounds = [
        ("FORKYARD_GUEST_CLONES", "5"),
        ("FORKYARD_GUEST_FORKS", "6"),
    ];
    host.start_with(["run", "tiny", "--name", "p", "--warm", "1"], bounds)
        .wait()
        .exited(0);
    host.wait_warm("p", 1);
    host.fork("p", 2);
    host.wait_warm("p", 1);
    let qemus = || host.processes("qemu-system-x86_64").len();
    let before = qemus();
    // Each in turn takes what there is, and gives it back.
    for vm in ["p", "p-1", "p-2"] {
        let ticket = host.ok(["exec", vm, "--", "vmfork", "ticket", "9"]);
        eventually("shells for it", || qemus() > before);
        host.ok(["exec", vm, "--", "vmfork", "kill", &ticket]);
        assert_eq!(qemus(), before, "shells of {vm}");
    }
    host.wait_warm("p", 1);
    let script = "while t=$(vmfork ticket 1); do vmfork kill $t; done";
    let words = ["exec", "p", "--", "sh", "-c", script];
    let often = host.start(words, "").wait().stderr;
    assert!(often.contains("tickets 6 times within a minute"), "{often}");
    assert_eq!(qemus(), before);
    host.end();
}

#[test]
fn a_qemu_has_no_rights_no_network_and_a_user_of_its_own() {
    let host = Host::with_p([]);
    let clone = host.fork("p", 1).remove(0);
    let mut users = BTreeSet::new();
    let daemon = host.processes("forkyardd").remove(0).pid;
    for vm in [host.vm("p"), clone] {
        let pid = vm.pid.expect("it runs");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
        let field = |name: &str| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
            value.unwrap_or_else(|| panic!("{name} in {status}"))
        };
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(set), "0".repeat(16), "{set} of {}", vm.name);
        }
        assert_eq!(field("NoNewPrivs"), "1", "{}", vm.name);
        assert_eq!(field("Seccomp"), "2", "{}", vm.name);
        // Its own, and ours before it; a clone's is told of no huge pages, too.
        let filters: u32 = field("Seccomp_filters").parse().expect("a number");
        assert_eq!(
            filters,
            if vm.name.as_str() == "p" { 2 } else { 3 },
            "{}",
            vm.name
        );
        assert!(field("NSpid").ends_with("\t1"), "{status}");
        let ids: BTreeSet<_> = field("Uid").split('\t').collect();
        assert_eq!(ids.len(), 1, "real, effective and all others: {ids:?}");
        assert!(!ids.contains("0"), "{} is root", vm.name);
        assert!(users.insert(field("Uid").to_owned()), "two VMs, one user");
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("alive");
        for bound in [
            "core file size",
            "processes",
            "data size",
            "open files",
            "Max file size",
        ] {
            let line = limits.lines().find(|line| line.contains(bound));
            let hard = line.and_then(|line| line.split_whitespace().rev().nth(1));
            let hard: Option<u64> = hard.and_then(|hard| hard.parse().ok());
            assert!(hard.is_some(), "{bound} of {}: {limits}", vm.name);
        }
        let root = format!("/proc/{pid}/root");
        for gone in ["root", "home", "proc", "run", "etc/shadow", "etc/passwd"] {
            let there = Path::new(&root).join(gone);
            // No more of it than the way to the programs, if they lie there.
            let way = host.dist().strip_prefix(Path::new("/").join(gone));
            let way = way.ok().and_then(|rest| rest.iter().next());
            match way {
                Some(next) => {
                    let shown = fs::read_dir(there).expect("the way").flatten();
                    let shown: Vec<_> = shown.map(|entry| entry.file_name()).collect();
                    assert_eq!(shown, [next], "{gone} of {}", vm.name);
                }
                None => assert!(!there.exists(), "{gone} of {}", vm.name),
            }
        }
        let state = host.folder().join("state");
        let shown = fs::read_dir(format!("{root}{}", state.display())).expect("its disk");
        let shown: Vec<_> = shown.flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(shown, ["vms"], "nor the records");
        let disks: BTreeSet<_> = fs::read_dir(format!("{root}{}/vms", state.display()))
            .expect("its disk")
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        let ancestors = std::iter::successors(Some(vm.id), |id| {
            let vms = host.vms();
            vms.iter().find(|vm| vm.id == *id)?.parent
        });
        assert_eq!(
            disks,
            ancestors.map(|id| id.to_string()).collect(),
            "{}",
            vm.name
        );
        let network = |pid| fs::read_link(format!("/proc/{pid}/ns/net")).expect("a network");
        assert_ne!(network(pid), network(daemon), "{}", vm.name);
        for kind in ["ipc", "cgroup", "pid"] {
            let of = |pid| fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("a namespace");
            assert_ne!(of(pid), of(daemon), "{kind} of {}", vm.name);
        }
        let mut folders = vec![PathBuf::from(&root)];
        while let Some(folder) = folders.pop() {
            let facts = fs::metadata(&folder).expect("there");
            let open = facts.permissions().mode() & 0o002 != 0;
            assert!(!open, "{} of {}", folder.display(), vm.name);
            // Others are of other file systems, which are there to be read.
            let below = fs::read_dir(&folder).into_iter().flatten().flatten();
            let own = below.filter(|entry| {
                let facts = entry.metadata();
                facts.is_ok_and(|it| {
                    it.is_dir() && it.dev() == fs::metadata(&root).map_or(0, |root| root.dev())
                })
            });
            folders.extend(own.map(|entry| entry.path()));
        }
    }
    users_of_the_host_see_nothing(&host);
    host.end();
}

/// Checks that a user of the host can open nothing in which there is something of a guest, nor what
/// others wait for.
fn users_of_the_host_see_nothing(host: &Host) {
    host.ok(["checkpoint", "p", "--name", "kept"]);
    let kept = host.vm("kept").id.to_string();
    let (run, state) = (host.folder().join("run"), host.folder().join("state"));
    let mut paths = vec![
        run.join("lock"),
        run.join("daemon.log"),
        run.join("pager.log"),
        run.join("api.sock"),
        state.join("vms").join(&kept).join("memory.pages"),
        state.join("vms").join(&kept).join("devices"),
    ];
    let clone = host.vm("p-1").pid.expect("it runs");
    let maps = fs::read_to_string(format!("/proc/{clone}/maps")).expect("alive");
    let pages = run.join("pages");
    let image = maps.lines().find_map(|line| {
        line.split_whitespace()
            .nth(5)
            .map(Path::new)
            .filter(|path| path.starts_with(&pages))
    });
    paths.push(image.expect("its memory").to_owned());
    let opened = thread::scope(|scope| {
        let opening = scope.spawn(|| {
            // The kernel checks by this, which is the thread's own, and by no capability then.
            nix::unistd::setfsuid(65_534.into());
            let opens = |path: &&PathBuf| fs::File::open(path).is_ok();
            paths.iter().filter(opens).collect::<Vec<_>>()
        });
        opening.join().expect("no panic")
    });
    assert!(opened.is_empty(), "{opened:?}");
}

#[test]
fn a_guest_that_never_stops_talking_fills_no_disk_and_waits_for_no_daemon() {
    let host = Host::waking().running_p_behind_a_door(&[]);
    let folder = host
        .folder()
        .join("run/vms")
        .join(host.vm("p").id.to_string());
    let read = |name: &str| fs::read(folder.join(name)).unwrap_or_default();
    // A kernel may have a word to say after it.
    let heard = |words: &[u8]| {
        let log = read("console.log");
        log.windows(words.len()).any(|said| said == words)
    };
    let talk = |kib: u32, last: &str| {
        let script =
            format!("head -c {kib}k /dev/zero | tr '\\0' x >/dev/ttyS0; echo {last} >/dev/ttyS0");
        host.sh("p", &script)
    };
    talk(1200, "enough");
    eventually("its last words", || heard(b"enough\r\n"));
    let halves = ["console.log.1", "console.log"].map(|name| read(name).len());
    assert!(
        halves.iter().all(|half| (1..=512 << 10).contains(half)),
        "{halves:?}"
    );

    files_of_any_kind_stop_no_agent(&host);
    host.kill_9("forkyardd");
    talk(1, "and the next daemon hears");
    eventually("words to the next daemon", || {
        heard(b"and the next daemon hears\r\n")
    });

    // More than any socket holds, without a reader: it gets to its end all the same.
    let script = "head -c 400k /dev/zero >/dev/ttyS0; poweroff -f";
    let script = format!("{}; {script}", Host::UNTIL_KNOCKED);
    host.sh("p", &format!("({script}) </dev/null >/dev/null 2>&1 &"));
    host.kill_9("forkyardd");
    host.knock();
    eventually("its end", || {
        host.processes("qemu-system-x86_64").is_empty()
    });
    host.wait_stopped("p");
    host.end();
}

/// Puts a FIFO, and what never ends, in place of files that the agent of p reads: that costs the commands that
/// need one, and no others.
fn files_of_any_kind_stop_no_agent(host: &Host) {
    let paths = "/etc/passwd /etc/group /etc/forkyard/entrypoint.json";
    let with_each = |script: &str| {
        let script = format!("mkdir -p /etc/forkyard; for it in {paths}; do {script}; done");
        host.sh("p", &script)
    };
    for lay in ["mkfifo", "ln -s /dev/zero"] {
        with_each(&format!("[ ! -e $it ] || mv $it $it.own; {lay} $it"));
        host.ok(["exec", "-u", "root", "p", "--", "true"]);
        host.ok(["exec", "-u", "65534", "p", "--", "true"]);
        let unknown = host.start(["exec", "-u", "web", "p", "--", "true"], "");
        let unknown = unknown.wait().exited(126).stderr;
        let why = "/etc/passwd, which cannot be read: it is no regular file";
        assert!(unknown.contains(why), "{unknown}");
        with_each("rm $it; [ ! -e $it.own ] || mv $it.own $it");
    }
    host.sh("p", "mv /dev/null /dev/null.own; mkfifo /dev/null");
    let no_input = host.start(["exec", "-d", "p", "--", "true"], "");
    let no_input = no_input.wait().exited(126).stderr;
    assert!(no_input.contains("/dev/null: it is a FIFO"), "{no_input}");
    host.sh("p", "mv /dev/null.own /dev/null");
    host.ok(["exec", "-d", "p", "--", "true"]);
}
