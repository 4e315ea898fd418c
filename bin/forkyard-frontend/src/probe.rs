//! Health checks of a service's VMs.
//!
//! Only a VM that runs is checked: what fails while it moves says nothing of its server.

use crate::{
    counts,
    service::{Service, ToTarget},
    target::Target,
};
use bytes::Bytes;
use forkyard_frontend::ProbeOutcome;
use forkyard_gateway::{ForwardedRequest, repeatedly};
use http_body_util::BodyExt;
use hyper::{
    HeaderMap, Method, Uri,
    header::{self, HeaderValue},
};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout_at};

/// Checks one VM again and again, for ever.
pub async fn check(service: Arc<Service>, target: Arc<Target>) {
    let health = &service.entry.health;
    counts::healthy(&service.name, &target.vm, true);
    loop {
        if let Some(place) = target.place() {
            let until = Instant::now() + Duration::from_secs(health.timeout_s);
            let answered = timeout_at(until, answers(&service, &target, until));
            let probe = match answered.await {
                Ok(true) => ProbeOutcome::Answered,
                Ok(false) | Err(_) => ProbeOutcome::Failed,
            };
            service.probed(&target, probe, Some(&place));
        }
        sleep(Duration::from_secs(health.every_s)).await;
    }
}

async fn answers(service: &Service, target: &Target, until: Instant) -> bool {
    let way = ToTarget {
        service,
        target,
        until,
        counts: false,
    };
    let Some(path) = &service.entry.health.path else {
        return service.connect(&way).await.is_ok();
    };
    let Ok(uri) = path.parse::<Uri>() else {
        return false;
    };
    let mut headers = HeaderMap::new();
    let host = service.entry.names.iter().find(|name| *name != "*");
    let host = host.map_or("localhost", String::as_str);
    if let Ok(host) = HeaderValue::from_str(host) {
        headers.insert(header::HOST, host);
    }
    let agent = HeaderValue::from_static("forkyard-frontend (health check)");
    headers.insert(header::USER_AGENT, agent);
    let sent = ForwardedRequest {
        method: Method::GET,
        uri,
        headers,
        body: Bytes::new(),
    };
    let Ok(answer) = repeatedly(&service.pool, &way, &sent).await else {
        return false;
    };
    let good = !answer.response.status().is_server_error();
    good && answer.response.into_body().collect().await.is_ok()
}
