//! Counts of a gateway, in the words of Prometheus. The names are an interface: they are listed in
//! docs/ports.md. Told at an address of its own, for its clients are strangers.

use crate::reply::body;
use anyhow::Context;
use hyper::{
    Request, Response, StatusCode, body::Incoming, header, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::{convert::Infallible, time::Duration};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    time::{sleep, timeout},
};

const REQUESTS: &str = "forkyard_gateway_requests_total";
const CONNECTIONS: &str = "forkyard_gateway_connections";
const TURNED_AWAY: &str = "forkyard_gateway_connections_refused_total";
const SWITCHED: &str = "forkyard_gateway_upgrades_total";
const WOKEN: &str = "forkyard_gateway_wakes_total";
const CERTIFICATES: &str = "forkyard_gateway_certificate_loads_total";
const BUILD: &str = "forkyard_gateway_build_info";

/// Most readers at once, and the time each has.
const READERS: usize = 16;
const TO_READ: Duration = Duration::from_secs(10);

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

/// Counts a connection of a client's: that it is there, until dropped.
#[derive(Debug)]
pub struct Open(());

impl Open {
    /// One more.
    pub fn new() -> Self {
        gauge!(CONNECTIONS).increment(1);
        Self(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        gauge!(CONNECTIONS).decrement(1);
    }
}

/// Counts a connection that was closed for its address has too many.
pub fn turned_away() {
    counter!(TURNED_AWAY).increment(1);
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

/// Tells what has been counted, at `/metrics`.
pub async fn tell(listener: TcpListener, handle: PrometheusHandle) {
    let readers = std::sync::Arc::new(Semaphore::new(READERS));
    loop {
        let Ok(place) = readers.clone().acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(200)).await;
            continue;
        };
        let handle = handle.clone();
        tokio::spawn(async move {
            let _place = place;
            let answer = service_fn(move |request: Request<Incoming>| {
                let handle = handle.clone();
                async move { Ok::<_, Infallible>(answer(&request, &handle)) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(TO_READ)
                .serve_connection(TokioIo::new(stream), answer);
            // One that reads nothing gives its place back.
            let _ = timeout(TO_READ * 6, served).await;
        });
    }
}

fn answer(
    request: &Request<Incoming>,
    handle: &PrometheusHandle,
) -> Response<crate::reply::ReplyBody> {
    if request.uri().path() != "/metrics" {
        let mut response = Response::new(body("metrics are at /metrics\n"));
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    }
    let mut response = Response::new(body(handle.render()));
    let text = header::HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}
