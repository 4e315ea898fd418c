//! Counts of a front-end, in the words of Prometheus. The names are an interface: they are listed in
//! docs/frontend.md.

use anyhow::Context;
use forkyard_frontend::{HostName, Role};
use forkyard_gateway::ConnectionCounts;
use hyper::StatusCode;
use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

const CONNECTIONS: &str = "forkyard_frontend_connections";
const TURNED_AWAY: &str = "forkyard_frontend_connections_refused_total";
const REQUESTS: &str = "forkyard_frontend_requests_total";
const TCP: &str = "forkyard_frontend_tcp_connections_total";
const ROLE: &str = "forkyard_frontend_role";
const HEALTHY: &str = "forkyard_frontend_vm_healthy";
const REACHED: &str = "forkyard_frontend_host_reached";
const UPDATES: &str = "forkyard_frontend_dns_updates_total";
const LOOKS: &str = "forkyard_frontend_dns_checks_total";
const CERTIFICATES: &str = "forkyard_frontend_certificate_loads_total";
const BUILD: &str = "forkyard_frontend_build_info";

/// Begins to count, for the whole process.
pub fn install() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .install_recorder()
        .context("something else counts already")?;
    describe_gauge!(CONNECTIONS, "Connections of clients that are open");
    describe_counter!(
        TURNED_AWAY,
        "Connections closed because their address had as many as it may"
    );
    describe_counter!(
        REQUESTS,
        "Requests by HTTP, by service, class of the answer and its giver"
    );
    describe_counter!(
        TCP,
        "Connections by TCP that are over, by service and outcome"
    );
    describe_gauge!(ROLE, "1 for the role that this front-end has for a service");
    describe_gauge!(HEALTHY, "1 if a VM of a service may be chosen");
    describe_gauge!(REACHED, "1 if a host answers");
    describe_counter!(UPDATES, "Updates sent to the name server, by service");
    describe_counter!(
        LOOKS,
        "Comparisons with what the name server says, by service and outcome"
    );
    describe_counter!(CERTIFICATES, "Loads of certificates, by outcome");
    describe_gauge!(BUILD, "1, and the version that runs");
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION")).set(1);
    Ok(handle)
}

/// Counts of clients' connections. After [`install`].
pub fn connections() -> ConnectionCounts {
    ConnectionCounts {
        open: gauge!(CONNECTIONS),
        turned_away: counter!(TURNED_AWAY),
    }
}

/// Giver of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A server in a VM.
    Server,
    /// The front-end itself.
    Frontend,
}

/// Counts an answer.
pub fn answered(service: &str, status: StatusCode, by: By) {
    let class = match status.as_u16() {
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    };
    let by = match by {
        By::Server => "server",
        By::Frontend => "frontend",
    };
    let service = service.to_owned();
    counter!(REQUESTS, "service" => service, "class" => class, "by" => by).increment(1);
}

/// Counts a connection by TCP that is over.
pub fn carried(service: &str, outcome: &'static str) {
    counter!(TCP, "service" => service.to_owned(), "outcome" => outcome).increment(1);
}

/// Tells the role of this front-end.
pub fn role(service: &str, now: Role) {
    for role in ["active", "forwarding", "drained"] {
        let is = f64::from(u8::from(role == now.name()));
        gauge!(ROLE, "service" => service.to_owned(), "role" => role).set(is);
    }
}

/// Tells if a VM may be chosen.
pub fn healthy(service: &str, vm: &str, well: bool) {
    let is = f64::from(u8::from(well));
    gauge!(HEALTHY, "service" => service.to_owned(), "vm" => vm.to_owned()).set(is);
}

/// Tells if a host answers; true if that is new.
pub fn reached(host: &HostName, answers: bool) -> bool {
    static LAST: Mutex<BTreeMap<HostName, bool>> = Mutex::new(BTreeMap::new());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let is = f64::from(u8::from(answers));
    gauge!(REACHED, "host" => host.to_string()).set(is);
    last.insert(host.clone(), answers) != Some(answers)
}

/// Counts a load of a certificate.
pub fn certificate(done: bool) {
    counter!(CERTIFICATES, "outcome" => outcome(done)).increment(1);
}

/// Counts an update of the DNS.
pub fn updated(service: &str) {
    counter!(UPDATES, "service" => service.to_owned()).increment(1);
}

/// Counts a comparison with the DNS.
pub fn looked(service: &str, done: bool) {
    counter!(LOOKS, "service" => service.to_owned(), "outcome" => outcome(done)).increment(1);
}

fn outcome(done: bool) -> &'static str {
    match done {
        true => "done",
        false => "failed",
    }
}
