//! The configuration: hosts, front-ends, services and the name server.
//!
//! A configuration holds tokens and keys, and is refused if all users may read it, or its group write it.

use anyhow::{Context, bail, ensure};
use forkyard_api_client::TokenSecret;
use forkyard_types::GuestPort;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// The whole of a configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of this front-end, one of `frontend`.
    #[serde(default)]
    pub name: Option<String>,
    /// Address at which metrics are told, at /metrics.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// Bounds.
    #[serde(default)]
    pub bounds: Bounds,
    /// Hosts at which VMs may be, by the names that they have for each other.
    pub host: BTreeMap<String, HostEntry>,
    /// All front-ends, by name.
    #[serde(default)]
    pub frontend: BTreeMap<String, FrontendEntry>,
    /// Addresses for HTTP.
    #[serde(default)]
    pub http: Vec<HttpEntry>,
    /// Services, by name.
    pub service: BTreeMap<String, ServiceEntry>,
    /// Name server.
    #[serde(default)]
    pub dns: Option<DnsEntry>,
}

/// Bounds, in seconds where they are times.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// Time for which connections and requests wait while a VM moves or its daemon starts again.
    pub patience_s: u64,
    /// Time that open connections have after SIGTERM.
    pub drain_s: u64,
    /// Time without traffic after which a front-end that is not active counts as drained.
    pub quiet_s: u64,
    /// Most connections of one client's address at once.
    pub per_address: usize,
    /// Most bytes of a request's body that are kept to be sent again.
    pub replay_bytes: u64,
    /// Between two looks at each host, whether it tells of events or not.
    pub poll_s: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            patience_s: 30,
            drain_s: 30,
            quiet_s: 300,
            per_address: 256,
            replay_bytes: 64 << 10,
            poll_s: 5,
        }
    }
}

/// A host's daemon.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostEntry {
    /// Place of the daemon: `https://HOST:PORT` or `unix:///PATH/api.sock`.
    pub url: String,
    /// Token of it.
    #[serde(default)]
    pub token: Option<TokenSecret>,
    /// `sha256:…`, or a file of certificates; the system's if absent.
    #[serde(default)]
    pub trust: Option<String>,
}

/// A front-end, this one or another.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrontendEntry {
    /// Hosts to which it is the nearest.
    pub near: BTreeSet<String>,
    /// Public addresses, for the DNS.
    #[serde(default)]
    pub addresses: BTreeSet<IpAddr>,
    /// Own address by HTTP, for redirects: `https://NAME`.
    #[serde(default)]
    pub url: Option<String>,
}

/// An address for HTTP.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpEntry {
    /// Address.
    pub listen: SocketAddr,
    /// Certificate in PEM; HTTPS is spoken then.
    #[serde(default)]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate.
    #[serde(default)]
    pub tls_key: Option<PathBuf>,
}

/// A service: a port of a VM, or of any of several.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceEntry {
    /// VMs, by name or id; the service's own name if absent.
    #[serde(default)]
    pub vms: Vec<String>,
    /// The VM's port.
    pub port: GuestPort,
    /// Host names, at all addresses for HTTP; `*` is any other name.
    #[serde(default)]
    pub names: BTreeSet<String>,
    /// Addresses for TCP.
    #[serde(default)]
    pub listen: Vec<SocketAddr>,
    /// Send clients of HTTP on to the front-end that the VM is nearest to now.
    #[serde(default)]
    pub redirect: bool,
    /// Name in the DNS that is kept at the active front-end's addresses.
    #[serde(default)]
    pub record: Option<String>,
    /// Health check.
    #[serde(default)]
    pub health: HealthEntry,
    /// Most requests by HTTP that a VM has at once; others wait.
    #[serde(default = "at_once")]
    pub requests: usize,
}

fn at_once() -> usize {
    16
}

/// A health check.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HealthEntry {
    /// Path that is asked for by HTTP, to be answered below 500; if absent, a connection is made.
    pub path: Option<String>,
    /// Between two checks, in seconds.
    pub every_s: u64,
    /// Time that an answer may take, in seconds.
    pub timeout_s: u64,
    /// Failures in a row after which a VM is not chosen.
    pub fall: u8,
}

impl Default for HealthEntry {
    fn default() -> Self {
        Self {
            path: None,
            every_s: 10,
            timeout_s: 5,
            fall: 3,
        }
    }
}

/// A name server that takes updates (RFC 2136), signed by a key (TSIG, RFC 8945).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DnsEntry {
    /// Address of the zone's primary server.
    pub server: SocketAddr,
    /// The zone.
    pub zone: String,
    /// Name of the key.
    pub key: String,
    /// hmac-sha256, hmac-sha384 or hmac-sha512.
    #[serde(default = "sha256")]
    pub algorithm: String,
    /// The key, in base64.
    pub secret: TokenSecret,
    /// Time to live of the records, in seconds.
    #[serde(default = "minute")]
    pub ttl_s: u32,
}

fn sha256() -> String {
    "hmac-sha256".to_owned()
}

fn minute() -> u32 {
    60
}

impl Config {
    /// Reads a file.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let facts = fs::metadata(path).with_context(|| format!("cannot read {name}"))?;
        ensure!(
            // A credential of systemd's is its group's to read, by the mask of its access list.
            facts.permissions().mode() & 0o027 == 0,
            "{name} holds tokens, and others may read it: `chmod 600 {name}`"
        );
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        Self::parse(&text).with_context(|| format!("{name} is refused"))
    }

    /// Reads a text.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut config: Self = toml::from_str(text)?;
        for (name, service) in &mut config.service {
            if service.vms.is_empty() {
                service.vms.push(name.clone());
            }
        }
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.host.is_empty(), "no [host.NAME] is there");
        ensure!(!self.service.is_empty(), "no [service.NAME] is there");
        ensure!(self.bounds.poll_s > 0, "bounds.poll_s must be 1 or more");
        match &self.name {
            Some(name) => ensure!(
                self.frontend.contains_key(name),
                "`name` is {name:?}, and there is no [frontend.{name}]"
            ),
            None => ensure!(
                self.frontend.is_empty(),
                "there are front-ends, and no `name` says which one this is"
            ),
        }
        for (front, entry) in &self.frontend {
            let stranger = entry.near.iter().find(|it| !self.host.contains_key(*it));
            if let Some(host) = stranger {
                bail!("front-end {front} is near to {host}, and there is no [host.{host}]");
            }
            for (other, its) in self.frontend.range::<String, _>(..front) {
                if let Some(host) = entry.near.intersection(&its.near).next() {
                    bail!("host {host} has two nearest front-ends: {other} and {front}");
                }
            }
        }
        let mut names = BTreeMap::new();
        for (service, entry) in &self.service {
            self.check_service(service, entry)?;
            for name in &entry.names {
                if let Some(other) = names.insert(name.to_ascii_lowercase(), service) {
                    bail!("the host name {name} is that of two services: {other} and {service}");
                }
            }
        }
        for at in &self.http {
            ensure!(
                at.tls_cert.is_some() == at.tls_key.is_some(),
                "[[http]] at {}: tls_cert and tls_key come together",
                at.listen
            );
        }
        Ok(())
    }

    fn check_service(&self, name: &str, entry: &ServiceEntry) -> anyhow::Result<()> {
        ensure!(
            !entry.names.is_empty() || !entry.listen.is_empty(),
            "service {name} is reached by nothing: give it `names` for HTTP, or `listen` for TCP"
        );
        ensure!(
            entry.names.is_empty() || !self.http.is_empty(),
            "service {name} has host names, and there is no [[http]] to listen at"
        );
        // A VM has places for 64 connections to its ports.
        ensure!(
            (1..=32).contains(&entry.requests),
            "service {name}: `requests` must be 1 to 32"
        );
        ensure!(
            entry.health.every_s > 0 && entry.health.timeout_s > 0,
            "service {name}: `every_s` and `timeout_s` of its health check must be 1 or more"
        );
        if entry.redirect {
            let mut lacking = self.frontend.iter().filter(|(_, it)| it.url.is_none());
            if let Some((front, _)) = lacking.next() {
                bail!("service {name} redirects, and [frontend.{front}] has no `url`");
            }
        }
        if let Some(record) = &entry.record {
            let dns = self.dns.as_ref();
            let dns =
                dns.with_context(|| format!("service {name} has a record, and there is no [dns]"))?;
            let plain = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
            let (record, zone) = (plain(record), plain(&dns.zone));
            let inside = record == zone || record.ends_with(&format!(".{zone}"));
            ensure!(inside, "service {name}: {record} is not in the zone {zone}");
            let own = self.name.as_ref().and_then(|it| self.frontend.get(it));
            ensure!(
                own.is_some_and(|it| !it.addresses.is_empty()),
                "service {name} has a record, and this front-end has no `addresses` in [frontend.NAME]"
            );
        }
        Ok(())
    }

    /// Finds the front-end that is nearest to a host.
    pub fn nearest(&self, host: &str) -> Option<(&String, &FrontendEntry)> {
        self.frontend.iter().find(|(_, it)| it.near.contains(host))
    }
}

impl Bounds {
    /// Returns the time for which connections and requests wait.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.patience_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the documentation and of `--help`.
    const EXAMPLE: &str = include_str!("../frontend.toml");

    #[test]
    fn the_example_is_one() {
        let config = Config::parse(EXAMPLE).expect("an example");
        assert_eq!(config.nearest("a").expect("near").0, "tokyo");
        assert_eq!(config.service["db"].vms, ["db"]);
    }

    #[test]
    fn contradictions_are_told_by_name() {
        for (from, to, why) in [
            ("name = \"tokyo\"", "name = \"kyoto\"", "[frontend.kyoto]"),
            ("near = [\"b\"]", "near = [\"c\"]", "[host.c]"),
            ("near = [\"b\"]", "near = [\"a\"]", "two nearest"),
            (
                "zone = \"example.org\"",
                "zone = \"other.org\"",
                "other.org",
            ),
            ("listen = [\"203.0.113.7:5432\"]", "", "reached by nothing"),
            ("[[http]]", "[other]", "other"),
            ("port = 5432", "port = 0", "port"),
            ("url = \"https://oregon.example.org\"", "", "no `url`"),
            ("tls_key = ", "# ", "come together"),
        ] {
            assert!(EXAMPLE.contains(from), "{from}");
            let error = Config::parse(&EXAMPLE.replace(from, to)).expect_err(why);
            assert!(format!("{error:#}").contains(why), "{why}: {error:#}");
        }
    }
}
