//! Files of the image that hold this VM's identity: its names, its number, and the servers to
//! ask for those of others.
//!
//! A convenience for programs. The image decides whether they can be written: its
//! root may be read-only, a file may be missing and have no folder, or be something
//! else. So none of them is a reason to take a VM away from its user; each one that
//! stays as it was is told of.

use crate::foreign;
use forkyard_types::{Identity, VmId};
use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
};

const MARK: &str = "# forkyard";
/// Hosts of an image that names none.
const LOCAL: &str = "127.0.0.1 localhost\n";

/// Writes them below a root; one line for each that could not be set.
pub fn write(root: &Path, identity: &Identity) -> Vec<String> {
    let etc = Etc(root);
    let name = format!("{}\n", identity.name);
    let id = format!("{}\n", machine_id(identity.vm));
    let set = [
        ("/etc/hostname", etc.put("etc/hostname", &name)),
        ("/etc/machine-id", etc.put("etc/machine-id", &id)),
        ("/var/lib/dbus/machine-id", etc.set_second_id(&id)),
        ("/etc/resolv.conf", etc.set_resolvers(identity)),
        ("/etc/hosts", etc.set_hosts(identity)),
    ];
    let failed = set
        .into_iter()
        .filter_map(|(path, done)| Some((path, done.err()?)));
    failed
        .map(|(path, error)| format!("{path} is not this VM's: {error}"))
        .collect()
}

/// Writes the resolvers below a root.
pub fn write_resolvers(root: &Path, resolvers: &[Ipv4Addr]) -> io::Result<()> {
    Etc(root).name_resolvers(resolvers)
}

struct Etc<'a>(&'a Path);

impl Etc<'_> {
    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// A link is replaced: it may lead to any file of the image's.
    fn put(&self, path: &str, text: &str) -> io::Result<()> {
        let path = self.at(path);
        if path.is_symlink() {
            fs::remove_file(&path)?;
        }
        foreign::put(path, text)
    }

    /// Often a link to the first.
    fn set_second_id(&self, id: &str) -> io::Result<()> {
        let second = self.at("var/lib/dbus/machine-id");
        match second.symlink_metadata() {
            Ok(facts) if facts.is_file() => foreign::put(second, id),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Sets the name servers. Written anew for those that the family has.
    fn set_resolvers(&self, identity: &Identity) -> io::Result<()> {
        let resolvers = identity.route.iter().flat_map(|route| &route.resolvers);
        let resolvers: Vec<_> = resolvers.copied().collect();
        self.name_resolvers(&resolvers)
    }

    fn name_resolvers(&self, resolvers: &[Ipv4Addr]) -> io::Result<()> {
        let lines: String = resolvers
            .iter()
            .map(|resolver| format!("nameserver {resolver}\n"))
            .collect();
        let path = self.at("etc/resolv.conf");
        if lines.is_empty() || foreign::text(&path).is_ok_and(|old| old == lines) {
            return Ok(());
        }
        // A link, as a rule, to what some service would write if it ran.
        self.put("etc/resolv.conf", &lines)
    }

    /// A VM can look its own name up.
    fn set_hosts(&self, identity: &Identity) -> io::Result<()> {
        let path = self.at("etc/hosts");
        let is_link = path.is_symlink();
        let old = match foreign::text(&path) {
            Ok(old) => old,
            Err(error) if is_link || error.kind() == io::ErrorKind::NotFound => LOCAL.to_owned(),
            // It would be lost.
            Err(error) => return Err(error),
        };
        // Of a file that may be any only what hosts(5) has.
        let is_address = |word: &str| word.parse::<IpAddr>().is_ok();
        let names = |line: &str| line.split_whitespace().next().is_some_and(is_address);
        let says = |line: &str| line.trim_start().is_empty() || line.trim_start().starts_with('#');
        let lines = old.lines().filter(|line| !line.ends_with(MARK));
        let mut text: String = lines
            .filter(|line| !is_link || names(line) || says(line))
            .map(|line| format!("{line}\n"))
            .collect();
        if is_link && !text.lines().any(names) {
            text.insert_str(0, LOCAL);
        }
        text.push_str(&format!(
            "{} {} {MARK}\n",
            identity.address.ip, identity.name
        ));
        self.put("etc/hosts", &text)
    }
}

/// The VM's id, spelt as machine-id(5) wants it: 32 hexadecimal digits, and no two
/// ids are spelt alike.
fn machine_id(vm: VmId) -> String {
    let digits: String = vm
        .as_str()
        .bytes()
        .map(|letter| format!("{letter:02x}"))
        .collect();
    format!("{digits:0<32}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::{Address, Epoch, FamilyId, Mac, Member, Route};
    use std::{net::Ipv4Addr, os::unix::fs::symlink};

    fn identity() -> Identity {
        let ip = Ipv4Addr::new(10, 64, 0, 3);
        Identity {
            vm: VmId::random(),
            family: FamilyId::random(),
            member: Member(1),
            epoch: Epoch::random(),
            name: "p-1".parse().expect("a name"),
            address: Address {
                ip,
                prefix: 24,
                mac: Mac([2, 0, 0, 0, 0, 1]),
            },
            route: Some(Route {
                gateway: Ipv4Addr::new(10, 64, 0, 1),
                resolvers: vec![Ipv4Addr::new(10, 64, 0, 1)],
            }),
            parent_ip: ip,
            seed: [0; 32],
        }
    }

    #[test]
    fn files_that_cannot_be_written_are_told_of_and_the_others_are_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        assert_eq!(write(root, &identity()).len(), 4, "there is no /etc");

        fs::create_dir_all(root.join("etc/machine-id")).expect("made");
        fs::write(root.join("etc/hosts"), "::1 x\n10.0.0.9 p # forkyard\n").expect("written");
        symlink("../run/nowhere", root.join("etc/resolv.conf")).expect("linked");
        let told = write(root, &identity());
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("/etc/machine-id is not this VM's: "),
            "{told:?}"
        );
        let text = |path: &str| fs::read_to_string(root.join(path)).expect(path);
        assert_eq!(text("etc/hostname"), "p-1\n");
        assert_eq!(text("etc/resolv.conf"), "nameserver 10.64.0.1\n");
        assert_eq!(text("etc/hosts"), "::1 x\n10.64.0.3 p-1 # forkyard\n");
    }

    #[test]
    fn nothing_is_written_where_a_link_of_the_images_leads() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        fs::create_dir(root.join("etc")).expect("made");
        let users = "root:x:0:0::/root:/bin/sh\n";
        fs::write(root.join("etc/passwd"), users).expect("written");
        for name in ["hosts", "hostname", "machine-id", "resolv.conf"] {
            symlink("passwd", root.join("etc").join(name)).expect("linked");
        }
        assert_eq!(write(root, &identity()), Vec::<String>::new());
        let text = |path: &str| fs::read_to_string(root.join("etc").join(path)).expect(path);
        assert_eq!(text("passwd"), users);
        let local = "127.0.0.1 localhost\n10.64.0.3 p-1 # forkyard\n";
        assert_eq!(text("hosts"), local);
        assert_eq!(text("hostname"), "p-1\n");
        // Links to each other: once one is replaced, the other leads to it.
        for (name, target) in [("hosts", "hostname"), ("hostname", "hosts")] {
            fs::remove_file(root.join("etc").join(name)).expect("removed");
            symlink(target, root.join("etc").join(name)).expect("linked");
        }
        assert_eq!(write(root, &identity()), Vec::<String>::new());
        assert_eq!(
            (text("hosts"), text("hostname")),
            (local.into(), "p-1\n".into())
        );
        // A link to names of hosts keeps them.
        fs::write(root.join("etc/names"), "# ours\n::1 x\n").expect("written");
        fs::remove_file(root.join("etc/hosts")).expect("removed");
        symlink("names", root.join("etc/hosts")).expect("linked");
        assert_eq!(write(root, &identity()), Vec::<String>::new());
        assert_eq!(text("hosts"), "# ours\n::1 x\n10.64.0.3 p-1 # forkyard\n");
    }

    #[test]
    fn a_file_that_nobody_reads_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        fs::create_dir(root.join("etc")).expect("made");
        for name in ["hostname", "hosts", "resolv.conf"] {
            let pipe = root.join("etc").join(name);
            nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("made");
        }
        assert_eq!(write(root, &identity()).len(), 3);
    }

    #[test]
    fn hosts_that_are_too_many_to_read_stay_as_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        fs::create_dir(root.join("etc")).expect("made");
        let path = root.join("etc/hosts");
        let hosts = "::1 x\n".repeat(1 << 20);
        fs::write(&path, &hosts).expect("written");
        let told = write(root, &identity());
        assert!(told.len() == 1 && told[0].contains("too long"), "{told:?}");
        assert!(fs::read(&path).expect("there") == hosts.as_bytes());
    }

    #[test]
    fn a_machine_id_is_32_hexadecimal_digits_and_another_for_every_vm() {
        let (a, b) = (machine_id(VmId::random()), machine_id(VmId::random()));
        assert!(
            a.len() == 32 && a.bytes().all(|b| b.is_ascii_hexdigit()),
            "{a}"
        );
        assert_ne!(a, b);
    }
}
