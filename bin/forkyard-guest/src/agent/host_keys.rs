//! Host keys of a guest's SSH server: a substrate has none, so that no two VMs have the same.

use crate::foreign;
use std::{
    fs, io,
    path::Path,
    process::{Command, ExitStatus},
    thread,
};

/// Makes those that are missing, and tells the server. Where systemd runs it is the one that
/// knows the server; elsewhere one that runs reads its keys for each connection.
const MAKE: &str = "ssh-keygen -A && { [ ! -d /run/systemd/system ] || \
     systemctl --no-block try-reload-or-restart ssh.service sshd.service; }";

/// Has host keys made where a guest has an SSH server and no key. Does not wait: under emulation
/// a key takes seconds.
pub fn make_missing() {
    if !are_missing(Path::new("/")) {
        return;
    }
    let made = thread::Builder::new()
        .name("host-keys".into())
        .spawn(|| match make() {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("forkyard-guest: SSH host keys: {status}"),
            Err(error) => eprintln!("forkyard-guest: SSH host keys: {error}"),
        });
    if let Err(error) = made {
        eprintln!("forkyard-guest: SSH host keys: {error}");
    }
}

fn make() -> io::Result<ExitStatus> {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", MAKE])
        .current_dir("/")
        .stdin(foreign::null()?)
        .stdout(foreign::null()?);
    forkyard_sys_guest::command::as_usual(&mut command);
    command.status()
}

fn are_missing(root: &Path) -> bool {
    let etc = root.join("etc/ssh");
    let names = fs::read_dir(&etc).into_iter().flatten().flatten();
    let mut names = names.filter_map(|entry| entry.file_name().into_string().ok());
    etc.join("sshd_config").is_file()
        && root.join("usr/bin/ssh-keygen").exists()
        && !names.any(|name| name.starts_with("ssh_host_") && name.ends_with("_key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_made_for_a_server_that_has_none() {
        let root = tempfile::tempdir().expect("a folder");
        let put = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, "").expect("written");
        };
        put("usr/bin/ssh-keygen");
        assert!(!are_missing(root.path()), "no server");
        put("etc/ssh/sshd_config");
        assert!(are_missing(root.path()));
        put("etc/ssh/ssh_host_ed25519_key.pub");
        assert!(are_missing(root.path()), "half a key");
        put("etc/ssh/ssh_host_ed25519_key");
        assert!(!are_missing(root.path()));
    }
}
