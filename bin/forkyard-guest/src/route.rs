//! The way out of a family that had none when this guest got its address, as a command of the host's.

use crate::agent::identity::{etc, network};
use std::{net::Ipv4Addr, path::Path, process::ExitCode};

/// Takes the gateway, and the resolvers if any are named.
pub fn main(words: &[String]) -> ExitCode {
    match take(words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn take(words: &[String]) -> Result<(), String> {
    let addresses: Result<Vec<Ipv4Addr>, _> = words.iter().map(|word| word.parse()).collect();
    let addresses = addresses.map_err(|_| format!("{words:?} are no addresses"))?;
    let Some((gateway, resolvers)) = addresses.split_first() else {
        return Err("no gateway is named".to_owned());
    };
    network::take_gateway(*gateway)?;
    etc::write_resolvers(Path::new("/"), resolvers)
        .map_err(|error| format!("/etc/resolv.conf cannot be written: {error}"))
}
