//! Places in the cluster for what users ask for here.

use crate::{Node, tenants::ForkRooms};
use forkyard_cluster::{CloneLayout, CloneNeed, ClusterError, Reservation, Wish};
use forkyard_fork::HERE;
use forkyard_types::{
    ActivateRequest, ApiError, ByteCount, ErrorKind, ForkRequest, NodeName, RunRequest, VmView,
};
use std::collections::BTreeMap;

impl Node {
    /// A place for a VM that is to be run: here if there is room.
    pub async fn place(
        &self,
        request: &RunRequest,
        user: Option<String>,
        only: Option<NodeName>,
        layout: CloneLayout,
    ) -> Result<Reservation, ClusterError> {
        let need = CloneNeed {
            vcpus: request.vcpus,
            memory: request.wanted_memory().unwrap_or(ByteCount(u64::MAX)),
        };
        let near = Some(self.cluster().name().clone());
        let wish = Wish {
            user,
            count: 1,
            need,
            layout,
            near,
            only,
        };
        self.cluster().reserve(&wish).await
    }

    /// Places for clones of a VM of this host's, as many as there are, on the nodes
    /// that are named, or any, or this one. The request says then how many there
    /// are, and where each is; of those that have none is told why.
    pub async fn place_clones(
        &self,
        vm: &VmView,
        request: &mut ForkRequest,
    ) -> Result<(ForkRooms, Vec<ApiError>), ApiError> {
        let need = CloneNeed {
            vcpus: vm.vcpus_taken(),
            memory: vm.memory,
        };
        let user = self.cluster().owner(vm.family);
        let placed = Placed {
            count: &mut request.count,
            to: &mut request.to,
            spread: &mut request.spread,
        };
        self.place_all(placed, need, user).await
    }

    /// Places for VMs of a substrate of this host's, likewise.
    pub async fn place_founders(
        &self,
        (vcpus, memory): (u8, ByteCount),
        user: Option<String>,
        request: &mut ActivateRequest,
    ) -> Result<(ForkRooms, Vec<ApiError>), ApiError> {
        let placed = Placed {
            count: &mut request.count,
            to: &mut request.to,
            spread: &mut request.spread,
        };
        self.place_all(placed, CloneNeed { vcpus, memory }, user)
            .await
    }

    async fn place_all(
        &self,
        request: Placed<'_>,
        need: CloneNeed,
        user: Option<String>,
    ) -> Result<(ForkRooms, Vec<ApiError>), ApiError> {
        let own = self.cluster().name();
        let wish = |count, layout, only| Wish {
            user: user.clone(),
            count,
            need,
            layout,
            near: Some(own.clone()),
            only,
        };
        let wishes = match request.spread {
            true => vec![wish(*request.count, CloneLayout::Spread, None)],
            false => named((*request.count, request.to), own)?
                .into_iter()
                .map(|(node, count)| wish(count, CloneLayout::Pack, Some(node)))
                .collect(),
        };
        let (mut reserved, mut refused) = (Vec::new(), Vec::new());
        for mut wish in wishes {
            // Less may be granted. A client that asks for the rest by itself is told why, or gets
            // what has become free meanwhile.
            while wish.count > 0 {
                match self.cluster().reserve(&wish).await {
                    Ok(places) => {
                        wish.count = wish.count.saturating_sub(places.grant().count());
                        reserved.push(places);
                    }
                    // Others may have room.
                    Err(error) => {
                        let error = error.to_api();
                        refused.extend(std::iter::repeat_n(error, wish.count.into()));
                        break;
                    }
                }
            }
        }
        if reserved.is_empty()
            && let Some(error) = refused.pop()
        {
            return Err(error);
        }
        (*request.to, *request.spread) = (Vec::new(), false);
        for place in reserved.iter().flat_map(|it| &it.grant().places) {
            let name = match place.node == *own {
                true => HERE,
                false => place.node.as_str(),
            };
            let turns = std::iter::repeat_n(name.to_owned(), place.clones.into());
            request.to.extend(turns);
        }
        *request.count = reserved.iter().map(|it| it.grant().count()).sum();
        if request.to.iter().all(|name| name == HERE) {
            request.to.clear();
        }
        Ok((ForkRooms(reserved), refused))
    }
}

/// Part of a request that says how many VMs are wanted and where.
struct Placed<'a> {
    count: &'a mut u16,
    to: &'a mut Vec<String>,
    spread: &'a mut bool,
}

/// Counts the clones wanted of each node, by turns; all of this one if none is
/// named.
fn named(
    (count, to): (u16, &[String]),
    own: &NodeName,
) -> Result<BTreeMap<NodeName, u16>, ApiError> {
    let nodes = to.iter().map(|name| match name.as_str() {
        HERE => Ok(own.clone()),
        name => name.parse().map_err(|error| ApiError {
            kind: ErrorKind::Invalid,
            message: format!("{name:?} is no node: {error}"),
            hint: None,
        }),
    });
    let mut nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    if nodes.is_empty() {
        nodes.push(own.clone());
    }
    let mut wanted = BTreeMap::new();
    for node in nodes.iter().cycle().take(count.into()) {
        *wanted.entry(node.clone()).or_default() += 1;
    }
    Ok(wanted)
}
