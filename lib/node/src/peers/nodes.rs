//! The other nodes of a cluster, as this host's core asks for them.

use super::{Daemon, Nodes, invalid};
use crate::tenants;
use forkyard_fork::{FamilyNo, Granted, Lot, Neighbours, Peer, Room};
use forkyard_types::{ApiError, FamilyId, VmView};
use futures::future::{BoxFuture, FutureExt};
use std::sync::Arc;

impl Neighbours for Nodes {
    fn names(&self) -> Result<Vec<String>, ApiError> {
        let names = self.0.other_nodes().into_iter();
        Ok(names.map(|name| name.to_string()).collect())
    }

    fn find(&self, name: &str) -> Result<Arc<dyn Peer>, ApiError> {
        let node = name
            .parse()
            .map_err(|error| invalid(format!("{name:?} is no node: {error}")))?;
        let client = self.0.client(&node).map_err(|error| error.to_api())?;
        Ok(Arc::new(Daemon {
            name: name.to_owned(),
            line: client.line().into(),
            client,
            cluster: Some(self.0.clone()),
        }))
    }

    fn is_gone(&self, name: &str) -> bool {
        name.parse().is_ok_and(|node| self.0.was_removed(&node))
    }

    fn is_lost(&self, name: &str) -> bool {
        name.parse().is_ok_and(|node| self.0.is_lost(&node))
    }

    fn claim(&self, number: FamilyNo, family: FamilyId) -> BoxFuture<'_, Result<bool, ApiError>> {
        let asked = self.0.number(number.0, family);
        asked
            .map(|answer| answer.map_err(|error| error.to_api()))
            .boxed()
    }

    fn room(
        &self,
        vm: VmView,
        lots: Vec<Lot>,
    ) -> BoxFuture<'_, Result<Option<Box<dyn Room>>, ApiError>> {
        let asked = tenants::room(&self.0, vm, lots);
        asked
            .map(|answer| answer.map(Some).map_err(|error| error.to_api()))
            .boxed()
    }

    fn room_at(
        &self,
        vm: VmView,
        places: Vec<Granted>,
    ) -> BoxFuture<'_, Result<Option<Box<dyn Room>>, ApiError>> {
        let asked = tenants::room_at(&self.0, vm, places);
        asked
            .map(|answer| answer.map(Some).map_err(|error| error.to_api()))
            .boxed()
    }
}
