//! Roles: whether this front-end is the nearest to a service's VM, and what the DNS says then.

use crate::{
    config::Config,
    counts,
    dns::NameServer,
    hosts::Hosts,
    service::{Service, State},
};
use forkyard_frontend::{Nearest, Record};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// Between two looks, whatever is new or not.
const EVERY: Duration = Duration::from_secs(1);

/// Leads one service, for ever.
pub async fn lead(
    service: Arc<Service>,
    hosts: Arc<Hosts>,
    config: Arc<Config>,
    server: Option<Arc<NameServer>>,
) {
    let record = record(&service, &config);
    counts::role(&service.name, service.state().role);
    loop {
        let mut news = hosts.news();
        // The nearest host's own word, of this moment: nothing is written upon anything else.
        let sure = step(&service, &config) == Nearest::Here;
        if let (Some(record), Some(server)) = (&record, &server) {
            publish(&service, record, server, sure).await;
        }
        tokio::select! {
            _ = news.changed() => {}
            () = sleep(EVERY) => {}
        }
    }
}

/// Returns what the DNS is to say while this front-end is active.
fn record(service: &Service, config: &Config) -> Option<Record> {
    let own = config.frontend.get(config.name.as_ref()?)?;
    Some(Record {
        name: service.entry.record.clone()?,
        ttl: Duration::from_secs(config.dns.as_ref()?.ttl_s.into()),
        addresses: own.addresses.clone(),
    })
}

/// Finds the role anew; returns the reason for it.
fn step(service: &Service, config: &Config) -> Nearest {
    let place = service.place();
    let front = { place.as_ref() }.and_then(|host| config.nearest(&host.to_string()));
    let nearest = match front {
        Some((name, _)) if Some(name) == config.name.as_ref() => Nearest::Here,
        Some(_) => Nearest::Other,
        // One that is alone is the nearest.
        None if config.frontend.is_empty() && place.is_some() => Nearest::Here,
        None => Nearest::Unknown,
    };
    let quiet = Duration::from_secs(config.bounds.quiet_s);
    let before = service.state();
    let role = before
        .role
        .after(nearest, service.traffic(), service.now(), quiet);
    if role.name() != before.role.name() {
        tracing::info!(service = service.name, from = %before.role, to = %role, "role");
        counts::role(&service.name, role);
    }
    let address = match (nearest, front) {
        (Nearest::Here, _) => None,
        (Nearest::Other, Some((_, entry))) => entry.url.clone(),
        (Nearest::Other, None) | (Nearest::Unknown, _) => before.nearest,
    };
    service.becomes(State {
        role,
        publication: before.publication.under(role),
        nearest: address,
    });
    nearest
}

/// Sees to it that the DNS says what it is to say, if that is this front-end's matter.
async fn publish(service: &Service, record: &Record, server: &NameServer, sure: bool) {
    let state = service.state();
    if !state.publication.is_due(state.role, sure, service.now()) {
        return;
    }
    let outcome = async {
        let found = server.addresses(&record.name).await?;
        let Some(update) = record.differs(&found) else {
            return Ok(());
        };
        server.update(&update).await?;
        counts::updated(&service.name);
        tracing::info!(
            service = service.name,
            record = record.name,
            from = ?found,
            to = ?record.addresses,
            "the DNS says where it is now"
        );
        let found = server.addresses(&record.name).await?;
        let right = record.differs(&found).is_none();
        anyhow::ensure!(
            right,
            "{} has accepted the update and says {found:?}: is there an alias, or another program that updates it?",
            record.name
        );
        Ok(())
    };
    let outcome: anyhow::Result<()> = outcome.await;
    counts::looked(&service.name, outcome.is_ok());
    if let Err(error) = &outcome {
        tracing::warn!(
            service = service.name,
            error = format!("{error:#}"),
            "the DNS may lead elsewhere"
        );
    }
    let now = service.now();
    let before = service.state();
    service.becomes(State {
        publication: before.publication.after(&outcome, now).under(before.role),
        ..before
    });
}
