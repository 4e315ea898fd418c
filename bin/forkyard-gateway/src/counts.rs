//! Counts of a gateway, in the words of Prometheus. The names are an interface: they are listed in
//! docs/ports.md. Told at an address of its own, for its clients are strangers.

use anyhow::Context;
use forkyard_gateway::ConnectionCounts;
use hyper::StatusCode;
use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

const REQUESTS: &str = "forkyard_gateway_requests_total";
const CONNECTIONS: &str = "forkyard_gateway_connections";
const TURNED_AWAY: &str = "forkyard_gateway_connections_refused_total";
const SWITCHED: &str = "forkyard_gateway_upgrades_total";
const WOKEN: &str = "forkyard_gateway_wakes_total";
const CERTIFICATES: &str = "forkyard_gateway_certificate_loads_total";
const BUILD: &str = "forkyard_gateway_build_info";

/// Begins to count, for the whole process.
pub fn install() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .install_recorder()
        .context("something else counts already")?;
    describe_counter!(
        REQUESTS,
        "Requests by HTTP, by class of the answer and its giver"
    );
    describe_gauge!(CONNECTIONS, "Connections of clients that are open");
    describe_counter!(
        TURNED_AWAY,
        "Connections closed because their address had as many as it may"
    );
    describe_counter!(SWITCHED, "Connections that became WebSockets or the like");
    describe_counter!(
        WOKEN,
        "VMs that were resumed or started for a request, by outcome"
    );
    describe_counter!(CERTIFICATES, "Loads of the certificate, by outcome");
    describe_gauge!(BUILD, "1, and the version that runs");
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION")).set(1);
    Ok(handle)
}

/// Counts an answer.
pub fn answered(status: StatusCode, by: By) {
    let class = match status.as_u16() {
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    };
    let by = match by {
        By::Server => "server",
        By::Gateway => "gateway",
    };
    counter!(REQUESTS, "class" => class, "by" => by).increment(1);
    if status == StatusCode::SWITCHING_PROTOCOLS {
        counter!(SWITCHED).increment(1);
    }
}

/// Giver of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A server in a VM.
    Server,
    /// The gateway itself.
    Gateway,
}

/// Counts of clients' connections. After [`install`].
pub fn connections() -> ConnectionCounts {
    ConnectionCounts {
        open: gauge!(CONNECTIONS),
        turned_away: counter!(TURNED_AWAY),
    }
}

/// Counts a VM that was woken, or could not be.
pub fn woken(done: bool) {
    counter!(WOKEN, "outcome" => outcome(done)).increment(1);
}

/// Counts a load of the certificate.
pub fn certificate(done: bool) {
    counter!(CERTIFICATES, "outcome" => outcome(done)).increment(1);
}

fn outcome(done: bool) -> &'static str {
    match done {
        true => "done",
        false => "failed",
    }
}
