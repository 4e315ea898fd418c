//! Counters of the daemon, in the format of Prometheus. The names are an
//! interface: they are listed in docs/operations.md.

mod volumes;

use crate::reply::Refusal;
use anyhow::Context;
use axum::{extract::State, http::header, response::IntoResponse};
use forkyard_fork::{Host, HostError, telemetry};
use forkyard_service::links;
use forkyard_types::{BackupState, VmState};
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::Arc;

const VMS: &str = "forkyard_vms";
const WARM_SHELLS: &str = "forkyard_warm_shells";
const PAGE_IMAGES: &str = "forkyard_page_images";
const IMAGE_PAGES: &str = "forkyard_page_image_pages";
const PAGES_SERVED: &str = "forkyard_page_image_pages_served";
const BACKUPS: &str = "forkyard_substrate_backups";
const BUILD: &str = "forkyard_build_info";

/// From a millisecond, which a warm fork's shells take, to a minute.
const SECONDS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0,
];

/// Everything counted so far.
#[derive(Clone, Debug)]
pub struct Metrics {
    handle: PrometheusHandle,
    links: Arc<links::Links>,
}

impl Metrics {
    /// Counts from here on, for the whole process.
    pub fn install() -> anyhow::Result<Self> {
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full(telemetry::PHASE_SECONDS.into()), &SECONDS)?
            .install_recorder()
            .context("something else counts already")?;
        describe();
        gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION")).set(1);
        Ok(Self {
            handle,
            links: Arc::default(),
        })
    }
}

fn describe() {
    describe_gauge!(VMS, "VMs, by state");
    describe_gauge!(
        BACKUPS,
        "Substrates of a pool that is backed up to an object store, by the state of their copies"
    );
    describe_gauge!(WARM_SHELLS, "Shells that wait for a fork");
    describe_gauge!(PAGE_IMAGES, "Page images in the pager");
    describe_gauge!(IMAGE_PAGES, "Pages (4096 bytes) these hold");
    describe_gauge!(
        PAGES_SERVED,
        "Pages (4096 bytes) of these that were served to the kernel"
    );
    forkyard_service::counts::describe();
    describe_gauge!(BUILD, "1, and the version that runs");
    describe_counter!(telemetry::FORKS, "Forks, by outcome");
    describe_counter!(telemetry::CLONES, "Clones asked for, by outcome");
    describe_histogram!(
        telemetry::PHASE_SECONDS,
        Unit::Seconds,
        "Lengths of the phases of a fork; `shells`, `running` and `ready` from the request on"
    );
    describe_counter!(
        telemetry::PAGES_SCANNED,
        "Private pages (4096 bytes) looked at in pauses"
    );
    describe_counter!(
        telemetry::PAGES_CAPTURED,
        "Pages (4096 bytes) that went into images"
    );
    describe_counter!(
        telemetry::PAGES_FETCHED,
        "Pages (4096 bytes) of images read until the clones were ready"
    );
    describe_counter!(
        telemetry::SENT_BYTES,
        "Bytes of volumes sent to other hosts, by volume, and by why: all of it, or what had changed"
    );
    volumes::describe();
    links::describe();
}

/// Everything counted so far, and how things stand, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "host",
    responses((status = 200, body = String, content_type = "text/plain; version=0.0.4",
        description = "Metrics in the text format of Prometheus"), Refusal))]
pub async fn render(
    State(metrics): State<Metrics>,
    State(host): State<Arc<Host>>,
) -> Result<impl IntoResponse, Refusal> {
    look(&host).await?;
    metrics.links.count(&host.links().await?);
    Ok((
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4")],
        metrics.handle.render(),
    ))
}

/// Reads the present state into the gauges.
async fn look(host: &Host) -> Result<(), HostError> {
    let mut vms = host.list();
    // Those elsewhere are counted there.
    vms.retain(|vm| vm.host.is_none());
    for (state, label) in [
        (VmState::Starting, "starting"),
        (VmState::Running, "running"),
        (VmState::Paused, "paused"),
        (VmState::Stopped, "stopped"),
        (VmState::Checkpoint, "checkpoint"),
    ] {
        let count = vms.iter().filter(|vm| vm.state == state).count();
        set(VMS, &[("state", label)], count as u64);
    }
    for (state, count) in host.backup_counts()? {
        let label = match state {
            BackupState::Done => "done",
            BackupState::Waiting => "waiting",
            BackupState::Failing => "failing",
        };
        set(BACKUPS, &[("state", label)], count);
    }
    volumes::tell(&host.volume_counts().await?);
    set(WARM_SHELLS, &[], host.warm_shells()? as u64);
    let images = host.page_images().await?;
    set(PAGE_IMAGES, &[], images.len() as u64);
    let total =
        |of: fn(&forkyard_types::ImageUse) -> u64| images.iter().map(|i| of(&i.usage)).sum();
    set(IMAGE_PAGES, &[], total(|usage| usage.pages.0));
    set(PAGES_SERVED, &[], total(|usage| usage.pages_served.0));
    Ok(())
}

#[allow(clippy::cast_precision_loss)] // 2^53 pages are 32 EiB
fn set(name: &'static str, labels: &[(&'static str, &'static str)], value: u64) {
    gauge!(name, labels).set(value as f64);
}
