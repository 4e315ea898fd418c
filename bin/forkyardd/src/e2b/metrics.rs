//! What sandboxes used. A sample is taken when a client asks: nothing runs in guests that is not asked for.

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
};

/// Samples of sandboxes that were asked about.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<BTreeMap<VmId, Series>>>);

impl Metrics {
    fn with<T>(&self, on: impl FnOnce(&mut BTreeMap<VmId, Series>) -> T) -> T {
        on(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// `GET /sandboxes/{id}/metrics`.
pub async fn of_sandbox(
    State(e2b): State<E2b>,
    Path(id): Path,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<Metric>>, Failure> {
    let vm = e2b.any_sandbox(&id)?;
    let asked = TimeRange::of(&query.unwrap_or_default()).map_err(Failure::invalid)?;
    let now = crate::now();
    let is_due = e2b
        .metrics
        .with(|all| all.get(&vm.id).is_none_or(|series| series.is_due(now)));
    // One that is paused is not woken to be asked.
    if is_due && vm.state == VmState::Running {
        let usage = e2b.host.use_vm(vm.id.as_str()).await?.usage().await?;
        e2b.metrics
            .with(|all| all.entry(vm.id).or_default().note(now, &usage));
    }
    let there = e2b.host.list();
    Ok(Json(e2b.metrics.with(|all| {
        all.retain(|id, _| there.iter().any(|vm| vm.id == *id));
        let told = all.get(&vm.id);
        told.map_or(Vec::new(), |series| series.within(asked))
    })))
}
