//! The REST API.

use super::{
    E2b, Who,
    input::{Path, body, counted, spawned},
    reply::Failure,
};
use axum::{
    Json, Router,
    extract::{RawQuery, Request, State, rejection::JsonRejection},
    http::{HeaderName, HeaderValue, StatusCode},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{delete, get, post, put},
};
use forkyard_e2b::{
    ENVD_VERSION, ForkResult, ListQuery, NewSandbox, OURS, PRIVATE, PauseRequest, Sandbox,
    SandboxDetail, SandboxForkRequest, SandboxState as Life, SnapshotInfo, SnapshotRequest,
    TEMPLATE, TimeoutRequest, Undone, check, labels, lifetime, rfc3339,
};
use forkyard_types::{
    CheckpointRequest, CloneResult, ForkMode, NetworkPolicy, RunRequest, VmName, VmState, VmView,
    WayOut,
};
use std::collections::BTreeMap;

/// Name of the user that makes sandboxes.
const CLIENT: &str = "forkyard";
/// Seconds after which a VM without an end is said to end: a hundred years.
const NEVER_S: u64 = 3_155_760_000;
/// Most forks of one request.
const FORKS: u16 = 100;
const NEXT: HeaderName = HeaderName::from_static("x-next-token");

type Answer<T> = Result<T, Failure>;
type Shared = State<E2b>;

/// The routes.
pub fn router(e2b: E2b) -> Router {
    let sandbox = |rest: &str| format!("/sandboxes/{{id}}{rest}");
    Router::new()
        .route("/sandboxes", post(create).get(list_running))
        .route("/v2/sandboxes", post(create).get(list))
        .route(&sandbox(""), get(one).delete(kill))
        .route(&sandbox("/timeout"), post(set_timeout))
        .route(&sandbox("/refreshes"), post(refresh))
        .route(&sandbox("/pause"), post(pause))
        .route(&sandbox("/resume"), post(connect))
        .route(&sandbox("/connect"), post(connect))
        .route(&format!("/v2{}", sandbox("/connect")), post(connect))
        .route(&sandbox("/fork"), post(fork))
        .route(&sandbox("/snapshots"), post(snapshot))
        .route(&sandbox("/metrics"), get(super::metrics::of_sandbox))
        .route(&sandbox("/network"), put(network))
        .route("/snapshots", get(snapshots))
        .route("/templates/{id}", delete(remove_template))
        .fallback(async || Failure::unsupported("this path"))
        .layer(from_fn_with_state(e2b.clone(), counted))
        .layer(from_fn(crate::audit::note))
        .layer(from_fn_with_state(e2b.clone(), admit))
        .with_state(e2b)
}

async fn admit(State(e2b): Shared, mut request: Request, next: Next) -> Response {
    match e2b.admit(Who::of(&request)).await {
        Ok(asker) => {
            request
                .extensions_mut()
                .insert(crate::gate::Asker::User(asker));
            next.run(request).await
        }
        Err(failure) => failure.into_response(),
    }
}

async fn create(
    State(e2b): Shared,
    asked: Result<Json<NewSandbox>, JsonRejection>,
) -> Answer<Response> {
    let wanted = body(asked)?;
    check(&wanted).map_err(undone)?;
    let vm = spawned(async move {
        let made = e2b.make(&wanted).await?;
        Ok(e2b.told(&made))
    })
    .await?;
    Ok((StatusCode::CREATED, Json(vm)).into_response())
}

fn undone(why: Undone) -> Failure {
    match why {
        Undone::Unsupported(what) => Failure::unsupported(&what),
        Undone::Reserved(_) => Failure::invalid(why.to_string()),
    }
}

impl E2b {
    async fn make(&self, wanted: &NewSandbox) -> Answer<VmView> {
        let labels = labels(wanted);
        let lifetime = lifetime(&labels, wanted.timeout);
        let template = match wanted.template.as_str() {
            "base" if self.host.find("base").is_err() => self.choices.base.clone(),
            other => other.to_owned(),
        };
        let kept = self.host.find(&template).ok();
        let kept = kept.filter(|vm| vm.state == VmState::Checkpoint);
        // An image's name is that image's, whatever a snapshot is called.
        let is_other = match &kept {
            Some(kept) => kept.id.as_str() != template && self.is_image(&template).await,
            None => false,
        };
        if let Some(kept) = kept.filter(|_| !is_other) {
            let made = self.fork(kept.id.to_string(), 1).await?.pop();
            let made = made.ok_or_else(|| Failure::not_found("no clone was made"))??;
            let id = made.id.to_string();
            self.host.set_env(&id, wanted.env_vars.clone())?;
            self.host.set_labels(&id, labels)?;
            return Ok(self.host.set_lifetime(&id, Some(lifetime))?);
        }
        let out = match wanted.allow_internet_access {
            Some(false) => WayOut::None,
            Some(true) | None => WayOut::Nat,
        };
        let request = RunRequest {
            image: template,
            name: None,
            vcpus: 1,
            memory: None,
            memory_mib: Some(self.choices.memory_mib),
            warm: 0,
            kernel: None,
            max_clones: None,
            secrets: Vec::new(),
            network: NetworkPolicy {
                out,
                ..NetworkPolicy::default()
            },
            volume: None,
            data: Vec::new(),
            cold: false,
            labels,
            env: wanted.env_vars.clone(),
            lifetime: Some(lifetime),
            idle: None,
            restart: forkyard_types::Restart::No,
            cpu_baseline: Vec::new(),
            join: None,
        };
        Ok(self.host.run(request).await?)
    }

    async fn is_image(&self, name: &str) -> bool {
        self.host.image(name).await.is_ok()
    }

    async fn fork(&self, vm: String, count: u16) -> Answer<Vec<Answer<VmView>>> {
        let request = forkyard_types::ForkRequest {
            count,
            ..forkyard_types::ForkRequest::default()
        };
        let made = self.host.fork(&vm, request).await?;
        let each = made.clones.into_iter().map(|clone| match clone {
            CloneResult::Vm(vm) => Ok(*vm),
            CloneResult::Error(error) => Err(error.into()),
        });
        Ok(each.collect())
    }

    /// Makes a VM that was not made here a sandbox, as a client with an API key wants it: its ports
    /// are those of sandboxes from now on.
    fn adopt(&self, vm: VmView) -> Answer<VmView> {
        if vm.labels.0.contains_key(TEMPLATE) {
            return Ok(vm);
        }
        let mut labels = vm.labels;
        labels.0.insert(TEMPLATE.into(), vm.image);
        Ok(self.host.set_labels(vm.id.as_str(), labels)?)
    }

    /// A sandbox as its maker is told of it.
    fn told(&self, vm: &VmView) -> Sandbox {
        let private = vm.labels.0.contains_key(PRIVATE);
        Sandbox {
            template: template(vm),
            id: vm.id.to_string(),
            client: CLIENT,
            envd_version: ENVD_VERSION,
            envd_access_token: self.key.token("envd", vm.id),
            traffic_access_token: private.then(|| self.key.token("traffic", vm.id)),
            domain: Some(self.domain.clone()),
        }
    }
}

fn template(vm: &VmView) -> String {
    let named = vm.labels.0.get(TEMPLATE);
    named.unwrap_or(&vm.image).clone()
}

fn metadata(vm: &VmView) -> BTreeMap<String, String> {
    let labels = vm.labels.0.iter();
    let own = labels.filter(|(name, _)| !name.starts_with(OURS));
    own.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn detail(vm: &VmView) -> Option<SandboxDetail> {
    let state = match vm.state {
        VmState::Running => Life::Running,
        VmState::Paused => Life::Paused,
        VmState::Starting
        | VmState::Warm
        | VmState::Stopped
        | VmState::Checkpoint
        | VmState::Ending => return None,
    };
    let ends = vm
        .ends
        .map_or(vm.created.saturating_add(NEVER_S), |ends| ends.at);
    let time = |seconds: u64| {
        rfc3339(
            i64::try_from(seconds)
                .unwrap_or(0)
                .saturating_mul(1_000_000_000),
        )
    };
    Some(SandboxDetail {
        template: template(vm),
        alias: template(vm),
        id: vm.id.to_string(),
        client: CLIENT,
        started_at: time(vm.created),
        end_at: time(ends),
        cpu_count: vm.vcpus,
        memory_mb: vm.memory.0 >> 20,
        disk_size_mb: 0,
        state,
        metadata: metadata(vm),
        envd_version: ENVD_VERSION,
        envd_access_token: None,
        domain: None,
    })
}

async fn list_running(state: Shared, RawQuery(query): RawQuery) -> Answer<Response> {
    let query = format!("state=running&{}", query.unwrap_or_default());
    list(state, RawQuery(Some(query))).await
}

async fn list(State(e2b): Shared, RawQuery(query): RawQuery) -> Answer<Response> {
    let query = ListQuery::of(&query.unwrap_or_default()).map_err(Failure::invalid)?;
    let mut all: Vec<_> = e2b.host.list().iter().filter_map(detail).collect();
    all.retain(|vm| {
        let state = match vm.state {
            Life::Running => "running",
            Life::Paused => "paused",
        };
        let is_of =
            |words: &[String], word: &str| words.is_empty() || words.iter().any(|it| it == word);
        let has = |(name, value): (&String, &String)| vm.metadata.get(name) == Some(value);
        is_of(&query.states, state)
            && is_of(&query.templates, &vm.template)
            && query.metadata.iter().all(has)
    });
    Ok(paged(query.page(all)))
}

fn paged<T: serde::Serialize>((page, next): (Vec<T>, Option<String>)) -> Response {
    let mut response = Json(page).into_response();
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert(NEXT, next);
    }
    response
}

async fn one(State(e2b): Shared, Path(id): Path) -> Answer<Json<SandboxDetail>> {
    let vm = e2b.any_sandbox(&id)?;
    let mut told = detail(&vm).ok_or_else(|| Failure::not_found("it has ended"))?;
    told.envd_access_token = Some(e2b.key.token("envd", vm.id));
    told.domain = Some(e2b.domain.clone());
    Ok(Json(told))
}

async fn kill(State(e2b): Shared, Path(id): Path) -> Answer<StatusCode> {
    e2b.any_sandbox(&id)?;
    spawned(async move { Ok(e2b.host.remove(&id).await?) }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn set_timeout(
    State(e2b): Shared,
    Path(id): Path,
    asked: Result<Json<TimeoutRequest>, JsonRejection>,
) -> Answer<StatusCode> {
    let wanted = body(asked)?;
    let vm = e2b.any_sandbox(&id)?;
    e2b.host
        .set_lifetime(&id, Some(lifetime(&vm.labels, wanted.timeout)))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Moves a sandbox's end on, never nearer.
async fn refresh(
    State(e2b): Shared,
    Path(id): Path,
    asked: Result<Json<TimeoutRequest>, JsonRejection>,
) -> Answer<StatusCode> {
    let wanted = asked.map(|Json(wanted)| wanted).unwrap_or_default();
    let vm = e2b.any_sandbox(&id)?;
    e2b.extend(&vm, wanted.duration)?;
    Ok(StatusCode::NO_CONTENT)
}

impl E2b {
    fn extend(&self, vm: &VmView, timeout: Option<u32>) -> Answer<VmView> {
        let wanted = lifetime(&vm.labels, timeout);
        let end = crate::now().saturating_add(wanted.ttl_s.into());
        let sooner = vm.ends.is_some_and(|ends| ends.at >= end);
        match sooner {
            true => Ok(vm.clone()),
            false => Ok(self.host.set_lifetime(vm.id.as_str(), Some(wanted))?),
        }
    }
}

async fn pause(
    State(e2b): Shared,
    Path(id): Path,
    asked: Result<Json<PauseRequest>, JsonRejection>,
) -> Answer<StatusCode> {
    let wanted = asked.map(|Json(wanted)| wanted).unwrap_or_default();
    if wanted.memory == Some(false) {
        return Err(Failure::unsupported("to pause without memory"));
    }
    let vm = e2b.any_sandbox(&id)?;
    if vm.state == VmState::Paused {
        return Err(Failure::exists(format!("sandbox {id:?} is paused")));
    }
    spawned(async move {
        e2b.host.pause(&id).await?;
        // What stands still is not ended by its time.
        Ok(e2b.host.set_lifetime(&id, None)?)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn connect(
    State(e2b): Shared,
    Path(id): Path,
    asked: Result<Json<TimeoutRequest>, JsonRejection>,
) -> Answer<Response> {
    let wanted = asked.map(|Json(wanted)| wanted).unwrap_or_default();
    let vm = e2b.any_sandbox(&id)?;
    let (status, vm) = match vm.state == VmState::Paused {
        true => {
            let lifetime = lifetime(&vm.labels, wanted.timeout);
            let resumed = { e2b.clone() };
            let vm = spawned(async move {
                resumed.host.resume(&id).await?;
                Ok(resumed.host.set_lifetime(&id, Some(lifetime))?)
            });
            (StatusCode::CREATED, vm.await?)
        }
        false => (StatusCode::OK, e2b.extend(&vm, wanted.timeout)?),
    };
    let vm = e2b.adopt(vm)?;
    Ok((status, Json(e2b.told(&vm))).into_response())
}

async fn fork(
    State(e2b): Shared,
    Path(id): Path,
    asked: Result<Json<SandboxForkRequest>, JsonRejection>,
) -> Answer<Response> {
    let wanted = asked.map(|Json(wanted)| wanted).unwrap_or_default();
    let count = wanted.count.unwrap_or(1);
    if !(1..=FORKS).contains(&count) {
        return Err(Failure::invalid(format!(
            "{count} forks: 1 to {FORKS} are allowed"
        )));
    }
    let vm = e2b.any_sandbox(&id)?;
    let results = spawned(async move {
        let lifetime = lifetime(&vm.labels, wanted.timeout);
        let made = e2b.fork(id, count).await?;
        let each = made.into_iter().map(|clone| {
            let given = clone
                .and_then(|clone| Ok(e2b.host.set_lifetime(clone.id.as_str(), Some(lifetime))?))
                .and_then(|clone| e2b.adopt(clone));
            match given {
                Ok(vm) => ForkResult::Sandbox(e2b.told(&vm)),
                Err(failure) => ForkResult::Error(failure.body()),
            }
        });
        Ok(each.collect::<Vec<_>>())
    });
    Ok((StatusCode::CREATED, Json(results.await?)).into_response())
}

async fn snapshot(
    State(e2b): Shared,
    Path(id): Path,
    asked: Result<Json<SnapshotRequest>, JsonRejection>,
) -> Answer<Response> {
    let wanted = asked.map(|Json(wanted)| wanted).unwrap_or_default();
    if wanted.memory == Some(false) {
        return Err(Failure::unsupported("a snapshot without memory"));
    }
    e2b.any_sandbox(&id)?;
    let name = wanted.name.map(|name| name.parse::<VmName>()).transpose();
    let name = name.map_err(|wrong| Failure::invalid(wrong.to_string()))?;
    if let Some(name) = &name
        && e2b.is_image(name.as_str()).await
    {
        return Err(Failure::exists(format!(
            "{name:?} is the name of an image: choose another"
        )));
    }
    let kept = spawned(async move {
        let request = CheckpointRequest {
            name,
            mode: ForkMode::default(),
        };
        Ok(e2b.host.checkpoint(&id, request).await?)
    });
    Ok((StatusCode::CREATED, Json(snapshot_of(&kept.await?))).into_response())
}

fn snapshot_of(vm: &VmView) -> SnapshotInfo {
    SnapshotInfo {
        id: vm.name.to_string(),
        names: vec![vm.name.to_string()],
    }
}

async fn snapshots(State(e2b): Shared, RawQuery(query): RawQuery) -> Answer<Response> {
    let query = ListQuery::of(&query.unwrap_or_default()).map_err(Failure::invalid)?;
    let of = query.sandbox.as_deref();
    let mut all = e2b.host.list();
    all.retain(|vm| {
        let parent = vm.parent.map(|parent| parent.to_string());
        vm.state == VmState::Checkpoint && (of.is_none() || of == parent.as_deref())
    });
    Ok(paged(query.page(all.iter().map(snapshot_of).collect())))
}

async fn remove_template(State(e2b): Shared, Path(id): Path) -> Answer<StatusCode> {
    let found = e2b.host.find(&id).ok();
    if !found.is_some_and(|vm| vm.state == VmState::Checkpoint) {
        return Err(Failure::not_found(format!("snapshot {id:?} was not found")));
    }
    spawned(async move { Ok(e2b.host.remove(&id).await?) }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn network() -> Failure {
    Failure::unsupported("to change a network")
}
