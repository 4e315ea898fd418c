//! Uses of sandboxes, as samples. One is taken when a client asks: nothing runs in guests that is not asked for.

use super::{E2b, input::Path, reply::Failure};
use axum::{
    Json,
    extract::{RawQuery, State},
};
use forkyard_e2b::{Metric, Series, TimeRange};
use forkyard_types::{VmId, VmState};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::timeout;

/// Longest wait for a guest to tell what it uses.
const TELLS: Duration = Duration::from_secs(20);

/// Samples of sandboxes that were asked about. Each is held while its guest is asked: one question at a time.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<BTreeMap<VmId, OfOne>>>);

type OfOne = Arc<tokio::sync::Mutex<Series>>;

impl Metrics {
    /// Returns those of one, and forgets those of VMs that are no more.
    fn of(&self, id: VmId, is_there: impl Fn(VmId) -> bool) -> OfOne {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|id, _| is_there(*id));
        all.entry(id).or_default().clone()
    }
}

/// `GET /sandboxes/{id}/metrics`.
pub async fn of_sandbox(
    State(e2b): State<E2b>,
    Path(id): Path,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<Metric>>, Failure> {
    let vm = e2b.any_sandbox(&id)?;
    let range = TimeRange::of(&query.unwrap_or_default()).map_err(Failure::invalid)?;
    let there = e2b.host.list();
    let series = e2b
        .metrics
        .of(vm.id, |id| there.iter().any(|vm| vm.id == id));
    let mut series = series.lock().await;
    // One that is paused is not woken to be asked.
    let vm = e2b.any_sandbox(vm.id.as_str())?;
    if series.is_due(crate::now()) && vm.state == VmState::Running {
        let asked = async {
            let guest = e2b.host.use_vm(vm.id.as_str()).await?;
            Ok::<_, Failure>(guest.usage().await?)
        };
        let usage = timeout(TELLS, asked).await.map_err(|_| {
            Failure::silent(&format!(
                "the guest did not tell what it uses within {} s",
                TELLS.as_secs()
            ))
        })??;
        series.note(crate::now(), &usage);
    }
    Ok(Json(series.within(range)))
}
