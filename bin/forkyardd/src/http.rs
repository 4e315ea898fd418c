//! The API: routes, each with its description, and nothing but translation
//! between HTTP and the host. A route that is not described does not exist.

mod events;
mod exec;
mod files;
mod friendly;
mod host;
mod images;
mod independence;
mod links;
mod network;
mod nodes;
mod peer;
mod police;
pub mod ports;
mod sched;
mod shares;
mod stores;
mod substrates;
mod terms;
mod tickets;
mod tokens;
mod vms;
mod volumes;

pub use forkyard_service::{
    bodies::{Bodies, Budget},
    gone::end_with_client,
    input::{Input, Path, Query, Raw},
    local,
    parameters::Parameters,
    streams::Streams,
    unread::read_out,
};

use crate::{
    audit, forward,
    gate::{self, Gate},
    idle::Idle,
    metrics, page,
    police::Station,
    reply::Refusal,
};
use axum::{
    Json, Router,
    extract::{FromRef, Request, State},
    middleware::{Next, from_fn, from_fn_with_state},
    response::Response,
    routing::any,
};
use forkyard_auth::Access;
use forkyard_fork::Host;
use forkyard_node::Node;
use forkyard_types::{
    ErrorKind, ExecEvent, ExecInput, ExportFormat, ImportFormat, RemoteView, Transport,
};
use forkyard_vcpu_dispatch::Service;
use std::sync::Arc;
use utoipa::{
    Modify, OpenApi,
    openapi::{
        ServerBuilder,
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

/// State that handlers share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The host.
    pub host: Arc<Host>,
    /// Tokens that grant use over the network.
    pub access: Arc<Access>,
    /// Address over the network, if it listens there.
    pub remote: Option<RemoteView>,
    /// Counters of the daemon.
    pub metrics: metrics::Metrics,
    /// Decides whether the daemon may end.
    pub idle: Idle,
    /// The cluster that it is a node of, if it is one.
    pub cluster: Option<Node>,
    /// Memory for bodies of requests.
    pub bodies: Bodies,
    /// Bounds on streams of events.
    pub streams: Streams,
    /// The host's dispatcher of vCPUs.
    pub sched: Service,
    /// Police of the host's guests.
    pub police: Station,
}

macro_rules! part {
    ($field:ident: $part:ty) => {
        impl FromRef<Shared> for $part {
            fn from_ref(shared: &Shared) -> Self {
                shared.$field.clone()
            }
        }
    };
}
part!(host: Arc<Host>);
part!(access: Arc<Access>);
part!(metrics: metrics::Metrics);
part!(idle: Idle);
part!(cluster: Option<Node>);
part!(streams: Streams);
part!(sched: Service);
part!(police: Station);

/// Result of a handler.
type Answer<T> = Result<Json<T>, Refusal>;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Forkyard",
        description = "Fork running virtual machines. `{vm}` is a name or an id. A request that changes something is \
            carried out to its end even if the client goes away."
    ),
    components(schemas(ExecEvent, ExecInput, ImportFormat, ExportFormat, Transport)),
    modifiers(&Reached)
)]
struct Description;

/// Address of the API, and what it takes to be let in.
struct Reached;

impl Modify for Reached {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "From `forkyard token create`; over the network only, not on the Unix socket.",
            ))
            .build();
        api.components
            .get_or_insert_default()
            .add_security_scheme("token", SecurityScheme::Http(bearer));
        api.security = Some(vec![SecurityRequirement::new::<_, [&str; 0], &str>(
            "token",
            [],
        )]);
        let server = ServerBuilder::new()
            .url("https://{host}:{port}")
            .description(Some(
                "`forkyardd --listen`; the same on the Unix socket `api.sock` in the run folder",
            ))
            .parameter(
                "host",
                utoipa::openapi::ServerVariableBuilder::new().default_value("localhost"),
            )
            .parameter(
                "port",
                utoipa::openapi::ServerVariableBuilder::new().default_value("7433"),
            )
            .build();
        api.servers = Some(vec![server]);
    }
}

/// Builds the routes that every user of the API may call, from anywhere.
fn common() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(host::ping))
        .routes(routes!(host::hosts))
        .routes(routes!(events::events))
        .routes(routes!(vms::list, vms::run))
        .routes(routes!(vms::one, vms::remove))
        .routes(routes!(vms::fork))
        .routes(routes!(vms::forks))
        .routes(routes!(vms::checkpoint))
        .routes(routes!(vms::migrate))
        .merge(
            OpenApiRouter::new()
                .routes(routes!(exec::exec, exec::exec_socket))
                .routes(routes!(peer::clones))
                .routes(routes!(peer::activations))
                .routes(routes!(peer::migrations))
                .routes(routes!(peer::volume))
                .routes(routes!(peer::commands))
                .routes(routes!(peer::supply))
                .routes(routes!(peer::volumes))
                .routes(routes!(peer::hold))
                .routes(routes!(peer::families))
                .routes(routes!(peer::ticket))
                .layer(forkyard_service::input::at_most(
                    forkyard_service::bodies::INPUT,
                )),
        )
        .routes(routes!(files::read_tree, files::write_tree))
        .routes(routes!(
            files::read_file,
            files::write_file,
            files::remove_file
        ))
        .routes(routes!(files::stat))
        .routes(routes!(files::rename))
        .routes(routes!(files::watch))
        .routes(routes!(files::list, files::make_folder))
        .routes(routes!(vms::logs))
        .routes(routes!(vms::console))
        .routes(routes!(ports::connect))
        .routes(routes!(vms::inspect))
        .routes(routes!(independence::begin))
        .routes(routes!(vms::stop))
        .routes(routes!(vms::start))
        .routes(routes!(exec::sessions))
        .routes(routes!(exec::attach, exec::attach_socket, exec::kill))
        .routes(routes!(terms::set_lifetime, terms::remove_lifetime))
        .routes(routes!(terms::set_idle, terms::remove_idle))
        .routes(routes!(terms::set_restart))
        .routes(routes!(terms::set_labels))
        .routes(routes!(terms::rename))
        .routes(routes!(shares::create, shares::list))
        .routes(routes!(shares::remove))
        .routes(routes!(network::egress))
        .routes(routes!(network::publish))
        .routes(routes!(network::unpublish))
        .routes(routes!(vms::pause))
        .routes(routes!(vms::resume))
        .routes(routes!(vms::usage))
        .routes(routes!(friendly::show, friendly::set, friendly::end))
        .routes(routes!(police::show, police::begin, police::end))
        .routes(routes!(sched::show))
        .routes(routes!(sched::show_host, sched::set, sched::release))
        .routes(routes!(tickets::list))
        .routes(routes!(tickets::remove))
        .routes(routes!(images::images))
        .routes(routes!(
            images::image,
            images::build_image,
            images::remove_image,
            images::import_image
        ))
        .routes(routes!(images::export_image))
        .routes(routes!(images::pull_image))
        .routes(routes!(images::commit_image))
        .routes(routes!(images::build_from))
        .routes(routes!(images::export_disk))
        .routes(routes!(substrates::list, substrates::dock))
        .routes(routes!(substrates::inspect, substrates::remove))
        .routes(routes!(substrates::activate))
        .routes(routes!(substrates::activations))
        .routes(routes!(substrates::standby))
        .routes(routes!(substrates::push))
        .routes(routes!(substrates::pull))
        .routes(routes!(substrates::key))
        .routes(routes!(stores::list, stores::remove))
        .routes(routes!(stores::collect))
        .routes(routes!(stores::keys, stores::trust))
        .routes(routes!(stores::forget))
        .routes(routes!(volumes::list, volumes::create))
        .routes(routes!(volumes::inspect, volumes::remove))
        .routes(routes!(volumes::snapshot))
        .routes(routes!(volumes::drop_snapshot))
        .routes(routes!(volumes::resize))
        .routes(routes!(volumes::tune))
        .routes(routes!(volumes::why))
        .routes(routes!(volumes::mirror))
        .routes(routes!(volumes::promote))
        .routes(routes!(volumes::move_to))
        .routes(routes!(volumes::bring))
        .routes(routes!(links::list))
        .routes(routes!(links::set_budget))
        .routes(routes!(volumes::export))
        .routes(routes!(nodes::list))
        .routes(routes!(nodes::drain))
        .routes(routes!(nodes::activate))
        .routes(routes!(nodes::remove))
        .routes(routes!(nodes::join))
        .routes(routes!(nodes::quotas))
        .routes(routes!(host::pages))
        .routes(routes!(host::examine, host::repair))
        .routes(routes!(metrics::render))
        .routes(routes!(openapi))
}

/// Builds the routes that may be called on the host itself only.
fn local_only() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::remove))
        .routes(routes!(nodes::invite))
        .routes(routes!(nodes::set_quota))
        .routes(routes!(sched::set_process, sched::release_process))
        .route_layer(from_fn(local::for_root))
}

/// The description of the whole API, as JSON.
pub fn description() -> anyhow::Result<String> {
    let api = common().merge(local_only()).into_openapi();
    Ok(api.to_pretty_json()? + "\n")
}

/// The API as served on the Unix socket, to root and to the members of its group.
pub fn local(shared: &Shared) -> Router {
    finish(common().merge(local_only()), shared)
        .layer(from_fn(local::tell))
        .layer(from_fn(read_out))
}

/// The API as served over the network, to those with a token alone, and the page that uses it.
pub fn remote(shared: &Shared) -> Router {
    let forbidden = || any(async move || local::roots_alone());
    let api = common()
        .route("/v1/tokens", forbidden())
        .route("/v1/tokens/{token}", forbidden());
    let api = api
        .route("/v1/quotas/{user}", forbidden())
        .route("/v1/sched/processes/{pid}", forbidden())
        .route(
            "/v1/nodes",
            axum::routing::post(async move || local::roots_alone()),
        );
    let gate = Gate {
        access: shared.access.clone(),
        cluster: shared.cluster.as_ref().map(|node| node.cluster().clone()),
    };
    // The page is for users that have shown no token yet.
    finish(api, shared)
        .layer(from_fn_with_state(gate, gate::judge))
        .merge(page::router())
        .layer(from_fn(read_out))
}

fn finish(api: OpenApiRouter<Shared>, shared: &Shared) -> Router {
    let (router, api) = api.split_for_parts();
    forkyard_service::input::in_form(router)
        .with_state(shared.clone())
        .layer(from_fn_with_state(
            Parameters::of(&api),
            forkyard_service::parameters::check,
        ))
        .layer(from_fn_with_state(
            shared.bodies.clone(),
            forkyard_service::bodies::budget,
        ))
        .layer(from_fn_with_state(shared.clone(), forward::route))
        .layer(from_fn_with_state(shared.idle.clone(), busy))
        .layer(from_fn(audit::note))
        .layer(from_fn(end_with_client))
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", tag = "host",
    responses((status = 200, body = serde_json::Value, description = "OpenAPI 3.1"), Refusal))]
async fn openapi() -> Result<impl axum::response::IntoResponse, Refusal> {
    let text = description().map_err(|error| {
        tracing::error!(%error, "the API cannot be described");
        Refusal::new(
            ErrorKind::Host,
            "the API cannot be described: this is a bug",
        )
    })?;
    Ok((
        [(axum::http::header::CONTENT_TYPE, "application/json")],
        text,
    ))
}

/// A daemon with a request under way is not idle.
pub async fn busy(State(idle): State<Idle>, request: Request, next: Next) -> Response {
    let _busy = idle.busy();
    next.run(request).await
}

/// Runs work to its end whatever becomes of the connection that asked for it.
async fn spawned<T: Send + 'static, E: Into<Refusal> + Send + 'static>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, Refusal> {
    use tracing::Instrument as _;
    match tokio::spawn(work.in_current_span()).await {
        Ok(outcome) => outcome.map_err(Into::into),
        Err(panic) => Err(Refusal::bug(&panic)),
    }
}
