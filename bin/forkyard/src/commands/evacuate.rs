//! `forkyard evacuate`: has all VMs of a host move to others.
//!
//! ```text
//! look (VMs, hosts) --> plan --> drain --> the plan's first move, several at a time --ended--> look at
//!                                          what is left, plan anew, ... until nothing moves any more
//! ```
//!
//! What is left is found out by looking: a command that was ended is begun again, and goes on. A VM
//! that does not get to one host is tried at another.

use super::{signals::interruptible, vms::PARTLY};
use crate::{
    args::{Format, IfStuck},
    output::{self, json},
};
use anyhow::{Context as _, bail};
use clap::Args;
use forkyard_api_client::{Client, ClientError, of_vm};
use forkyard_evacuate::{EvacuationPlan, HostedVm, PlanBounds, Stay, TargetHost, VmMove, plan};
use forkyard_types::{
    ByteCount, DiskTransfer, ListedVm, MigrateRequest, MigrateResponse, MigrationReport, NodeName,
    NodeState, NodeView, Room, Usage, VmId, VmName, VmView,
};
use hyper::Method;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU8,
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// Hint about an evacuation that goes on without this program.
const GOES_ON: &str =
    "moves that have begun go on; `forkyard evacuate` again moves what is left then";

/// `evacuate`
#[derive(Debug, Args)]
pub struct Evacuate {
    /// Node of the cluster; the one that is asked if absent.
    pub node: Option<NodeName>,
    /// Hosts that VMs may move to; all active nodes of the cluster if absent.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub to: Vec<String>,
    /// Time within which VMs must be there, as in 10m. Those that will not make it stay.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub deadline: Option<Duration>,
    /// Labels of VMs that leave first, the most important one first; the others follow.
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    pub priority: Vec<(String, String)>,
    /// VMs that move at a time.
    #[arg(long, default_value = "2")]
    pub at_once: NonZeroU8,
    /// MiB a second that are believed to be sent, until some VMs have moved.
    #[arg(long, value_name = "MIB", default_value = "24")]
    pub rate: u32,
    /// Treatment of a VM that writes memory as fast as that is sent.
    #[arg(long, value_enum, default_value = "give-up")]
    pub if_stuck: IfStuck,
    /// Say what would move where, and what would stay and why; do nothing.
    #[arg(long)]
    pub plan: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=');
    let parts = parts.ok_or("a label is NAME=VALUE")?;
    Ok((parts.0.to_owned(), parts.1.to_owned()))
}

/// Outcome.
#[derive(Debug, Serialize)]
struct Outcome {
    plan: EvacuationPlan,
    moved: Vec<Moved>,
    stays: Vec<Stay>,
}

/// A VM that has moved.
#[derive(Debug, Serialize)]
struct Moved {
    id: VmId,
    vm: VmName,
    to: String,
    report: MigrationReport,
}

/// Moves that did not succeed, by VM: where to, and what was said last.
#[derive(Debug, Default)]
struct Failures(BTreeMap<VmId, (BTreeSet<String>, String)>);

/// Rate at which VMs were sent, of what was planned for each: what is sent in fact may be less, and of
/// the next ones likewise.
#[derive(Debug)]
struct Seen {
    believed: ByteCount,
    bytes: u64,
    since: Instant,
}

impl Seen {
    fn rate(&self) -> ByteCount {
        let ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        match self.bytes {
            0 => self.believed,
            bytes => ByteCount(bytes.saturating_mul(1000) / ms.max(1)),
        }
    }
}

/// Has all VMs of a host move.
pub async fn evacuate(
    client: &Client,
    format: Format,
    wanted: Evacuate,
) -> anyhow::Result<ExitCode> {
    let place = Place::find(client, &wanted).await?;
    let begun = Instant::now();
    let seen = Seen {
        believed: ByteCount(u64::from(wanted.rate) << 20),
        bytes: 0,
        since: begun,
    };
    let first = look(
        client,
        &place,
        &wanted,
        &Failures::default(),
        &BTreeMap::new(),
    )
    .await?;
    let first = plan(first.0, first.1, bounds(&wanted, &seen, begun, 0));
    if format == Format::Text {
        show(&first, wanted.rate);
    }
    if wanted.plan {
        if format == Format::Json {
            json(&first)?;
        }
        return Ok(code(&first.stays));
    }
    if let Some(node) = &place.node {
        let path = format!("/v1/nodes/{node}/drain");
        let _: NodeView = client.call(Method::POST, &path).await?;
        tell!("{node} takes nothing new; `forkyard node activate {node}` ends that");
    }
    let work = carry_out(client, &place, &wanted, format, seen, begun);
    let (moved, stays) = interruptible(GOES_ON, work).await??;
    let code = code(&stays);
    match format {
        Format::Json => json(&Outcome {
            plan: first,
            moved,
            stays,
        })?,
        Format::Text => {
            for stay in &stays {
                say!("{} stays: {}", stay.vm, output::line(&stay.why.to_string()));
            }
            say!("{} moved, {} stay", moved.len(), stays.len());
        }
    }
    Ok(code)
}

fn code(stays: &[Stay]) -> ExitCode {
    match stays.is_empty() {
        true => ExitCode::SUCCESS,
        false => PARTLY.into(),
    }
}

fn bounds(wanted: &Evacuate, seen: &Seen, begun: Instant, under_way: u64) -> PlanBounds {
    let left = |deadline: Duration| deadline.saturating_sub(begun.elapsed());
    PlanBounds {
        rate: seen.rate(),
        under_way: ByteCount(under_way),
        within: wanted.deadline.map(left),
    }
}

fn show(plan: &EvacuationPlan, rate: u32) {
    let rows = plan.moves.iter().map(|it| {
        let size = format!("{}", it.data);
        let there = humantime::format_duration(it.there).to_string();
        [it.vm.to_string(), it.to.clone(), size, there]
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        output::table(["VM", "TO", "AT MOST", "THERE AFTER"], &rows);
        tell!("times are those of {rate} MiB/s (`--rate`), until some have moved");
    }
    for stay in &plan.stays {
        say!("{} stays: {}", stay.vm, output::line(&stay.why.to_string()));
    }
}

/// The host that is evacuated.
#[derive(Debug)]
struct Place {
    /// Name in the cluster; none: it is no node, but the host that is asked.
    node: Option<NodeName>,
    /// True of the host that is asked.
    is_here: bool,
}

impl Place {
    async fn find(client: &Client, wanted: &Evacuate) -> anyhow::Result<Self> {
        let nodes = nodes(client).await?;
        if nodes.is_empty() {
            if let Some(node) = &wanted.node {
                bail!("{node} is no node: this host is in no cluster");
            }
            if wanted.to.is_empty() {
                bail!("this host is in no cluster: say where VMs may move to, by --to HOST");
            }
            return Ok(Self {
                node: None,
                is_here: true,
            });
        }
        let is_meant = |it: &&NodeView| match &wanted.node {
            Some(name) => it.name == *name,
            None => it.here,
        };
        let found = nodes.iter().find(is_meant);
        let found = found.with_context(|| match &wanted.node {
            Some(name) => format!("no node {name}: `forkyard node ls` lists them"),
            None => "this host is no node: name one".to_owned(),
        })?;
        if found.state == NodeState::Lost {
            bail!("node {} is lost: no host answers for its VMs", found.name);
        }
        Ok(Self {
            node: Some(found.name.clone()),
            is_here: found.here,
        })
    }

    fn has(&self, vm: &ListedVm) -> bool {
        match &self.node {
            Some(_) => vm.node == self.node && !vm.lost,
            None => vm.vm.host.is_none(),
        }
    }
}

/// Nodes of the cluster; none where there is no cluster.
async fn nodes(client: &Client) -> anyhow::Result<Vec<NodeView>> {
    match client.call(Method::GET, "/v1/nodes").await {
        Ok(nodes) => Ok(nodes),
        Err(ClientError::Refused(refused))
            if refused.kind == forkyard_types::ErrorKind::Conflict =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(error.into()),
    }
}

/// VMs that are left and are not under way, and hosts that they may move to.
async fn look(
    client: &Client,
    place: &Place,
    wanted: &Evacuate,
    failures: &Failures,
    under_way: &BTreeMap<VmId, VmMove>,
) -> anyhow::Result<(Vec<HostedVm>, Vec<TargetHost>)> {
    let listed: Vec<ListedVm> = client.call(Method::GET, "/v1/vms").await?;
    let vms = listed
        .into_iter()
        .filter(|it| place.has(it))
        .map(|it| it.vm);
    let vms: Vec<VmView> = vms.filter(|vm| !under_way.contains_key(&vm.id)).collect();
    let resident = match place.is_here {
        true => resident(client).await?,
        false => BTreeMap::new(),
    };
    let guests = vms.into_iter().map(|vm| {
        let is = |(name, value): &(String, String)| vm.labels.0.get(name) == Some(value);
        let rank = wanted.priority.iter().position(is);
        let failed = failures.0.get(&vm.id);
        HostedVm {
            needs: needs(&vm),
            data: resident
                .get(&vm.id)
                .map_or(vm.memory, |resident| vm.memory.min(*resident)),
            rank: rank.unwrap_or(wanted.priority.len()),
            state: vm.state,
            refused_by: failed.map(|(hosts, _)| hosts.clone()).unwrap_or_default(),
            refusal: failed.map(|(_, said)| said.clone()),
            id: vm.id,
            name: vm.name,
        }
    });
    Ok((guests.collect(), targets(client, place, wanted).await?))
}

fn needs(vm: &VmView) -> Room {
    Room {
        vcpus: vm.vcpus_taken().into(),
        memory: vm.memory,
    }
}

async fn resident(client: &Client) -> anyhow::Result<BTreeMap<VmId, ByteCount>> {
    let usage: Usage = client.call(Method::GET, "/v1/usage").await?;
    let known = usage.vms.into_iter().filter(|it| it.resident.0 > 0);
    Ok(known.map(|it| (it.vm.id, it.resident)).collect())
}

async fn targets(
    client: &Client,
    place: &Place,
    wanted: &Evacuate,
) -> anyhow::Result<Vec<TargetHost>> {
    let Some(node) = &place.node else {
        let unknown = |name: &String| TargetHost {
            name: name.clone(),
            free: None,
        };
        return Ok(wanted.to.iter().map(unknown).collect());
    };
    let may = |it: &NodeView| {
        it.name != *node
            && it.state == NodeState::Active
            && (wanted.to.is_empty() || wanted.to.iter().any(|to| to == it.name.as_str()))
    };
    let nodes = nodes(client).await?.into_iter().filter(may);
    let free = |it: &NodeView| Room {
        vcpus: it.offers.vcpus.saturating_sub(it.taken.vcpus),
        memory: ByteCount(it.offers.memory.0.saturating_sub(it.taken.memory.0)),
    };
    let target = |it: NodeView| TargetHost {
        free: Some(free(&it)),
        name: it.name.to_string(),
    };
    Ok(nodes.map(target).collect())
}

/// Begins moves until none is left to begin; those that have moved, and those that stay.
async fn carry_out(
    client: &Client,
    place: &Place,
    wanted: &Evacuate,
    format: Format,
    mut seen: Seen,
    begun: Instant,
) -> anyhow::Result<(Vec<Moved>, Vec<Stay>)> {
    let mut failures = Failures::default();
    let mut under_way: BTreeMap<VmId, VmMove> = BTreeMap::new();
    let mut moves = JoinSet::new();
    let mut moved: Vec<Moved> = Vec::new();
    loop {
        let (guests, targets) = look(client, place, wanted, &failures, &under_way).await?;
        let gone = |guest: &HostedVm| moved.iter().any(|it| it.id == guest.id);
        let guests: Vec<_> = guests.into_iter().filter(|it| !gone(it)).collect();
        let waits = under_way.values().map(|it| it.data.0).sum();
        let next = plan(guests, targets, bounds(wanted, &seen, begun, waits));
        let room = usize::from(wanted.at_once.get()) - under_way.len();
        for one in next.moves.into_iter().take(room) {
            under_way.insert(one.id, one.clone());
            let (client, request) = (client.clone(), request(wanted, &one, begun));
            moves.spawn(async move {
                let path = of_vm(one.id.as_str(), "migrate");
                let outcome = client.post::<MigrateResponse>(&path, &request).await;
                (one, outcome)
            });
        }
        let Some(over) = moves.join_next().await else {
            return Ok((moved, next.stays));
        };
        let (one, outcome) = over.context("a move was given up")?;
        under_way.remove(&one.id);
        match outcome {
            Ok(response) => {
                seen.bytes += one.data.0;
                if format == Format::Text {
                    say!(
                        "{} goes on at {} after {:.1} s, stood still for {:.0} ms",
                        one.vm,
                        one.to,
                        begun.elapsed().as_secs_f64(),
                        response.report.gap_us as f64 / 1e3
                    );
                }
                moved.push(Moved {
                    id: one.id,
                    vm: one.vm,
                    to: one.to,
                    report: response.report,
                });
            }
            Err(error) => {
                let said = format!("{:#}", anyhow::Error::from(error));
                tell!(
                    "{} did not get to {}: {}",
                    one.vm,
                    one.to,
                    output::line(&said)
                );
                let failed = failures.0.entry(one.id).or_default();
                failed.0.insert(one.to);
                failed.1 = said;
            }
        }
    }
}

fn request(wanted: &Evacuate, one: &VmMove, begun: Instant) -> MigrateRequest {
    let left = |deadline: Duration| deadline.saturating_sub(begun.elapsed()).as_millis();
    MigrateRequest {
        to: one.to.clone(),
        max_gap_ms: None,
        deadline_ms: wanted
            .deadline
            .map(|deadline| u64::try_from(left(deadline)).unwrap_or(u64::MAX)),
        if_stuck: wanted.if_stuck.into(),
        // Nothing is to stay on a host that is being emptied.
        disk: DiskTransfer::Ahead,
        keep_copy: None,
        together: Vec::new(),
    }
}
