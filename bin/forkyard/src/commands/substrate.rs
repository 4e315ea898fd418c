//! `substrate`: VMs that are kept small, and VMs made of them.

mod show;
mod stores;

use super::{
    progress::{Watched, shown},
    removal::remove,
    vms::PARTLY,
};
use crate::{
    args::{self, Format, Network, Run},
    output,
};
use clap::{Args, Subcommand, ValueEnum};
use forkyard_api_client::{Client, ClientError, escaped};
use forkyard_types::{
    ActivateRequest, ActivateResponse, ByteCount, CloneResult, DockRequest, Labels, RequestId,
    StandbyRequest, SubstrateKind, SubstrateView, VmName,
};
use hyper::Method;
use show::{inspect, show, standing_by};
use std::{collections::BTreeMap, process::ExitCode};

/// `substrate`
#[derive(Debug, Subcommand)]
pub enum Substrate {
    /// Make a substrate of a running VM, which ends as that.
    #[command(
        after_help = "Examples:\n  forkyard substrate dock p --name base --kind public\n  forkyard substrate dock web --name apache --kind restricted --live --keep-service cron"
    )]
    Dock(Dock),
    /// List the substrates of this host, or of an object store.
    #[command(
        after_help = "Examples:\n  forkyard substrate ls -o json\n  forkyard substrate ls s3://images/team"
    )]
    Ls {
        /// Address of the store.
        store: Option<String>,
    },
    /// Show where a substrate's bytes are.
    #[command(after_help = "Example: forkyard substrate inspect base")]
    Inspect {
        /// Name of the substrate.
        name: VmName,
    },
    /// Make VMs of a substrate, each with a family and a network of its own.
    #[command(
        after_help = "Examples:\n  forkyard substrate activate base --count 3\n  forkyard substrate activate apache --as web --net nat --publish 8080:80\n  forkyard substrate activate base --memory 1G --vcpus 2 --disk 4G\n  forkyard substrate activate base --count 8 --to b,c,here\n  forkyard substrate activate base --count 8 --spread\n  forkyard substrate activate base --count 4 --memory 1G --net routed --ip 203.0.113.5-203.0.113.8"
    )]
    Activate(Box<Activate>),
    /// Keep VMs of a substrate ready, so that `activate` and `run --from` take one at once.
    #[command(
        after_help = "Examples:\n  forkyard substrate standby base --count auto --memory 2048\n  forkyard substrate standby base --count 4\n  forkyard substrate standby base --count 2 --vm-memory 1G --vm-vcpus 2\n  forkyard substrate standby base --count 0"
    )]
    Standby {
        /// Name of the substrate.
        name: VmName,
        /// So many; `auto`: as many as recent demand asks for; 0: none any more.
        #[arg(long, value_name = "N|auto", value_parser = count)]
        count: Count,
        /// MiB of the host's memory that they may take together.
        #[arg(long, value_name = "MIB", default_value_t = 1024)]
        memory: u64,
        /// Memory of each, as of `activate`. Those of one size are kept beside those of others.
        #[arg(long, value_name = "SIZE", value_parser = args::memory)]
        vm_memory: Option<ByteCount>,
        /// vCPUs of each, likewise.
        #[arg(long, value_name = "N")]
        vm_vcpus: Option<u8>,
        /// Root disk of each, likewise.
        #[arg(long, value_name = "SIZE", value_parser = args::memory)]
        vm_disk: Option<ByteCount>,
    },
    #[command(flatten)]
    Stored(stores::Stored),
    /// Remove substrates that nothing lies over, or remove them from an object store.
    #[command(
        after_help = "Examples:\n  forkyard substrate rm base\n  forkyard substrate rm apache --store s3://images/team"
    )]
    Rm {
        /// Names of the substrates.
        #[arg(required = true)]
        names: Vec<VmName>,
        /// Address of the store that they are removed from, with what nothing there needs any more. Those of
        /// this host stay.
        #[arg(long)]
        store: Option<String>,
    },
}

/// Kind of a substrate.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Kind {
    /// A bare system, generalised.
    Public,
    /// A system with an application, generalised.
    Restricted,
    /// A user's own system, kept as it is: opens for its owner alone.
    Private,
}

/// VMs to keep ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// As many as recent demand asks for.
    Auto,
    /// So many.
    Fixed(u16),
}

fn count(word: &str) -> Result<Count, String> {
    match word {
        "auto" => Ok(Count::Auto),
        _ => word
            .parse()
            .map(Count::Fixed)
            .map_err(|_| format!("{word:?} is neither a number nor auto")),
    }
}

/// `substrate dock`
#[derive(Debug, Args)]
pub struct Dock {
    /// Name or id of the VM.
    pub vm: String,
    /// Name of the substrate.
    #[arg(long)]
    pub name: VmName,
    /// Kind: which hosts may open it, and whether it is generalised.
    #[arg(long, value_enum)]
    pub kind: Kind,
    /// Dock a clone; the VM runs on.
    #[arg(long)]
    pub live: bool,
    /// Leave this service running, of those that would be stopped. May be repeated.
    #[arg(long, value_name = "SERVICE")]
    pub keep_service: Vec<String>,
    /// Free memory that is left to the guest.
    #[arg(long, value_name = "KIB")]
    pub margin: Option<u32>,
}

/// `substrate activate`
#[derive(Debug, Args)]
pub struct Activate {
    /// Name of the substrate.
    pub name: VmName,
    /// VMs wanted.
    #[arg(long, short = 'n', default_value_t = 1)]
    pub count: u16,
    /// Memory of each, in MiB unless a unit is said (512M, 1G); as was docked if absent. It grows by blocks of 128 MiB:
    /// `substrate inspect` says how far.
    #[arg(long, value_name = "SIZE", value_parser = args::memory)]
    pub memory: Option<ByteCount>,
    /// vCPUs of each; as many as were docked if absent.
    #[arg(long)]
    pub vcpus: Option<u8>,
    /// Root disk of each, in MiB unless a unit is said (4G): as was docked if absent, or larger. The file system on it
    /// is as large before the VM is ready.
    #[arg(long, value_name = "SIZE", value_parser = args::memory)]
    pub disk: Option<ByteCount>,
    /// Name of the VM, or the beginning of the names of several; the substrate's if absent.
    #[arg(long = "as", value_name = "NAME")]
    pub names: Option<VmName>,
    /// A VM whose family's network they join, with that family's rights there.
    #[arg(long, value_name = "VM")]
    pub join: Option<String>,
    /// Most clones of each one's family, alive or reserved at once.
    #[arg(long)]
    pub max_clones: Option<u16>,
    /// A file or folder in the guest that no clone inherits; may be repeated.
    #[arg(long = "secret", value_name = "PATH")]
    pub secrets: Vec<String>,
    /// Have their disks come to depend on nothing, in the background: see `forkyard independent`.
    #[arg(long)]
    pub independent: bool,
    /// Hosts to make them on, in turns: nodes of the cluster or peers of the daemon by name, and `here`. They fetch
    /// what they lack of the substrate from this host.
    #[arg(
        long,
        value_name = "HOST",
        value_delimiter = ',',
        conflicts_with = "join"
    )]
    pub to: Vec<String>,
    /// In a cluster: make each on the node with most vCPUs free.
    #[arg(long, conflicts_with_all = ["to", "join"])]
    pub spread: bool,
    /// Label to tell them apart by; may be repeated.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = super::exec::variable)]
    pub labels: Vec<(String, String)>,
    /// Network of each of them.
    #[command(flatten)]
    pub network: Network,
}

/// Carries out one of them.
pub async fn substrate(
    client: &Client,
    format: Format,
    command: Substrate,
) -> anyhow::Result<ExitCode> {
    match command {
        Substrate::Dock(wanted) => dock(client, format, wanted).await,
        Substrate::Ls { store: None } => list(client, format).await,
        Substrate::Ls { store: Some(store) } => stores::list(client, format, &store).await,
        Substrate::Inspect { name } => inspect(client, format, &name).await,
        Substrate::Activate(wanted) => activate(client, format, *wanted).await,
        Substrate::Standby {
            name,
            count,
            memory,
            vm_memory,
            vm_vcpus,
            vm_disk,
        } => {
            let request = StandbyRequest {
                count: match count {
                    Count::Auto => None,
                    Count::Fixed(count) => Some(count),
                },
                memory_mib: memory,
                vm_memory,
                vm_vcpus,
                vm_disk,
            };
            let to = format!("{}/standby", path(&name));
            let kept: SubstrateView = client.post(&to, &request).await?;
            match format {
                Format::Json => output::json(&kept)?,
                Format::Text if kept.standby.is_none() && kept.standby_larger.is_empty() => {
                    say!("{name}: none is kept ready");
                }
                Format::Text => {
                    for standby in kept.standby.iter().chain(&kept.standby_larger) {
                        say!("{name}: {}", standing_by(standby));
                    }
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        Substrate::Stored(command) => stores::stored(client, format, command).await,
        Substrate::Rm {
            names,
            store: Some(store),
        } => stores::remove(client, format, &store, &names).await,
        Substrate::Rm { names, store: None } => {
            let paths = names.iter().map(path);
            remove(client, format, paths, |gone: &SubstrateView| &gone.name).await
        }
    }
}

fn path(name: &VmName) -> String {
    format!("/v1/substrates/{}", escaped(name.as_str()))
}

async fn dock(client: &Client, format: Format, wanted: Dock) -> anyhow::Result<ExitCode> {
    let request = DockRequest {
        vm: wanted.vm,
        name: wanted.name,
        kind: match wanted.kind {
            Kind::Public => SubstrateKind::Public,
            Kind::Restricted => SubstrateKind::Restricted,
            Kind::Private => SubstrateKind::Private,
        },
        live: wanted.live,
        keep_services: wanted.keep_service,
        margin_kib: wanted.margin,
    };
    let docked: SubstrateView = client.post("/v1/substrates", &request).await?;
    told(format, &docked)
}

fn told(format: Format, it: &SubstrateView) -> anyhow::Result<ExitCode> {
    match format {
        Format::Json => output::json(it)?,
        Format::Text => say!("{}, {}: forkyard substrate activate {0}", it.name, it.size),
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, format: Format) -> anyhow::Result<ExitCode> {
    let all: Vec<SubstrateView> = client.call(Method::GET, "/v1/substrates").await?;
    match format {
        Format::Json => output::json(&all)?,
        Format::Text => show(&all),
    }
    Ok(ExitCode::SUCCESS)
}

async fn activate(client: &Client, format: Format, wanted: Activate) -> anyhow::Result<ExitCode> {
    let watch = RequestId::random();
    let request = ActivateRequest {
        count: wanted.count,
        name: wanted.names,
        memory: wanted.memory,
        vcpus: wanted.vcpus,
        disk: wanted.disk,
        network: wanted.network.policy(wanted.join.as_deref())?,
        max_clones: wanted.max_clones,
        secrets: wanted.secrets,
        independent: wanted.independent,
        warm: 0,
        labels: Labels(wanted.labels.into_iter().collect()),
        env: BTreeMap::new(),
        lifetime: None,
        idle: None,
        join: wanted.join,
        to: wanted.to,
        spread: wanted.spread,
        watch: Some(watch),
    };
    let path = format!("{}/activate", path(&wanted.name));
    let made = client.post(&path, &request);
    let made = shown(
        client,
        Watched::Activation(wanted.name.as_str()),
        watch,
        made,
    );
    told_of_made(client, format, made.await?).await
}

/// Makes a VM of a substrate, as `run --from` asks for it.
pub async fn run_from(
    client: &Client,
    format: Format,
    from: &VmName,
    run: Run,
) -> anyhow::Result<ExitCode> {
    let request = ActivateRequest {
        count: 1,
        name: run.name,
        memory: run.memory,
        vcpus: run.vcpus,
        disk: run.disk,
        network: run.network.policy(run.join.as_deref())?,
        max_clones: run.max_clones,
        secrets: run.secrets,
        independent: false,
        warm: run.warm,
        labels: Labels(run.labels.into_iter().collect()),
        env: run.env.into_iter().collect(),
        lifetime: run.life.lifetime(),
        idle: run.life.idle,
        join: run.join,
        to: Vec::new(),
        spread: false,
        watch: None,
    };
    let path = format!("{}/activate", path(from));
    let made = client.post::<ActivateResponse>(&path, &request);
    let made = run.patience.wait(made).await?;
    match made.vms.into_iter().next() {
        Some(CloneResult::Vm(vm)) => output::told_of_run(format, &vm),
        Some(CloneResult::Error(error)) => Err(ClientError::from(error).into()),
        None => anyhow::bail!("no VM was made"),
    }
}

async fn told_of_made(
    client: &Client,
    format: Format,
    answer: ActivateResponse,
) -> anyhow::Result<ExitCode> {
    if format == Format::Json {
        output::json(&answer)?;
    }
    let (mut vms, mut failed) = (Vec::new(), 0);
    for made in answer.vms {
        match made {
            CloneResult::Vm(vm) => vms.push(*vm),
            CloneResult::Error(error) => {
                failed += 1;
                if format == Format::Text {
                    tell!("forkyard: {}", error.message);
                }
            }
        }
    }
    if format == Format::Text {
        output::with_parents(client, &vms).await;
        say!(
            "running {}, ready {}",
            output::ms(answer.running_us),
            output::ms(answer.ready_us)
        );
    }
    Ok(match (failed, vms.len()) {
        (0, _) => ExitCode::SUCCESS,
        (_, 0) => ExitCode::FAILURE,
        (_, _) => ExitCode::from(PARTLY),
    })
}
