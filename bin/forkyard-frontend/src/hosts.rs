//! Hosts, and what they say of VMs: by their events, and by being asked now and then.
//!
//! ```text
//! look --> events of a VM that is served, a kick, or time --> look ...
//!   |          | the stream breaks
//!   +--fails---+--> hosts that do not answer are silent; looked at again soon
//! ```
//!
//! Events say when to look, and a look says how it is: one that was missed costs time, never truth.

use crate::{counts, target::Target};
use anyhow::Context;
use forkyard_api_client::{Client, ClientError, Trust, escaped};
use forkyard_frontend::{HostName, Sighting};
use forkyard_types::{EventKinds, EventsRequest, HostEvent, ListedVm, VmState};
use hyper::Method;
use std::{collections::BTreeMap, error::Error, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};

/// Time that a look may take.
const LOOK: Duration = Duration::from_secs(5);
/// Between two looks at a host that does not answer.
const SILENT: Duration = Duration::from_millis(500);
/// Between two looks however often they are wanted.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// All hosts.
#[derive(Debug)]
pub struct Hosts {
    links: BTreeMap<HostName, Link>,
    news: watch::Sender<()>,
}

#[derive(Debug)]
struct Link {
    client: Client,
    /// Wish for a look at once.
    kick: Notify,
}

impl Hosts {
    /// Those of the configuration.
    pub fn new(entries: BTreeMap<String, crate::config::HostEntry>) -> anyhow::Result<Self> {
        let links = entries.into_iter().map(|(name, entry)| {
            let made = || {
                let trust = entry.trust.as_deref().map(str::parse).transpose()?;
                let trust = trust.unwrap_or(Trust::System);
                anyhow::Ok(Client::at(entry.url.parse()?, entry.token, &trust)?)
            };
            let link = Link {
                client: made().with_context(|| format!("[host.{name}] cannot be used"))?,
                kick: Notify::new(),
            };
            Ok((HostName::new(name), link))
        });
        Ok(Self {
            links: links.collect::<anyhow::Result<_>>()?,
            news: watch::channel(()).0,
        })
    }

    /// Lists their names.
    pub fn names(&self) -> impl Iterator<Item = HostName> {
        self.links.keys().cloned()
    }

    /// Returns the way to one.
    pub fn client(&self, host: &HostName) -> Option<&Client> {
        Some(&self.links.get(host)?.client)
    }

    /// Hears of whatever changes from now on.
    pub fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// Has all hosts looked at, soon.
    pub fn kick(&self) {
        self.links.values().for_each(|link| link.kick.notify_one());
    }

    /// Follows one host, for ever.
    pub async fn follow(&self, host: HostName, targets: Vec<Arc<Target>>, poll: Duration) {
        let Some(link) = self.links.get(&host) else {
            return;
        };
        let of_ours = |event: &HostEvent| {
            let vm = event.subject.vm.as_ref();
            let is = |target: &Arc<Target>, vm: &forkyard_types::EventVm| {
                target.vm == vm.name.as_str() || target.vm == vm.id.as_str()
            };
            vm.is_none_or(|vm| targets.iter().any(|target| is(target, vm)))
        };
        loop {
            // Before the first look: nothing happens in between unheard.
            let events = timeout(LOOK, link.client.host_events(events())).await;
            let mut events = match events {
                Ok(Ok(events)) => Some(events),
                Ok(Err(error)) => {
                    tracing::debug!(%host, error = &error as &dyn Error, "no events");
                    None
                }
                Err(_) => None,
            };
            loop {
                let pause = match self.look(&host, link, &targets).await {
                    true => poll,
                    false => SILENT,
                };
                sleep(RETRY_PAUSE).await;
                let broken = tokio::select! {
                    broken = async {
                        match &mut events {
                            Some(events) => loop {
                                match events.next().await {
                                    Ok(Some(event)) if of_ours(&event) => return false,
                                    Ok(Some(_)) => {}
                                    Ok(None) | Err(_) => return true,
                                }
                            },
                            None => std::future::pending().await,
                        }
                    } => broken,
                    () = link.kick.notified() => false,
                    // Without events they are asked for again.
                    () = sleep(pause) => events.is_none(),
                };
                if broken {
                    break;
                }
            }
        }
    }

    /// Asks a host about all VMs; tells if it answered.
    async fn look(&self, host: &HostName, link: &Link, targets: &[Arc<Target>]) -> bool {
        let names: Vec<_> = targets.iter().map(|it| it.vm.as_str()).collect();
        let path = format!("/v1/vms?names={}", escaped(&names.join(",")));
        let listed = timeout(LOOK, link.client.call::<Vec<ListedVm>>(Method::GET, &path)).await;
        let listed = listed.unwrap_or_else(|_| Err(late(&link.client)));
        let reached = listed.is_ok();
        let changed = counts::reached(host, reached);
        let listed = match listed {
            Ok(listed) => listed,
            Err(error) => {
                if changed {
                    tracing::warn!(%host, error = &error as &dyn Error, "the host does not answer");
                }
                Vec::new()
            }
        };
        if changed && reached {
            tracing::info!(%host, "the host answers");
        }
        let mut new = false;
        for target in targets {
            let named = |it: &&ListedVm| {
                let vm = &it.vm;
                target.vm == vm.name.as_str() || target.vm == vm.id.as_str()
            };
            // One's own comes first: a name may be there twice while a cluster learns of a move.
            let seen = match (reached, listed.iter().find(named)) {
                (false, _) => Sighting::Silent,
                (true, None) => Sighting::Absent,
                (true, Some(found)) => sighting(host, found),
            };
            if target.see(host, &seen) {
                tracing::debug!(vm = target.vm, %host, ?seen, "news");
                new = true;
            }
        }
        if new {
            self.news.send_replace(());
        }
        reached
    }
}

fn events() -> EventsRequest {
    EventsRequest {
        // Words of the API, which are known.
        kind: EventKinds::try_from("vm,migration".to_owned()).unwrap_or_default(),
        vm: None,
        family: None,
        since: None,
        follow: true,
    }
}

fn late(client: &Client) -> ClientError {
    ClientError::Unreachable {
        place: client.place(),
        source: std::io::ErrorKind::TimedOut.into(),
    }
}

/// Reads what `host` lists.
fn sighting(host: &HostName, listed: &ListedVm) -> Sighting {
    let node = listed.node.as_ref().map(|it| HostName::new(it.to_string()));
    let vm = &listed.vm;
    if let Some(at) = vm.host.as_ref().map(HostName::new) {
        return Sighting::Elsewhere { at };
    }
    match node {
        Some(_) if listed.lost => return Sighting::Silent,
        Some(at) if at != *host => return Sighting::Elsewhere { at },
        Some(_) | None => {}
    }
    if let Some(to) = vm.moving.as_ref().map(HostName::new) {
        return Sighting::Leaving { to };
    }
    match vm.state {
        VmState::Running => Sighting::Runs,
        VmState::Starting => Sighting::Starts,
        VmState::Warm
        | VmState::Paused
        | VmState::Stopped
        | VmState::Checkpoint
        | VmState::Ending => Sighting::Still {
            state: vm.state.to_string(),
        },
    }
}
