//! Words about a VM's network.

use clap::{Args as ClapArgs, ValueEnum};
use forkyard_types::{Allow, BitRate, Destination, NetworkPolicy, Publish, WayOut};

/// Network policy of a VM, and of its clones after it.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Network, for the VM and its clones")]
pub struct Network {
    /// The way out: none, or nat, as if the host itself opened the connection.
    /// Implied by --allow and --deny.
    #[arg(long, value_enum)]
    pub net: Option<Net>,
    /// Reach only this, as 192.0.2.0/24, 192.0.2.7:443, example.org or *.example.org:443; can be
    /// repeated. Without it, all but private networks.
    #[arg(long, value_name = "DESTINATION[:PORT]")]
    pub allow: Vec<Destination>,
    /// Do not reach this, even if it is allowed; can be repeated.
    #[arg(long, value_name = "NETWORK[:PORT]")]
    pub deny: Vec<Allow>,
    /// Most that each VM may send, and receive, beyond its family: as 10mbit.
    #[arg(long)]
    pub rate: Option<BitRate>,
    /// Have a port of the host lead to one of the VM, and never to a clone; of
    /// UDP with /udp at the end; can be repeated.
    #[arg(long, short, value_name = "[ADDRESS:]PORT:GUESTPORT")]
    pub publish: Vec<Publish>,
}

/// The way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Net {
    /// None: VMs of the family reach each other alone.
    None,
    /// By the host's own addresses.
    Nat,
}

/// The way out that these words ask for.
pub fn way_out(net: Option<Net>, allow: &[Destination], deny: &[Allow]) -> WayOut {
    match net {
        Some(Net::Nat) => WayOut::Nat,
        Some(Net::None) => WayOut::None,
        None if allow.is_empty() && deny.is_empty() => WayOut::None,
        None => WayOut::Nat,
    }
}

impl Network {
    /// As the API has it.
    pub fn policy(self) -> NetworkPolicy {
        NetworkPolicy {
            out: way_out(self.net, &self.allow, &self.deny),
            allow: self.allow,
            deny: self.deny,
            rate: self.rate,
            publish: self.publish,
        }
    }
}
