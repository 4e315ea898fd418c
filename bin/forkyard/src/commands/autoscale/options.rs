//! Words of `autoscale`.

use anyhow::ensure;
use clap::{Args, ValueEnum};
use forkyard_autoscale::{Cpu, Latency, LoadSignal, Queue, ScalerConfig};
use forkyard_types::GuestPort;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// `autoscale`
#[derive(Debug, Args)]
pub struct Autoscale {
    /// Name or id of the VM that is forked. A running one is a server itself; of a checkpoint all
    /// servers are clones.
    pub vm: String,
    /// Address at which HAProxy takes requests.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Port in the VMs that their server listens on.
    #[arg(long, default_value = "80")]
    pub port: GuestPort,
    /// Fewest servers.
    #[arg(long, value_name = "SERVERS", default_value_t = 1)]
    pub min: u16,
    /// Most servers, the VM and those that come and go included.
    #[arg(long, value_name = "SERVERS", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub max: u16,
    /// Requests that a server is sent at a time; others wait in HAProxy.
    // With those that checks take, no more than a VM's connections to its ports.
    #[arg(long, value_name = "REQUESTS", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=48))]
    pub concurrency: u16,
    /// Path that a server's health is asked at, each second: 2xx and 3xx are healthy.
    #[arg(long, value_name = "PATH", default_value = "/", value_parser = path)]
    pub check: String,
    /// Measure of load.
    #[arg(long, value_enum, default_value = "queue")]
    pub signal: Kind,
    /// Mean time of an answer at which servers are saturated, for `--signal latency`.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = humantime::parse_duration)]
    pub target: Duration,
    /// Load at which servers are doubled; 1 is saturation.
    #[arg(long, value_name = "LOAD", default_value_t = 0.9)]
    pub grow_at: f64,
    /// Load that may be left for each when others are retired.
    #[arg(long, value_name = "LOAD", default_value_t = 0.5)]
    pub shrink_at: f64,
    /// Time whose mean load decides to double.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    pub grow_after: Duration,
    /// Time for which load has to be low before servers are retired; longer if they were wanted
    /// again soon.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = humantime::parse_duration)]
    pub shrink_after: Duration,
    /// Time for which a server's checks may fail before it is replaced.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub sick_after: Duration,
    /// Spare the VM that is forked: clones come a little later.
    #[arg(long)]
    pub live: bool,
    /// Hosts to make clones on, in turns: nodes of the cluster or peers by name, and `here`.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub to: Vec<String>,
    /// In a cluster: make each clone on the node with most vCPUs free.
    #[arg(long, conflicts_with = "to")]
    pub spread: bool,
    /// More of HAProxy's configuration, such as a frontend with TLS, whose `use_backend` is
    /// `servers`; may be repeated.
    #[arg(long, value_name = "FILE")]
    pub haproxy_config: Vec<PathBuf>,
}

/// Measurements of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Requests in servers and waiting, per request that servers take at a time.
    Queue,
    /// Part of their vCPUs' time that servers use.
    Cpu,
    /// Mean time of an answer, the wait included, per `--target`.
    Latency,
}

impl Autoscale {
    /// The policy's limits and times.
    pub fn config(&self) -> anyhow::Result<ScalerConfig> {
        ensure!(
            self.target > Duration::ZERO,
            "--target is 0: servers would always be saturated"
        );
        let config = ScalerConfig {
            least: self.min,
            most: self.max,
            grow_at: self.grow_at,
            shrink_at: self.shrink_at,
            grow_after: self.grow_after,
            shrink_after: self.shrink_after,
            sick_after: self.sick_after,
            ..ScalerConfig::default()
        };
        config.check()?;
        Ok(config)
    }

    /// Signal that load is made of.
    pub fn measure(&self) -> Box<dyn LoadSignal> {
        match self.signal {
            Kind::Queue => Box::new(Queue),
            Kind::Cpu => Box::new(Cpu),
            Kind::Latency => Box::new(Latency {
                target: self.target,
            }),
        }
    }
}

/// A path, as HAProxy's configuration can have it.
fn path(word: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "/-._~?&=%+,:@".contains(c);
    match word.starts_with('/') && word.chars().all(fits) {
        true => Ok(word.to_owned()),
        false => Err("wanted a path from / on, escaped as in an address".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn a_path_is_one_word_that_says_nothing_else_to_haproxy() {
        for right in ["/", "/health?x=1&y=%20", "/a/b.php"] {
            assert_eq!(path(right), Ok(right.to_owned()));
        }
        for wrong in [
            "",
            "health",
            "/a b",
            "/a\nserver x",
            "/\"",
            "/#",
            "/\\",
            "/$X",
            "/'",
        ] {
            path(wrong).expect_err(wrong);
        }
    }
}
