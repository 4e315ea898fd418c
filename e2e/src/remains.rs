//! Leftovers of a host: everything it may have made, looked for where the
//! kernel keeps it rather than where the host says it is.

use crate::{Place, outside::UPLINK};
use nix::net::if_::if_nameindex;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Files a host without VMs may have: its records, its certificates, its logs,
/// its locks, its known hosts, and empty folders.
const MAY_STAY: [&str; 20] = [
    "state/lock",
    "state/forkyard.db",
    "state/forkyard.db-shm",
    "state/forkyard.db-wal",
    "state/substrate.key",
    "state/e2b.key",
    "state/tls/cert.pem",
    "state/tls/key.pem",
    "state/cluster/authority.pem",
    "state/cluster/authority-key.pem",
    "state/cluster/node.pem",
    "state/cluster/node-key.pem",
    "state/cluster/etcd.json",
    "run/lock",
    "run/daemon.log",
    "run/pager.log",
    "run/blockd.log",
    "peers.toml",
    "run/sched.lock",
    "run/sched.log",
];

/// Everything found that should not be there, one line each.
pub fn find(place: &Place, folder: &Path) -> Vec<String> {
    let mut left: Vec<String> = Vec::new();
    let processes = place.processes();
    left.extend(
        processes
            .into_iter()
            .map(|p| format!("process {}: {}", p.pid, p.command)),
    );
    left.extend(
        place
            .mounts_under(folder)
            .into_iter()
            .map(|m| format!("mount {m}")),
    );
    left.extend(place.within(network));
    left.extend(
        folders(place.cgroup())
            .into_iter()
            .map(|group| format!("cgroup {}", group.display())),
    );
    left.extend(
        files(folder)
            .into_iter()
            .filter(|file| !MAY_STAY.iter().any(|name| *file == folder.join(name)))
            .map(|file| format!("file {}", file.display())),
    );
    left
}

/// Interfaces, tables and sockets of the network this runs in.
fn network() -> Vec<String> {
    let interfaces = if_nameindex().expect("interfaces");
    let names = interfaces
        .iter()
        .map(|link| link.name().to_string_lossy().into_owned());
    let mut left: Vec<_> = names
        .filter(|name| name != "lo" && name != UPLINK)
        .map(|name| format!("interface {name}"))
        .collect();
    let tables = Command::new("nft")
        .args(["list", "tables"])
        .output()
        .expect("nft");
    left.extend(
        String::from_utf8_lossy(&tables.stdout)
            .lines()
            .map(|line| format!("nftables {line}")),
    );
    let sockets = fs::read_to_string("/proc/thread-self/net/unix").expect("sockets");
    let named = sockets.lines().filter_map(|line| line.split_once(" @"));
    left.extend(named.map(|(_, name)| format!("abstract socket {name}")));
    left
}

/// Every folder under a folder.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let children = fs::read_dir(folder).into_iter().flatten().flatten();
    children
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .flat_map(|path| {
            let mut below = folders(&path);
            below.push(path);
            below
        })
        .collect()
}

/// Every file under a folder, and every folder that should have gone, with what is
/// in it: one that is named after a VM.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let of_vms = folder.ends_with("vms");
    entries
        .flatten()
        .map(|entry| entry.path())
        .flat_map(|path| match path.is_dir() {
            true if of_vms => {
                let mut left = files(&path);
                left.push(path);
                left
            }
            true => files(&path),
            false => vec![path],
        })
        .collect()
}
