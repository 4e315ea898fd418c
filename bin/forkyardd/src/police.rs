//! Hands of this host's police: the kernel's counts of what VMs use, and the caps of the
//! dispatcher, as `PUT /v1/vms/{vm}/sched` sets them.

use forkyard_fork::{Host, HostError};
use forkyard_police::{Capped, Hands, Suspect};
use forkyard_types::{SchedLevel, SchedPolicy, SchedSettings, Usage};
use forkyard_vcpu_dispatch::{Service, ServiceError, protocol::Wanted};
use std::sync::Arc;
use tokio::task::{JoinError, spawn_blocking};

/// The police of this host.
pub type Station = forkyard_police::Station<OnHost>;

/// The VMs of this host, and its dispatcher.
#[derive(Clone, Debug)]
pub struct OnHost {
    /// The host.
    pub host: Arc<Host>,
    /// The dispatcher.
    pub sched: Service,
}

/// Reason for which VMs were not looked at, capped or let go.
#[derive(Debug, thiserror::Error)]
pub enum HandsError {
    /// The host failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The dispatcher failed, or refused.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The work broke off.
    #[error("the call of the dispatcher broke off: this is a bug")]
    Broke(#[from] JoinError),
}

impl OnHost {
    /// Has the dispatcher do something. Done to its end if it is dropped.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service) -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<T, HandsError> {
        let sched = self.sched.clone();
        Ok(spawn_blocking(move || work(&sched)).await??)
    }

    fn runs(&self, suspect: &Suspect) -> bool {
        let found = self.host.find(&suspect.vm.to_string());
        found.is_ok_and(|vm| vm.host.is_none() && vm.pid == Some(suspect.pid))
    }
}

impl Hands for OnHost {
    type Error = HandsError;

    async fn usage(&self) -> Result<Usage, HandsError> {
        Ok(self.host.usage().await?)
    }

    async fn scheduled(&self) -> Result<Option<SchedPolicy>, HandsError> {
        self.ask(|sched| match sched.show() {
            Ok(state) => Ok(Some(state.policy)),
            Err(ServiceError::NoneScheduled) => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }

    async fn cap(&self, suspect: &Suspect, percent: u32) -> Result<Capped, HandsError> {
        let settings = SchedSettings {
            level: Some(SchedLevel::Enforce),
            policy: Some(SchedPolicy::Credit),
            cap: Some(percent),
            ..SchedSettings::default()
        };
        let wanted = Wanted {
            name: Some(suspect.name.clone()),
            ..Wanted::of(suspect.pid, settings)
        };
        match self.ask(move |sched| sched.set(wanted)).await {
            Ok(_) => Ok(Capped::Yes),
            Err(_) if !self.runs(suspect) => Ok(Capped::Gone),
            Err(error) => Err(error),
        }
    }

    async fn release(&self, pid: u32) -> Result<(), HandsError> {
        self.ask(move |sched| match sched.release(pid) {
            Ok(_) | Err(ServiceError::NoneScheduled | ServiceError::NotScheduled(_)) => Ok(()),
            Err(error) => Err(error),
        })
        .await
    }
}
