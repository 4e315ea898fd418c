//! A guest that runs out of memory, and one whose agent or supervisor is killed.

use forkyard_e2e::{Host, eventually};

/// Processes of this name and first word in a guest, by number.
const AGENTS: &str = "#!/bin/sh\n\
    for p in /proc/[0-9]*; do\n\
    case \"$(tr '\\0' ' ' <$p/cmdline 2>/dev/null)\" in\n\
    \"@forkyard-guest $1 \"*) echo ${p#/proc/};;\n\
    esac\ndone\n";

#[test]
fn a_guest_out_of_memory_or_without_its_supervisor_still_does_what_it_is_told() {
    let host = Host::with_p([]);
    host.put("p", "/bin/agents", AGENTS);
    let eat = "mount -t tmpfs -o size=100% eaten /mnt; dd if=/dev/zero of=/mnt/f bs=1M";
    let code = host
        .start(["exec", "p", "--", "sh", "-c", eat], "")
        .wait()
        .code;
    assert_ne!(code, Some(0), "it is ended for its memory, or has no room");
    // What it took is taken back by a command, which needs a little of it.
    eventually("room", || {
        let words = ["exec", "p", "--", "umount", "/mnt"];
        host.start(words, "").wait().code == Some(0)
    });
    assert_eq!(host.vm("p").silence, None);
    let usual = host.sh(
        "p",
        "cat /proc/self/oom_score_adj; cut -d' ' -f 19 /proc/self/stat",
    );
    assert_eq!(usual, "0\n0", "a command is as any");

    let agent = |role: &str| host.sh("p", &format!("agents {role}"));
    for (ended, starts) in [
        ("agent", "worker"),
        ("worker", "agent"),
        ("agent", "worker"),
    ] {
        let (before, by) = (agent(ended), agent(starts));
        // The command ends with the worker that runs it.
        host.start(["exec", "p", "--", "kill", "-9", &before], "")
            .wait();
        eventually("another", || {
            let words = ["exec", "p", "--", "agents", ended];
            let now = host.start(words, "").wait();
            let now = String::from_utf8_lossy(&now.stdout).trim().to_owned();
            !now.is_empty() && now != before
        });
        assert_eq!(agent(starts), by, "the {starts} started another {ended}");
    }
    host.end();
}
