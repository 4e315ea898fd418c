//! `port-forward`: ports of this machine's that lead to ports of a VM's.
//!
//! ```text
//! program --TCP--> 127.0.0.1:LOCAL --a request of the API--> daemon --> GUEST in the VM
//! ```
//!
//! A connection that is refused is closed, and told on standard error; others go on.

use crate::{args::Format, output};
use anyhow::Context;
use clap::Args;
use forkyard_api_client::{Client, of_vm};
use forkyard_types::{GuestPort, VmView};
use hyper::Method;
use serde::Serialize;
use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    str::FromStr,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    time::sleep,
};

/// Before another try where no connection can be taken.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// `port-forward`
#[derive(Debug, Args)]
pub struct PortForward {
    /// Name or id of the VM.
    pub vm: String,
    /// Ports: of this machine, and of the VM if that is another. 0 is any that is free.
    #[arg(required = true, value_name = "LOCAL[:GUEST]")]
    pub pairs: Vec<Pair>,
    /// Address of this machine to listen on. Beyond the loopback, others reach the VM, too.
    #[arg(long, default_value = "127.0.0.1")]
    pub address: IpAddr,
}

/// A port here, and the one of the guest that it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    local: u16,
    guest: GuestPort,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let (local, guest) = word.split_once(':').unwrap_or((word, word));
        let local = local
            .parse()
            .map_err(|_| format!("{local:?}: wanted a port: 0 to 65535"))?;
        let guest = guest.parse::<GuestPort>().map_err(|error| match local {
            0 if guest == word => "which port of the VM? wanted 0:GUEST".to_owned(),
            _ => error.to_string(),
        })?;
        Ok(Self { local, guest })
    }
}

/// Address at which a port of a VM is reached.
#[derive(Debug, Serialize)]
struct Forwarded<'a> {
    listen: SocketAddr,
    vm: &'a str,
    port: GuestPort,
}

/// Listens on each port and passes connections on until it is interrupted.
pub async fn port_forward(
    client: &Client,
    format: Format,
    wanted: PortForward,
) -> anyhow::Result<ExitCode> {
    let path = of_vm(&wanted.vm, "");
    let vm: VmView = client.call(Method::GET, &path).await?;
    // By its id: another VM may get its name.
    let (id, name): (Arc<str>, _) = (vm.id.to_string().into(), vm.name.to_string());
    // All or none.
    let mut listeners = Vec::new();
    for pair in &wanted.pairs {
        let at = SocketAddr::new(wanted.address, pair.local);
        let listener = TcpListener::bind(at)
            .await
            .with_context(|| format!("cannot listen on {at}: choose another port, or 0"))?;
        listeners.push((listener, pair.guest));
    }
    for (listener, port) in listeners {
        let listen = listener.local_addr().context("no address to listen on")?;
        match format {
            Format::Text => say!("{listen} -> {name}:{port}"),
            Format::Json => {
                let vm = name.as_str();
                say!(
                    "{}",
                    serde_json::to_string(&Forwarded { listen, vm, port })?
                );
            }
        }
        tokio::spawn(accept(client.clone(), id.clone(), listener, port));
    }
    let of = |kind| signal(kind).context("cannot handle signals");
    let (mut interrupt, mut terminate) =
        (of(SignalKind::interrupt())?, of(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => Ok(ExitCode::from(130)),
        _ = terminate.recv() => Ok(ExitCode::from(143)),
    }
}

async fn accept(client: Client, vm: Arc<str>, listener: TcpListener, port: GuestPort) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (client, vm) = (client.clone(), vm.clone());
                tokio::spawn(async move {
                    if let Err(error) = pass_on(&client, &vm, stream, port).await {
                        output::complain(&error);
                    }
                });
            }
            Err(error) => {
                // Out of file descriptors, say: others may be closed meanwhile.
                tell!("forkyard: no connection taken: {error}");
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

async fn pass_on(
    client: &Client,
    vm: &str,
    mut local: TcpStream,
    port: GuestPort,
) -> anyhow::Result<()> {
    let refused = match client.connect(vm, port).await {
        Ok(mut remote) => match copy_bidirectional(&mut local, &mut remote).await {
            Ok(_) => return Ok(()),
            // One of the two programs has gone: nothing that a user must know.
            Err(_) => Ok(()),
        },
        Err(error) => Err(error.into()),
    };
    // The program is to see that this is no end in order.
    let _ = local.set_zero_linger();
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_leads_to_the_same_one_or_to_the_one_named() {
        for (word, local, guest) in [
            ("8080", 8080, 8080),
            ("8080:80", 8080, 80),
            ("0:65535", 0, 65535),
        ] {
            let guest = GuestPort::new(guest).expect("a port");
            assert_eq!(word.parse(), Ok(Pair { local, guest }), "{word}");
        }
    }

    #[test]
    fn what_is_no_pair_of_ports_is_refused() {
        for word in [
            "",
            ":",
            "80:",
            ":80",
            "x",
            "80:x",
            "80:0",
            "0",
            "65536",
            "80:65536",
            "-1",
            "1:2:3",
            "80 ",
            "127.0.0.1:80:80",
        ] {
            let error = word.parse::<Pair>().expect_err(word);
            assert!(error.contains("wanted"), "{word}: {error}");
        }
    }
}
