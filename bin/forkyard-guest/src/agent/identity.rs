//! Becoming somebody: what makes this VM different from every other of its
//! family. On the way of every clone between waking and going on, so no
//! process is started and nothing is waited for.

use crate::init::{Outcome, doing};
use forkyard_guestlink::{Cloned, IDENTITY_FILE, SOCKET};
use forkyard_sys_guest::{interface::Interface, random};
use forkyard_types::{Address, Identity, VmId};
use nix::{
    sys::time::TimeSpec,
    time::{ClockId, clock_settime},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

const HOSTS: &str = "/etc/hosts";
const MARK: &str = "# forkyard";

/// Applies all of it, as far as it goes; one line for each part that failed.
pub fn apply(identity: &Identity, cloned: Option<Cloned>) -> Vec<String> {
    [
        // Randomness before anything that might draw on it.
        random::reseed(identity.seed).map_err(doing("seed the kernel's random numbers")),
        set_clock(identity.wall_clock_ns),
        set_name(identity.name.as_str()),
        set_machine_id(identity.vm),
        set_address(identity.address),
        set_hosts(identity),
        tell_programs(identity, cloned),
    ]
    .into_iter()
    .filter_map(Result::err)
    .collect()
}

fn set_clock(ns: u64) -> Outcome {
    let seconds = i64::try_from(ns / 1_000_000_000).map_err(doing("set the clock"))?;
    let rest = i64::try_from(ns % 1_000_000_000).map_err(doing("set the clock"))?;
    clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::new(seconds, rest))
        .map_err(doing("set the clock"))
}

fn set_name(name: &str) -> Outcome {
    nix::unistd::sethostname(name).map_err(doing("set the host name"))?;
    fs::write("/etc/hostname", format!("{name}\n")).map_err(doing("write /etc/hostname"))
}

/// machine-id(5): 32 hexadecimal digits, unique to the machine.
fn set_machine_id(vm: VmId) -> Outcome {
    let id = format!("{}\n", machine_id(vm));
    fs::write("/etc/machine-id", &id).map_err(doing("write /etc/machine-id"))?;
    let second = Path::new("/var/lib/dbus/machine-id");
    // Often a link to the first.
    if second.symlink_metadata().is_ok_and(|facts| facts.is_file()) {
        fs::write(second, &id).map_err(doing("write /var/lib/dbus/machine-id"))?;
    }
    Ok(())
}

/// The VM's id, spelt as machine-id(5) wants it: no two ids are spelt alike.
fn machine_id(vm: VmId) -> String {
    let digits: String = vm
        .as_str()
        .bytes()
        .map(|letter| format!("{letter:02x}"))
        .collect();
    format!("{digits:0<32}")
}

fn set_address(address: Address) -> Outcome {
    let name = interface().ok_or("this VM has no network interface")?;
    let card = Interface::new(&name).map_err(doing("open the network interface"))?;
    // Down and up again: what the parent knew of its neighbours is forgotten.
    card.set_up(false)
        .map_err(doing("bring the network down"))?;
    card.set_mac(address.mac.0).map_err(doing("set the MAC"))?;
    card.set_address(address.ip, address.prefix)
        .map_err(doing("set the address"))?;
    card.set_up(true).map_err(doing("bring the network up"))?;
    Interface::new("lo")
        .and_then(|lo| lo.set_up(true))
        .map_err(doing("bring the loopback up"))
}

/// The first interface that is a device and not made of software.
fn interface() -> Option<String> {
    let mut names: Vec<_> = fs::read_dir("/sys/class/net")
        .ok()?
        .flatten()
        .filter(|entry| entry.path().join("device").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names.into_iter().next()
}

/// A VM can look its own name up.
fn set_hosts(identity: &Identity) -> Outcome {
    let old = fs::read_to_string(HOSTS).unwrap_or_else(|_| "127.0.0.1 localhost\n".to_owned());
    let mut text: String = old
        .lines()
        .filter(|line| !line.ends_with(MARK))
        .map(|line| format!("{line}\n"))
        .collect();
    text.push_str(&format!(
        "{} {} {MARK}\n",
        identity.address.ip, identity.name
    ));
    fs::write(HOSTS, text).map_err(doing("write /etc/hosts"))
}

/// Variables that tell a program who its VM is.
pub fn variables() -> Vec<(String, String)> {
    let text = fs::read_to_string(identity_file()).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

fn identity_file() -> PathBuf {
    Path::new(SOCKET).with_file_name(IDENTITY_FILE)
}

fn tell_programs(identity: &Identity, cloned: Option<Cloned>) -> Outcome {
    let text = format!(
        "FORKYARD_VM={}\nFORKYARD_NAME={}\nFORKYARD_ID={}\nFORKYARD_MEMBER={}\nFORKYARD_IP={}\nFORKYARD_PARENT_IP={}\nFORKYARD_EPOCH={}\n",
        identity.vm,
        identity.name,
        cloned.map_or(0, |cloned| cloned.id),
        identity.member.0,
        identity.address.ip,
        identity.parent_ip,
        identity.epoch,
    );
    fs::write(identity_file(), text).map_err(doing("write the identity file"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
