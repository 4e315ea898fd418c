//! The cluster as the authority that says at which node a volume is at home.

use crate::Nodes;
use forkyard_cluster::{ClusterError, VolumeHome};
use forkyard_fork::{Home, Homes};
use forkyard_types::{ApiError, Term};
use futures::future::{BoxFuture, FutureExt};

impl Homes for Nodes {
    fn own(&self) -> String {
        self.0.name().to_string()
    }

    fn may_act(&self) -> Result<(), ApiError> {
        self.0.may_act().map_err(|error| error.to_api())
    }

    fn find(&self, id: String) -> BoxFuture<'_, Result<Option<Home>, ApiError>> {
        let found = async move { self.0.volume(&id).await };
        found
            .map(|found| Ok(found.map_err(told)?.map(home)))
            .boxed()
    }

    fn all(&self) -> BoxFuture<'_, Result<Vec<(String, Home)>, ApiError>> {
        let found = async move { self.0.volumes().await };
        found
            .map(|found| {
                let all = found.map_err(told)?.into_iter();
                Ok(all.map(|(id, it)| (id, home(it))).collect())
            })
            .boxed()
    }

    fn change(
        &self,
        id: String,
        from: Option<(String, Term)>,
        to: Option<Home>,
    ) -> BoxFuture<'_, Result<bool, ApiError>> {
        let changed = async move {
            let from = from
                .map(|(node, term)| Ok((node.parse()?, term)))
                .transpose();
            let to = to.map(|it| {
                Ok(VolumeHome {
                    name: it.name,
                    node: it.node.parse()?,
                    term: it.term,
                    size: it.size,
                })
            });
            let wrong = |error: forkyard_types::InvalidId| ApiError {
                kind: forkyard_types::ErrorKind::Host,
                message: error.to_string(),
                hint: None,
            };
            let (from, to) = (from.map_err(wrong)?, to.transpose().map_err(wrong)?);
            self.0.change_volume(&id, from, to).await.map_err(told)
        };
        changed.boxed()
    }
}

fn home(it: VolumeHome) -> Home {
    Home {
        name: it.name,
        node: it.node.to_string(),
        term: it.term,
        size: it.size,
    }
}

fn told(error: ClusterError) -> ApiError {
    error.to_api()
}
