//! Egress of a family, changed while its VMs run.
//!
//! ```text
//! recorded --> in force, at one stroke --> guests told, if they had no way out before
//!    `--not in force: as before-^
//! ```
//!
//! A daemon that dies midway leaves the record, which the next one puts in force. A guest that could
//! not be told has the rules all the same, and learns of its way out when it boots or asks by DHCP.

use crate::{Host, HostError};
use forkyard_types::{Allow, Destination, EgressRequest, NetworkPolicy, Route, WayOut};
use forkyard_vm::Vm;
use futures::future::join_all;
use std::{error::Error, sync::Arc};

impl Host {
    /// Has the VMs of a family on this host reach these destinations from now on, and no others.
    /// Connections to others end; those that may stay go on. Not cancel-safe: run it on a task of its own.
    pub async fn set_egress(
        &self,
        vm: &str,
        wanted: EgressRequest,
    ) -> Result<NetworkPolicy, HostError> {
        let EgressRequest { out, allow, deny } = wanted;
        check(out, &allow, &deny)?;
        let vm = self.vm(vm)?;
        let family = vm.record().family;
        let _turn = self.families.egress.lock().await;
        let networks = self.parts.store.networks()?;
        let former = networks
            .into_iter()
            .find_map(|(it, policy)| (it.id == family).then_some(policy))
            .unwrap_or_default();
        let policy = NetworkPolicy {
            out,
            allow,
            deny,
            ..former.clone()
        };
        let before = self.parts.network.route(family);
        self.parts.store.put_network(family, &policy)?;
        if let Err(error) = self.parts.network.set_way(family, &policy).await {
            self.parts.store.put_network(family, &former)?;
            return Err(error.into());
        }
        let route = self.parts.network.route(family);
        if let Some(route) = route.filter(|route| tells_more(route, before.as_ref())) {
            self.tell_family(&vm, &route).await?;
        }
        Ok(NetworkPolicy {
            publish: vm.record().publish,
            ..policy
        })
    }

    /// Tells the guests of a family on this host of the way out. Fails if this one does not hear; what
    /// others say is for the log.
    async fn tell_family(&self, vm: &Arc<Vm>, route: &Route) -> Result<(), HostError> {
        let family = vm.record().family;
        let mut members = self.parts.registry().all();
        members.retain(|it| it.is_running() && it.record().family == family);
        let told = members.iter().map(async |member| {
            let _turn = member.turn().await;
            (member, self.tell_route(member, route).await)
        });
        let mut outcome = Ok(());
        for (member, told) in join_all(told).await {
            match told {
                Err(error) if member.id == vm.id => outcome = Err(error),
                Err(error) => {
                    tracing::warn!(vm = %member.name(), error = &error as &dyn Error, "its guest is not told of the way out");
                }
                Ok(()) => {}
            }
        }
        outcome
    }
}

/// True if a guest that knows `before` does not know all of `route`.
fn tells_more(route: &Route, before: Option<&Route>) -> bool {
    before.is_none_or(|before| !route.resolvers.is_empty() && before.resolvers != route.resolvers)
}

/// Refuses lists that make no sense.
pub(crate) fn check(out: WayOut, allow: &[Destination], deny: &[Allow]) -> Result<(), HostError> {
    let most = EgressRequest::MOST;
    if allow.len() > most || deny.len() > most {
        return Err(HostError::Invalid(format!(
            "{} networks allowed and {} denied: {most} of each may be",
            allow.len(),
            deny.len()
        )));
    }
    match out == WayOut::None && !(allow.is_empty() && deny.is_empty()) {
        true => Err(HostError::Invalid(
            "a VM without a way out has nothing to be allowed or denied: ask for nat".into(),
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_of_a_way_out_and_bounded() {
        let network: Allow = "192.0.2.0/24".parse().expect("a network");
        let name: Destination = "example.org".parse().expect("a name");
        let (allow, deny) = (vec![name], vec![network]);
        assert!(check(WayOut::Nat, &allow, &deny).is_ok());
        assert!(check(WayOut::None, &[], &[]).is_ok());
        assert!(check(WayOut::None, &allow, &[]).is_err());
        assert!(check(WayOut::None, &[], &deny).is_err());
        let most = EgressRequest::MOST + 1;
        assert!(check(WayOut::Nat, &vec![allow[0].clone(); most], &[]).is_err());
        assert!(check(WayOut::Nat, &[], &vec![network; most]).is_err());
    }

    #[test]
    fn guests_are_told_of_what_they_do_not_know_alone() {
        let route = |resolvers: &[[u8; 4]]| Route {
            gateway: [10, 128, 0, 1].into(),
            resolvers: resolvers.iter().map(|it| (*it).into()).collect(),
        };
        let full = route(&[[192, 0, 2, 1]]);
        assert!(tells_more(&full, None));
        assert!(tells_more(&full, Some(&route(&[]))));
        assert!(!tells_more(&full, Some(&full)));
        assert!(!tells_more(&route(&[]), Some(&full)));
    }
}
