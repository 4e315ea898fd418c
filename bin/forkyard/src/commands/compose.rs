//! `up` and `down`: VMs that one file describes.
//!
//! ```text
//! read the file --> make what is missing --> tell each where the others are --> copy files in
//!   --> begin commands, each once those that it waits for are well --> all are well
//! ```
//!
//! VMs bear the composition's name and their member's as labels, by which they are found again: `up`
//! goes on where an earlier one ended, however that did.

mod begin;

use super::{
    copy::send_quietly,
    removal,
    signals::interruptible,
    vms::{Impatient, spinner},
};
use crate::{args::Format, output};
use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use forkyard_api_client::{Client, ClientError, of_files, of_vm};
use forkyard_compose::{COMPOSITION, ComposeMember, Composition, FileFormat, LONGEST, MEMBER, Of};
use forkyard_types::{
    ActivateRequest, ActivateResponse, ByteCount, CloneResult, FilesWritten, Labels, ListedVm,
    NetworkPolicy, RunRequest, VmName, VmState, VmView,
};
use futures::StreamExt as _;
use hyper::Method;
use indicatif::ProgressBar;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// VMs that are made at a time.
const AT_ONCE: usize = 8;
/// Advice on what was made when `up` ends early.
const STAYS: &str = "what was made stays: `forkyard up` again goes on, `forkyard down` removes it";
/// File in a member that has its files and whose command has begun since it booted.
const BEGUN: &str = "/run/forkyard-up";
/// Mark of the lines of `/etc/hosts` that are `up`'s.
const MARK: &str = "# forkyard up";
/// Between two looks at a VM that boots.
const LOOK: Duration = Duration::from_millis(200);
/// Most of what a test says that is told.
const SAID: usize = 2 << 10;

/// `up`
#[derive(Debug, Args)]
pub struct Up {
    /// File that describes the VMs: TOML, or the documented subset of compose files if it ends in .yaml or .yml.
    pub file: PathBuf,
    /// Name of the composition; that in the file, or the file's own, if absent.
    #[arg(long)]
    pub name: Option<String>,
    /// Most time until all are well, as in 5m; without end if absent.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub timeout: Option<Duration>,
}

/// `down`
#[derive(Debug, Args)]
pub struct Down {
    /// Name of the composition, or its file.
    pub what: String,
}

/// Outcome of `up`.
#[derive(Debug, Serialize)]
struct IsUp {
    name: VmName,
    members: BTreeMap<String, MemberUp>,
}

/// A member that is well.
#[derive(Debug, Serialize)]
struct MemberUp {
    vm: VmView,
    /// True if its VM was made now.
    made: bool,
    /// Microseconds from the beginning until it was well.
    well_us: u64,
}

/// A member's VM.
#[derive(Clone, Debug)]
struct Is {
    vm: VmView,
    made: bool,
    /// True if files are to be copied into it and its command is to begin.
    idle: bool,
}

/// Has the VMs of a file run, and waits until all are well.
pub async fn up(client: &Client, format: Format, wanted: Up) -> anyhow::Result<ExitCode> {
    let composition = read(&wanted.file, wanted.name.as_deref())?;
    let bar = spinner(format!("{} begins", composition.name));
    let work = Upping {
        client,
        composition: &composition,
        folder: wanted.file.parent().unwrap_or(Path::new("")),
        begun: Instant::now(),
        bar: &bar,
    };
    let work = interruptible(STAYS, async {
        match wanted.timeout {
            Some(limit) => timeout(limit, work.up()).await.unwrap_or_else(|_| {
                let seconds = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX);
                Err(Impatient::after(seconds).into())
            }),
            None => work.up().await,
        }
    });
    let done = work.await;
    bar.finish_and_clear();
    let done = done??;
    match format {
        Format::Json => output::json(&done)?,
        Format::Text => {
            for (name, member) in &done.members {
                say!("{name}  {}  {}", member.vm.name, member.vm.address.ip);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes the VMs of a composition.
pub async fn down(client: &Client, format: Format, wanted: Down) -> anyhow::Result<ExitCode> {
    let file = Path::new(&wanted.what);
    let name = match file.is_file() {
        true => read(file, None)?.name.to_string(),
        false => wanted.what,
    };
    let vms = members_of(client, &name).await?;
    if vms.is_empty() {
        bail!("there is no composition {name:?}: no VM has the label {COMPOSITION}={name}");
    }
    let paths: Vec<_> = vms.values().map(|vm| of_vm(vm.id.as_str(), "")).collect();
    removal::remove(client, format, paths.into_iter(), |vm: &VmView| &vm.name).await
}

fn read(file: &Path, name: Option<&str>) -> anyhow::Result<Composition> {
    let mut text = String::new();
    let opened = fs::File::open(file).with_context(|| format!("no file {}", file.display()))?;
    let read = opened.take(LONGEST as u64 + 1).read_to_string(&mut text);
    read.with_context(|| format!("{} cannot be read", file.display()))?;
    if text.len() > LONGEST {
        bail!("{} has more than {LONGEST} bytes", file.display());
    }
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    let name = name.or(stem).unwrap_or("composition");
    Composition::parse(FileFormat::of(file), &text, name)
        .map_err(|error| anyhow!("{}: {error}", file.display()))
}

/// The VMs of a composition that there are, by member.
async fn members_of(client: &Client, name: &str) -> Result<BTreeMap<String, VmView>, ClientError> {
    let all: Vec<ListedVm> = client.call(Method::GET, "/v1/vms").await?;
    let own = all.into_iter().map(|listed| listed.vm).filter_map(|vm| {
        let labels = &vm.labels.0;
        let is_own = labels.get(COMPOSITION).is_some_and(|label| label == name);
        // Clones have their parent's labels.
        let is_own = is_own && vm.parent.is_none() && vm.state != VmState::Checkpoint;
        let member = labels.get(MEMBER).filter(|_| is_own)?.clone();
        Some((member, vm))
    });
    Ok(own.collect())
}

struct Upping<'a> {
    client: &'a Client,
    composition: &'a Composition,
    /// Folder that paths in the file are relative to.
    folder: &'a Path,
    begun: Instant,
    bar: &'a ProgressBar,
}

impl Upping<'_> {
    async fn up(&self) -> anyhow::Result<IsUp> {
        let there = self.make().await?;
        self.acquaint(&there).await?;
        for (name, is) in there.iter().filter(|(_, is)| is.idle) {
            self.bar.set_message(format!("{name}: files are copied in"));
            for (from, to) in &self.member(name).copy {
                let from = self.folder.join(from);
                let sent = send_quietly(self.client, from, is.vm.id.as_str(), to);
                sent.await.with_context(|| format!("{name}: {to}"))?;
            }
        }
        let well = self.begin(&there).await?;
        let members = there.into_iter().map(|(name, is)| {
            let well = well.get(&name).copied().unwrap_or_default();
            let up = MemberUp {
                vm: is.vm,
                made: is.made,
                well_us: u64::try_from(well.as_micros()).unwrap_or(u64::MAX),
            };
            (name, up)
        });
        Ok(IsUp {
            name: self.composition.name.clone(),
            members: members.collect(),
        })
    }

    fn member(&self, name: &str) -> &ComposeMember {
        &self.composition.members[name]
    }

    /// Makes the VMs that are not there: the first has the network, which the others join.
    async fn make(&self) -> anyhow::Result<BTreeMap<String, Is>> {
        let name = self.composition.name.as_str();
        let mut there = BTreeMap::new();
        for (member, vm) in members_of(self.client, name).await? {
            if self.composition.members.contains_key(&member) {
                let is = self.awake(vm).await.with_context(|| member.clone())?;
                there.insert(member, is);
            }
        }
        let missing = self.composition.members.keys();
        let mut missing = missing.filter(|name| !there.contains_key(*name));
        let mut missing: Vec<_> = missing.by_ref().cloned().collect();
        let mut first = there.values().map(|is| is.vm.id).next();
        if first.is_none() && !missing.is_empty() {
            let member = missing.remove(0);
            let vm = self.made(&member, None).await?;
            first = Some(vm.id);
            there.insert(member, Is::made(vm));
        }
        let join = first.map(|vm| vm.to_string());
        let join = &join;
        let made = futures::stream::iter(&missing)
            .map(|member| async move { (member, self.made(member, join.clone()).await) });
        let made: Vec<_> = made.buffer_unordered(AT_ONCE).collect().await;
        let mut refused = None;
        for (member, made) in made {
            match made {
                Ok(vm) => {
                    there.insert(member.clone(), Is::made(vm));
                }
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) => Err(error.context(STAYS)),
            None => Ok(there),
        }
    }

    /// Starts a member's VM that has stopped, or resumes one that is paused.
    async fn awake(&self, mut vm: VmView) -> anyhow::Result<Is> {
        // Begun by an `up` that ended meanwhile.
        while vm.state == VmState::Starting {
            sleep(LOOK).await;
            vm = self
                .client
                .call(Method::GET, &of_vm(vm.id.as_str(), ""))
                .await?;
        }
        let (what, idle) = match vm.state {
            VmState::Stopped => ("start", true),
            VmState::Paused => ("resume", false),
            VmState::Starting
            | VmState::Warm
            | VmState::Running
            | VmState::Ending
            | VmState::Checkpoint => {
                let idle = !begin::has_begun(self.client, &vm).await?;
                return Ok(Is {
                    vm,
                    made: false,
                    idle,
                });
            }
        };
        let path = of_vm(vm.id.as_str(), what);
        let vm: VmView = self.client.call(Method::POST, &path).await?;
        let idle = idle || !begin::has_begun(self.client, &vm).await?;
        Ok(Is {
            vm,
            made: false,
            idle,
        })
    }

    async fn made(&self, name: &str, join: Option<String>) -> anyhow::Result<VmView> {
        self.bar.set_message(format!("{name} begins"));
        let member = self.member(name);
        let labels = [
            (COMPOSITION.to_owned(), self.composition.name.to_string()),
            (MEMBER.to_owned(), name.to_owned()),
        ];
        let labels = Labels(labels.into());
        let own = match join {
            Some(_) => NetworkPolicy::default(),
            None => self.composition.network.clone(),
        };
        let network = NetworkPolicy {
            publish: member.publish.clone(),
            ..own
        };
        let made = match &member.of {
            Of::Image {
                image,
                vcpus,
                memory,
                restart,
            } => {
                let request = RunRequest {
                    image: image.clone(),
                    name: Some(member.vm.clone()),
                    vcpus: *vcpus,
                    memory: Some(ByteCount::from_mib(*memory).unwrap_or(ByteCount(u64::MAX))),
                    memory_mib: None,
                    warm: 0,
                    kernel: None,
                    max_clones: None,
                    secrets: Vec::new(),
                    network,
                    volume: None,
                    data: Vec::new(),
                    cold: false,
                    labels,
                    env: member.env.clone(),
                    lifetime: None,
                    idle: None,
                    restart: *restart,
                    cpu_baseline: Vec::new(),
                    join,
                };
                self.client.post("/v1/vms", &request).await
            }
            Of::Substrate {
                substrate,
                memory,
                vcpus,
                disk,
            } => {
                let request = ActivateRequest {
                    count: 1,
                    name: Some(member.vm.clone()),
                    memory: memory.and_then(ByteCount::from_mib),
                    vcpus: *vcpus,
                    disk: disk.and_then(ByteCount::from_mib),
                    network,
                    max_clones: None,
                    secrets: Vec::new(),
                    independent: false,
                    warm: 0,
                    labels,
                    env: member.env.clone(),
                    lifetime: None,
                    idle: None,
                    join,
                    to: Vec::new(),
                    spread: false,
                    watch: None,
                };
                let path = format!("/v1/substrates/{substrate}/activate");
                let made = self.client.post::<ActivateResponse>(&path, &request);
                let made = made.await.with_context(|| name.to_owned())?;
                match made.vms.into_iter().next() {
                    Some(CloneResult::Vm(vm)) => Ok(*vm),
                    Some(CloneResult::Error(error)) => Err(error.into()),
                    None => bail!("{name}: no VM was made"),
                }
            }
        };
        made.with_context(|| name.to_owned())
    }

    /// Tells each member by which names the others are found.
    async fn acquaint(&self, there: &BTreeMap<String, Is>) -> anyhow::Result<()> {
        let line = |(name, is): (&String, &Is)| {
            format!("{} {name} {} {MARK}", is.vm.address.ip, is.vm.name)
        };
        let lines: Vec<_> = there.iter().map(line).collect();
        let told = there.iter().map(|(name, is)| {
            let lines = &lines;
            async move {
                let told = self.write_hosts(&is.vm, lines).await;
                told.with_context(|| format!("{name}: /etc/hosts"))
            }
        });
        for told in futures::future::join_all(told).await {
            told?;
        }
        Ok(())
    }

    async fn write_hosts(&self, vm: &VmView, lines: &[String]) -> anyhow::Result<()> {
        let path = of_files(vm.id.as_str(), "files", &[("path", "/etc/hosts")]);
        let mut file = self.client.disk(&path).await?;
        let mut text = Vec::new();
        while let Some(piece) = file.next().await? {
            text.extend(piece);
        }
        let text = String::from_utf8_lossy(&text);
        let kept = text.lines().filter(|line| !line.ends_with(MARK));
        let mut all: String = kept.map(|line| format!("{line}\n")).collect();
        lines.iter().for_each(|line| {
            all.push_str(line);
            all.push('\n');
        });
        let size = Some(all.len() as u64);
        let sent = self
            .client
            .upload::<FilesWritten>(&path, size, all.as_bytes(), |_| {});
        sent.await?;
        Ok(())
    }

    /// Begins the members' commands in their order, and waits until all are well; when each was.
    async fn begin(
        &self,
        there: &BTreeMap<String, Is>,
    ) -> anyhow::Result<BTreeMap<String, Duration>> {
        let (mut begun, mut well) = (BTreeSet::new(), BTreeMap::new());
        let mut waiting = JoinSet::new();
        loop {
            let are: BTreeSet<String> = well.keys().cloned().collect();
            let now = self.composition.startable(&begun, &are);
            let now: Vec<_> = now.into_iter().map(str::to_owned).collect();
            begun.extend(now.iter().cloned());
            for name in now {
                let (member, is) = (self.member(&name).clone(), there[&name].clone());
                let client = self.client.clone();
                waiting.spawn(async move {
                    let became = begin::become_well(&client, &member, &is).await;
                    (name, became)
                });
            }
            let left = there.len() - well.len();
            self.bar.set_message(format!("{left} are not well yet"));
            match waiting.join_next().await {
                Some(done) => {
                    let (name, became) = done?;
                    became.with_context(|| name.clone()).context(STAYS)?;
                    well.insert(name, self.begun.elapsed());
                }
                None => return Ok(well),
            }
        }
    }
}

impl Is {
    fn made(vm: VmView) -> Self {
        Self {
            vm,
            made: true,
            idle: true,
        }
    }
}
