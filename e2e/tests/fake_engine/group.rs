//! Use of the host by users other than root: members of the group that the socket was opened to.

use forkyard_e2e::{Host, Running};
use std::{fs, os::unix::fs::PermissionsExt};
use tempfile::TempDir;

/// Commands of a user without rights, with one group more.
struct Member<'a> {
    host: &'a Host,
    folder: TempDir,
}

impl<'a> Member<'a> {
    fn new(host: &'a Host) -> Self {
        // The programs may lie where only root gets to.
        let folder = tempfile::tempdir().expect("a folder");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), open).expect("opened up");
        let program = folder.path().join("forkyard");
        fs::copy(host.dist().join("bin/forkyard"), program).expect("copied");
        Self { host, folder }
    }

    fn asks(&self, group: &str, words: &[&str]) -> Running {
        let user = ["--reuid", "nobody", "--regid", "nogroup", "--groups", group];
        let program = self.folder.path().join("forkyard").display().to_string();
        let words = [&user[..], &[&program], words].concat();
        self.host.start_program("/usr/bin/setpriv", words, "")
    }
}

#[test]
fn a_member_of_the_group_uses_vms_and_gives_out_no_tokens() {
    let host = Host::fake().telling("FORKYARD_GROUP", "daemon");
    host.ok(["run", "tiny", "--name", "p"]);
    let member = Member::new(&host);
    let refused = member.asks("nogroup", &["ps"]).wait().exited(4);
    assert!(refused.stderr.contains("--group"), "{}", refused.stderr);
    for words in [
        &["run", "tiny", "--name", "q"][..],
        &["fork", "p"],
        &["exec", "p-1", "--", "sh", "-c", "echo here"],
        &["inspect", "q"],
        &["rm", "q", "p-1"],
    ] {
        member.asks("daemon", words).wait().exited(0);
    }
    for words in [&["token", "create", "ci"][..], &["token", "ls"]] {
        let refused = member.asks("daemon", words).wait().exited(1);
        assert!(refused.stderr.contains("only root"), "{}", refused.stderr);
    }
    let log = fs::read_to_string(host.folder().join("run/daemon.log")).expect("a log");
    assert!(log.contains(r#"user "nobody": POST /v1/vms: 201"#), "{log}");
    // The next daemon opens its socket to the same group.
    host.kill_9("forkyardd");
    host.ok(["ps"]);
    member.asks("daemon", &["ps"]).wait().exited(0);
    host.ok(["rm", "p"]);
    host.nothing_left();
}

#[test]
fn a_group_that_is_none_is_told_before_anything_is_made() {
    let host = Host::fake().telling("FORKYARD_GROUP", "nosuch");
    let told = host.start(["ps"], "").wait().exited(4);
    assert!(
        told.stderr.contains(r#"there is no group "nosuch""#),
        "{}",
        told.stderr
    );
    host.nothing_left();
}
