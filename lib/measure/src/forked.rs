//! Our own contender: through the API, as any client.

use crate::{
    BenchError, Contender, Sample, SilenceSample,
    machine::{Accel, cpu_ms, private_mib},
    silence::{TALK, during},
};
use forkyard_api_client::{Client, ClientError};
use forkyard_types::{
    ByteCount, CloneResult, ErrorKind, ExecEvent, ExecRequest, ExitStatus, ForkMode, ForkReport,
    ForkRequest, ForkResponse, NetworkPolicy, PageCount, RunRequest, VmId, VmInspect, VmView,
};
use futures::{Stream, future::try_join_all, stream};
use http_body_util::BodyExt;
use hyper::Method;
use std::{
    fmt,
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

/// Time that warm shells, and the end of VMs, may be waited for.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
/// Time a clone with nothing to do is given until its memory is looked at.
pub const SETTLE: Duration = Duration::from_secs(2);

/// Prefix of the names of one run's VMs: no other names have it.
#[derive(Clone, Copy, Debug)]
pub struct Label(VmId);

/// Specification of a parent.
#[derive(Clone, Debug)]
pub struct Parent {
    /// Name of the parent.
    pub name: String,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// vCPUs.
    pub vcpus: u8,
    /// Random bytes put into its memory, in MiB.
    pub fill_mib: u64,
    /// Shells kept warm.
    pub warm: u16,
}

/// A VM to fork.
#[derive(Debug)]
pub struct Forkyard {
    client: Client,
    name: String,
    warm: u16,
}

/// A fork as its client saw it.
#[derive(Debug)]
pub struct Forked {
    /// Time of the request.
    pub begun: Instant,
    /// Clones that were made.
    pub clones: Vec<VmView>,
    /// Account of its time.
    pub report: ForkReport,
    /// From the request until the last clone's vCPUs ran.
    pub running: Duration,
}

impl Label {
    /// Draws a new one.
    pub fn random() -> Self {
        Self(VmId::random())
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bench-{}", self.0)
    }
}

impl Forkyard {
    /// Boots it, with as much in its memory as wanted.
    pub async fn boot(client: &Client, parent: Parent) -> Result<Self, BenchError> {
        let request = RunRequest {
            image: "tiny".into(),
            name: Some(parent.name.parse()?),
            vcpus: parent.vcpus,
            memory: ByteCount::from_mib(parent.memory_mib),
            memory_mib: None,
            warm: parent.warm,
            kernel: None,
            max_clones: None,
            secrets: Vec::new(),
            network: NetworkPolicy::default(),
            volume: None,
            data: Vec::new(),
            // What is measured is a VM that booted, each time.
            cold: true,
            labels: forkyard_types::Labels::default(),
            env: std::collections::BTreeMap::new(),
            lifetime: None,
            idle: None,
            restart: forkyard_types::Restart::No,
            cpu_baseline: Vec::new(),
            join: None,
        };
        client.post::<VmView>("/v1/vms", &request).await?;
        let this = Self {
            client: client.clone(),
            name: parent.name,
            warm: parent.warm,
        };
        let fill = fill(parent.fill_mib);
        this.exec(&this.name, &["sh", "-c", &fill]).await?;
        Ok(this)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A clone, as a VM to fork.
    pub fn of_clone(&self, clone: &VmView) -> Self {
        Self {
            client: self.client.clone(),
            name: clone.name.to_string(),
            warm: 0,
        }
    }

    /// Pages of its memory that are its own.
    pub async fn private_pages(&self) -> Result<PageCount, BenchError> {
        Ok(self.inspect().await?.private_pages)
    }

    /// One fork, and its clones' end.
    pub async fn sample(&self, contender: Contender, clones: u16) -> Result<Sample, BenchError> {
        self.until_warm().await?;
        let forked = self.fork(clones, mode(contender)).await?;
        let first_command = self.first_command(&forked).await?;
        let pids = || forked.clones.iter().filter_map(|clone| clone.pid);
        let (cpu, private) = (cpu_ms(pids()), private_mib(pids()));
        sleep(SETTLE).await;
        let settled = private_mib(pids());
        self.end(&forked.clones).await?;
        Ok(Sample {
            contender,
            clones,
            running_ms: Some(ms(forked.running)),
            first_command_ms: ms(first_command),
            cpu_ms: cpu / f64::from(clones),
            private_mib: private,
            settled_mib: settled,
            pause_ms: Some(ms(Duration::from_micros(forked.report.pause_us))),
            copied_mib: forked.report.pages_captured.bytes().map(crate::report::mib),
            report: Some(forked.report),
        })
    }

    /// One fork while a program in the parent speaks.
    pub async fn silence(&self, contender: Contender) -> Result<SilenceSample, BenchError> {
        self.until_warm().await?;
        let words = self.words().await?;
        let (forked, silence) = during(words, self.fork(1, mode(contender))).await?;
        self.end(&forked.clones).await?;
        let pause = Duration::from_micros(forked.report.pause_us);
        Ok(SilenceSample::new(contender, silence, pause))
    }

    /// From a fork's request until `hostname` has ended in all of its clones.
    pub async fn first_command(&self, forked: &Forked) -> Result<Duration, BenchError> {
        let commands = forked.clones.iter();
        let commands = commands.map(|clone| self.exec(clone.name.as_str(), &["hostname"]));
        try_join_all(commands).await?;
        Ok(forked.begun.elapsed())
    }

    /// One fork.
    pub async fn fork(&self, clones: u16, mode: ForkMode) -> Result<Forked, BenchError> {
        let begun = Instant::now();
        let path = format!("/v1/vms/{}/fork", self.name);
        let request = ForkRequest {
            count: clones,
            mode,
            ..ForkRequest::default()
        };
        let ForkResponse { clones, report, .. } = self.client.post(&path, &request).await?;
        // The report's clock starts when the daemon has the request and is
        // read before it answers: what lies outside is counted as well.
        let outside = begun
            .elapsed()
            .saturating_sub(Duration::from_micros(report.ready_us));
        let clones = clones.into_iter().map(|clone| match clone {
            CloneResult::Vm(vm) => Ok(*vm),
            CloneResult::Error(source) => Err(BenchError::Clone { source }),
        });
        Ok(Forked {
            begun,
            clones: clones.collect::<Result<_, _>>()?,
            running: Duration::from_micros(report.running_us) + outside,
            report,
        })
    }

    async fn until_warm(&self) -> Result<(), BenchError> {
        let warm = async {
            while self.inspect().await?.warm < self.warm {
                sleep(POLL).await;
            }
            Ok(())
        };
        timeout(PATIENCE, warm)
            .await
            .map_err(|_| silent("warm clones"))?
    }

    /// Ends clones.
    pub async fn end(&self, clones: &[VmView]) -> Result<(), BenchError> {
        try_join_all(clones.iter().map(|clone| remove(&self.client, clone))).await?;
        Ok(())
    }

    /// Ends it.
    pub async fn remove(&self) -> Result<(), BenchError> {
        let path = format!("/v1/vms/{}", self.name);
        self.client.call::<VmView>(Method::DELETE, &path).await?;
        Ok(())
    }

    /// Everything its host knows of it.
    pub async fn inspect(&self) -> Result<VmInspect, BenchError> {
        let path = format!("/v1/vms/{}/inspect", self.name);
        Ok(self.client.call(Method::GET, &path).await?)
    }

    /// The words of a program that speaks until it has no reader.
    async fn words(&self) -> Result<impl Stream<Item = ()> + use<>, BenchError> {
        self.listen(TALK).await
    }

    /// Starts a script that runs until what is returned is dropped, and says
    /// something now and then.
    pub async fn listen(&self, script: &str) -> Result<impl Stream<Item = ()> + use<>, BenchError> {
        let path = format!("/v1/vms/{}/exec", self.name);
        let request = command(&["sh", "-c", script]);
        let answer = self.client.stream(&path, &request).await?;
        Ok(stream::unfold(answer.into_body(), |mut body| async {
            body.frame().await?.ok().map(|_| ((), body))
        }))
    }

    /// Runs a command in a VM; an error unless it exits with 0.
    pub async fn exec(&self, vm: &str, argv: &[&str]) -> Result<(), BenchError> {
        let path = format!("/v1/vms/{vm}/exec");
        let answer = self.client.stream(&path, &command(argv)).await?;
        let said = answer
            .into_body()
            .collect()
            .await
            .map_err(ClientError::from)?;
        let said = said.to_bytes();
        let mut lines = said.split(|byte| *byte == b'\n');
        let last = lines.rfind(|line| !line.is_empty()).unwrap_or_default();
        let end: ExecEvent = serde_json::from_slice(last).map_err(ClientError::from)?;
        if end == ExecEvent::Exit(ExitStatus::Code(0)) {
            return Ok(());
        }
        Err(BenchError::Command {
            vm: vm.to_owned(),
            command: argv.join(" "),
            outcome: format!("{end:?}"),
        })
    }
}

fn mode(contender: Contender) -> ForkMode {
    match contender {
        Contender::Live => ForkMode::Live,
        Contender::Warm
        | Contender::Cold
        | Contender::Migrate
        | Contender::Savevm
        | Contender::Boot => ForkMode::Fast,
    }
}

/// A VM that stands still as long as measuring lasts.
pub async fn anchor(client: &Client, label: Label) -> Result<Accel, BenchError> {
    let still = Parent {
        name: format!("{label}-anchor"),
        memory_mib: 128,
        vcpus: 1,
        fill_mib: 0,
        warm: 0,
    };
    let still = Forkyard::boot(client, still).await?;
    let path = format!("/v1/vms/{}/pause", still.name);
    let paused: VmView = client.call(Method::POST, &path).await?;
    Accel::named(&paused.accel).ok_or(BenchError::Accel { name: paused.accel })
}

/// Ends every VM of a run, clones first. A daemon that was started for them
/// may go with the last.
pub async fn end_all(client: &Client, label: Label) -> Result<(), BenchError> {
    let label = label.to_string();
    let ended = async {
        loop {
            let mut vms: Vec<VmView> = match client.call(Method::GET, "/v1/vms").await {
                Err(ClientError::NoDaemon { .. }) => return Ok(()),
                listed => listed?,
            };
            vms.retain(|vm| vm.name.as_str().starts_with(&label));
            if vms.is_empty() {
                return Ok(());
            }
            vms.sort_by_key(|vm| std::cmp::Reverse(vm.member));
            for vm in &vms {
                match remove(client, vm).await {
                    // It is being made or is going: it can be ended soon.
                    Err(BenchError::Client(ClientError::Refused(why)))
                        if [ErrorKind::NotFound, ErrorKind::Conflict].contains(&why.kind) => {}
                    other => other?,
                }
            }
            sleep(POLL).await;
        }
    };
    timeout(PATIENCE, ended)
        .await
        .map_err(|_| silent("the end of the VMs"))?
}

async fn remove(client: &Client, vm: &VmView) -> Result<(), BenchError> {
    let path = format!("/v1/vms/{}", vm.id);
    client.call::<VmView>(Method::DELETE, &path).await?;
    Ok(())
}

fn command(argv: &[&str]) -> ExecRequest {
    ExecRequest {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        ..ExecRequest::default()
    }
}

fn silent(what: &'static str) -> BenchError {
    BenchError::Silent { what }
}

/// In milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A script that puts random bytes into a guest's memory: a few of them, and
/// copies, for an emulated guest takes its time over randomness.
pub fn fill(mib: u64) -> String {
    const DRAWN: u64 = 8;
    format!(
        "mkdir -p /fill && mount -t tmpfs -o size=100% none /fill && \
         dd if=/dev/urandom of=/fill/0 bs=1M count={} 2>/dev/null && \
         for n in $(seq {}); do cp /fill/0 /fill/$n || exit; done; sync",
        mib.min(DRAWN),
        mib.saturating_sub(DRAWN) / DRAWN,
    )
}
