//! Words about a VM's network.

use clap::{Args as ClapArgs, ValueEnum};
use forkyard_types::{
    Allow, BitRate, Destination, NetworkPolicy, OwnAddress, Publish, Reach, WayOut,
};
use std::{net::Ipv4Addr, str::FromStr};

/// Network policy of a VM, and of its clones after it.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Network, for the VM and its clones")]
pub struct Network {
    /// The way out: none, or nat, as if the host itself opened the connection; implied by
    /// --allow and --deny. Routed and bridge: nat, and the VM has the address --ip besides.
    #[arg(long, value_enum)]
    pub net: Option<Attached>,
    /// Address by which this VM is reached from outside, and seen there, and none of its clones:
    /// with `--net routed` one that the network outside routes to this host, with `--net bridge` one of a
    /// network that the host is in. For several VMs a range, or the option repeated.
    #[arg(long, value_name = "ADDRESS[-ADDRESS]", requires = "net")]
    pub ip: Vec<Range>,
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

/// A VM's place on the network outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Attached {
    /// None: VMs of the family reach each other alone.
    None,
    /// By the host's own addresses.
    Nat,
    /// By an address of its own that is routed to the host.
    Routed,
    /// By an address of its own in a network of the host's.
    Bridge,
}

impl Attached {
    /// The family's way out, and how packets for the VM's own address get here if it has one.
    fn parts(self) -> (Net, Option<Reach>) {
        match self {
            Self::None => (Net::None, None),
            Self::Nat => (Net::Nat, None),
            Self::Routed => (Net::Nat, Some(Reach::Routed)),
            Self::Bridge => (Net::Nat, Some(Reach::Bridge)),
        }
    }
}

/// Addresses from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    first: Ipv4Addr,
    last: Ipv4Addr,
}

impl Range {
    /// As many as VMs of one request.
    const MOST: u32 = 256;

    fn all(self) -> impl Iterator<Item = Ipv4Addr> {
        (u32::from(self.first)..=u32::from(self.last)).map(Ipv4Addr::from)
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let parse = || {
            let (first, last): (Ipv4Addr, Ipv4Addr) = (first.parse().ok()?, last.parse().ok()?);
            let more = u32::from(last).checked_sub(u32::from(first))?;
            let each = [first, last].map(|ip| OwnAddress::new(ip, Reach::Routed));
            (more < Self::MOST && each.iter().all(Option::is_some)).then_some(Self { first, last })
        };
        parse().ok_or_else(|| {
            format!(
                "{word:?}: wanted an address that one machine may have, or a range of up to {}",
                Self::MOST
            )
        })
    }
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
    /// As the API has it. A VM that joins a family has that family's way out.
    pub fn policy(self, join: Option<&str>) -> anyhow::Result<NetworkPolicy> {
        let (net, reach) = self.net.map(Attached::parts).unzip();
        let mut publish = self.publish;
        match reach.flatten() {
            Some(_) if self.ip.is_empty() => anyhow::bail!(
                "--net routed and --net bridge give the VM an address of its own: say which with --ip"
            ),
            None if !self.ip.is_empty() => {
                anyhow::bail!("--ip is for --net routed or --net bridge: say which")
            }
            reach => {
                let ips = self.ip.iter().flat_map(|range| range.all());
                let own = ips.filter_map(|ip| OwnAddress::new(ip, reach?));
                publish.extend(own.map(Publish::Address));
            }
        }
        let net = match (join, reach.flatten()) {
            (Some(_), Some(_)) => None,
            (Some(_), None) | (None, _) => net,
        };
        Ok(NetworkPolicy {
            out: way_out(net, &self.allow, &self.deny),
            allow: self.allow,
            deny: self.deny,
            rate: self.rate,
            publish,
        })
    }
}
