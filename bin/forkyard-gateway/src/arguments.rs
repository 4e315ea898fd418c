//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use forkyard_api_client::{Place, Trust};
use forkyard_types::{GatewayBase, GuestPort};
use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

/// HTTP, WebSockets and TCP for servers in VMs.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  forkyard-gateway serve --listen 127.0.0.1:8000 --domain localhost\n  forkyard-gateway share p 8080 --expires 1h --base http://localhost:8000"
)]
pub struct Arguments {
    /// Folder of the daemon's sockets.
    #[arg(
        long,
        global = true,
        env = "FORKYARD_RUN_DIR",
        default_value = "/run/forkyard"
    )]
    pub run_dir: PathBuf,
    /// A daemon elsewhere: https://HOST:PORT, with the token in FORKYARD_TOKEN.
    #[arg(long, global = true, env = "FORKYARD_URL")]
    pub url: Option<Place>,
    /// Certificate of that daemon: sha256:FINGERPRINT, or a file in PEM with it or its authority.
    #[arg(long, global = true, env = "FORKYARD_CA", value_name = "CERTIFICATE")]
    pub ca: Option<Trust>,
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Pass requests on until interrupted.
    #[command(
        after_help = "Examples:\n  forkyard-gateway serve --listen 0.0.0.0:443 --domain vms.example.org --tls-cert cert.pem --tls-key key.pem\n  forkyard-gateway serve --tcp 127.0.0.1:5432=db:5432"
    )]
    Serve(Serve),
    /// Make a token with which a port of a VM is reached, until it expires.
    #[command(
        after_help = "Example: forkyard-gateway share p 8080 --expires 1h --base https://vms.example.org"
    )]
    Share(Share),
}

/// `serve`
#[derive(Debug, Args)]
pub struct Serve {
    /// Address for HTTP.
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "tcp")]
    pub listen: Option<SocketAddr>,
    /// Domain below which PORT-VM is a port of a VM.
    #[arg(long, default_value = "localhost", value_parser = domain)]
    pub domain: String,
    /// Key that signs tokens; made if it is not there. Gateways with the same one take each
    /// other's tokens.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/lib/forkyard/gateway.key"
    )]
    pub key: PathBuf,
    /// Pass on requests without a token: every port of every VM is then open to all that can reach
    /// this address.
    #[arg(long)]
    pub open: bool,
    /// Let a paused VM go on, and boot a stopped one, when there is a request for it.
    #[arg(long)]
    pub wake: bool,
    /// Seconds for which requests wait while a VM moves, wakes, or its daemon starts again.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub patience: u32,
    /// Most connections of one address at once; all come from one if there is a proxy in front.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub per_address: u16,
    /// Address at which metrics are told, at /metrics, to all that reach it.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Certificate, in PEM; HTTPS is spoken then, and nothing else. Loaded anew when its file or the
    /// key's has changed, and on SIGHUP.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// TCP at an address passed on to a port of a VM, without a token; may be repeated.
    #[arg(long, value_name = "ADDRESS:PORT=VM:PORT")]
    pub tcp: Vec<Forward>,
}

/// `share`
#[derive(Debug, Args)]
pub struct Share {
    /// Name or id of the VM.
    pub vm: String,
    /// The port.
    pub port: GuestPort,
    /// Time for which it holds, as in 90s, 10m, 8h or 2d.
    #[arg(long, default_value = "1h", value_parser = humantime::parse_duration)]
    pub expires: Duration,
    /// The gateway's key.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/lib/forkyard/gateway.key"
    )]
    pub key: PathBuf,
    /// Address at which browsers reach the gateway, with its domain: the whole address is printed then.
    #[arg(long, value_name = "http[s]://DOMAIN[:PORT]")]
    pub base: Option<GatewayBase>,
    /// Format of the output.
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// Formats of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// TCP that is passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Address here.
    pub listen: SocketAddr,
    /// VM: name or id.
    pub vm: String,
    /// Port of the VM.
    pub port: GuestPort,
}

impl FromStr for Forward {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text}: wanted is ADDRESS:PORT=VM:PORT");
        let (listen, server) = text.split_once('=').ok_or_else(wrong)?;
        let (vm, port) = server.rsplit_once(':').ok_or_else(wrong)?;
        Ok(Self {
            listen: listen.parse().map_err(|_| wrong())?,
            vm: vm.to_owned(),
            port: port.parse().map_err(|_| wrong())?,
        })
    }
}

fn domain(text: &str) -> Result<String, String> {
    let plain = |it: u8| it.is_ascii_alphanumeric() || it == b'-' || it == b'.';
    let name = text.trim_matches('.').to_ascii_lowercase();
    match !name.is_empty() && name.bytes().all(plain) {
        true => Ok(name),
        false => Err(format!("{text} is no name of a domain")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_words_do_not_contradict_each_other() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn forwards_are_read_and_nonsense_is_refused() {
        let forward: Forward = "127.0.0.1:5432=db:5433".parse().expect("a forward");
        assert_eq!(
            (forward.vm.as_str(), forward.port.to_string()),
            ("db", "5433".into())
        );
        for wrong in ["5432=db:1", "127.0.0.1:1=db", "127.0.0.1:1=db:0", ""] {
            wrong.parse::<Forward>().expect_err(wrong);
        }
    }

    #[test]
    fn one_that_listens_nowhere_is_refused() {
        let parse = |words: &str| Arguments::try_parse_from(words.split(' '));
        parse("g serve").expect_err("no address");
        parse("g serve --tcp 127.0.0.1:1=a:2").expect("an address");
        parse("g serve --listen 127.0.0.1:1 --tls-cert c").expect_err("no key");
    }
}
