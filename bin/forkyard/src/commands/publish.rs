//! `publish` and `unpublish`: ports of the host that lead to a VM.

use crate::{args::Format, output};
use clap::Args;
use forkyard_api_client::{Client, of_vm};
use forkyard_types::{Publish, PublishRequest, Transport, VmView};
use hyper::Method;
use std::{process::ExitCode, str::FromStr};

/// `publish`
#[derive(Debug, Args)]
pub struct Ports {
    /// Name or id of the VM.
    vm: String,
    /// Port of the host and port of the VM; of UDP with /udp at the end. All of them, or none.
    #[arg(required = true, value_name = "[ADDRESS:]PORT:GUESTPORT")]
    ports: Vec<Publish>,
}

/// `unpublish`
#[derive(Debug, Args)]
pub struct Closed {
    /// Name or id of the VM.
    vm: String,
    /// Port of the host; of UDP with /udp at the end.
    #[arg(required = true, value_name = "PORT")]
    ports: Vec<HostPort>,
}

/// A port of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostPort(u16, Transport);

impl FromStr for HostPort {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let (port, transport) = match word.split_once('/') {
            None | Some((_, "tcp")) => (word.trim_end_matches("/tcp"), Transport::Tcp),
            Some((port, "udp")) => (port, Transport::Udp),
            Some(_) => ("", Transport::Tcp),
        };
        match port.parse() {
            Ok(port @ 1..) => Ok(Self(port, transport)),
            Ok(0) | Err(_) => Err("wanted a port of the host, and /udp if not TCP is meant".into()),
        }
    }
}

/// Has ports of the host lead to a VM.
pub async fn publish(client: &Client, format: Format, wanted: Ports) -> anyhow::Result<ExitCode> {
    let request = PublishRequest {
        ports: wanted.ports,
    };
    let vm: VmView = client
        .post(&of_vm(&wanted.vm, "published"), &request)
        .await?;
    show(format, &vm)
}

/// Closes ports of the host that lead to a VM.
pub async fn unpublish(
    client: &Client,
    format: Format,
    wanted: Closed,
) -> anyhow::Result<ExitCode> {
    let mut last = None;
    for HostPort(port, transport) in wanted.ports {
        let path = of_vm(&wanted.vm, &format!("published/{port}"));
        let path = format!("{path}?transport={transport}");
        last = Some(client.call::<VmView>(Method::DELETE, &path).await?);
    }
    match last {
        Some(vm) => show(format, &vm),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn show(format: Format, vm: &VmView) -> anyhow::Result<ExitCode> {
    match format {
        Format::Json => output::json(vm)?,
        Format::Text => vm.published.iter().for_each(|port| say!("{port}")),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_the_host_is_a_number_and_a_transport() {
        assert_eq!("80".parse(), Ok(HostPort(80, Transport::Tcp)));
        assert_eq!("80/tcp".parse(), Ok(HostPort(80, Transport::Tcp)));
        assert_eq!("53/udp".parse(), Ok(HostPort(53, Transport::Udp)));
        for wrong in ["", "0", "80:80", "80/sctp", "65536", "/udp"] {
            assert!(wrong.parse::<HostPort>().is_err(), "{wrong}");
        }
    }
}
