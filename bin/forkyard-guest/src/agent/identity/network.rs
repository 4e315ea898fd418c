//! Another place on the family's network.

use super::{
    connections::{self, Closed},
    routes,
};
use crate::init::{Outcome, doing};
use forkyard_sys_guest::{announce::announce, interface::Interface};
use forkyard_types::{Address, Route};
use nix::net::if_::if_nametoindex;
use std::{
    fs, io,
    net::Ipv4Addr,
    sync::{Mutex, PoisonError},
};

/// Origin of the connections there may be when a VM gets its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// The VM's own: it has just booted.
    Own,
    /// The parent's, which must end.
    Parents,
}

/// Takes the address, and ends what was the parent's. What this kernel cannot
/// do, one line each.
pub fn become_address(
    address: Address,
    route: Option<&Route>,
    connections: Connections,
) -> Outcome<Vec<String>> {
    let name = interface().ok_or("this VM has no network interface")?;
    let card = Interface::new(&name).map_err(doing("open the network interface"))?;
    let index = if_nametoindex(name.as_str()).map_err(doing("look the interface up"))?;
    let added = routes::note(index).map_err(doing("read the routes"))?;
    let mut notes = Vec::new();
    if connections == Connections::Parents {
        let closed = connections::close_foreign().map_err(doing("end the parent's connections"))?;
        if closed == Closed::Unsupported {
            notes.push(
                "this kernel cannot end the parent's connections (CONFIG_INET_DIAG_DESTROY)"
                    .to_owned(),
            );
        }
    }
    // With it goes what the parent knew of its neighbours.
    card.set_mac(address.mac.0).map_err(doing("set the MAC"))?;
    card.set_address(address.ip, address.prefix)
        .map_err(doing("set the address"))?;
    card.bring_up().map_err(doing("bring the network up"))?;
    if let Some(route) = route {
        set_gateway(&card, route.gateway)?;
    }
    Interface::new("lo")
        .and_then(|lo| lo.bring_up())
        .map_err(doing("bring the loopback up"))?;
    // A route the parent had is worth less than the clone.
    if let Err(error) = routes::restore(added, address.ip) {
        notes.push(format!("a route was not made again: {error}"));
    }
    Ok(notes)
}

/// Takes the way out of a family that had none when this VM got its address. One that is
/// there is left alone.
pub fn take_gateway(gateway: Ipv4Addr) -> Outcome<()> {
    let name = interface().ok_or("this VM has no network interface")?;
    let card = Interface::new(&name).map_err(doing("open the network interface"))?;
    set_gateway(&card, gateway)
}

/// Makes the way out. The kernel refuses one that is there, which a VM has that is woken at the place
/// it was docked at.
fn set_gateway(card: &Interface, gateway: Ipv4Addr) -> Outcome<()> {
    match card.set_gateway(gateway) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        set => set.map_err(doing("set the way out")),
    }
}

/// Tells the neighbours, now that they can hear, where this VM is.
pub fn announce_address(address: Address) {
    let said = match interface() {
        Some(name) => announce(&name, address.mac.0, address.ip),
        None => return,
    };
    // They ask, then; it takes a second longer at worst.
    if let Err(error) = said {
        eprintln!("forkyard-guest: address not announced: {error}");
    }
}

/// The first interface that is a device and not made of software. A clone
/// knows it from its parent.
fn interface() -> Option<String> {
    static KNOWN: Mutex<Option<String>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_there = |name: &String| if_nametoindex(name.as_str()).is_ok();
    if !known.as_ref().is_some_and(is_there) {
        *known = find_interface();
    }
    known.clone()
}

fn find_interface() -> Option<String> {
    let mut names: Vec<_> = fs::read_dir("/sys/class/net")
        .ok()?
        .flatten()
        .filter(|entry| entry.path().join("device").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names.into_iter().next()
}
