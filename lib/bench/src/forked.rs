//! Our own contender: through the API, as any client.

use crate::{
    BenchError, Contender, Options, Sample, SilenceSample,
    machine::cpu_ms,
    silence::{TALK, during},
};
use forkyard_client::{Client, ClientError};
use forkyard_types::{
    CloneResult, ErrorKind, ExecEvent, ExecRequest, ExitStatus, ForkMode, ForkReport, ForkRequest,
    ForkResponse, NetworkPolicy, PageCount, RunRequest, VmId, VmInspect, VmView,
};
use futures::{Stream, future::try_join_all, stream};
use http_body_util::BodyExt;
use hyper::Method;
use std::{
    fmt,
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

/// How long warm shells, and the end of VMs, may be waited for.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// What the names of one run's VMs begin with: nobody else's do.
#[derive(Clone, Copy, Debug)]
pub struct Label(VmId);

/// A parent to fork.
#[derive(Debug)]
pub struct Forkyard {
    client: Client,
    contender: Contender,
    name: String,
    warm: u16,
}

/// A fork as its client saw it.
struct Forked {
    begun: Instant,
    clones: Vec<VmView>,
    report: ForkReport,
    /// From the request until the last clone's vCPUs ran.
    running: Duration,
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
    pub async fn boot(
        client: &Client,
        contender: Contender,
        label: Label,
        options: &Options,
        warm: u16,
    ) -> Result<Self, BenchError> {
        let name = format!("{label}-w{warm}");
        let request = RunRequest {
            image: "tiny".into(),
            name: Some(name.parse()?),
            vcpus: options.vcpus,
            memory_mib: options.memory_mib,
            warm,
            kernel: None,
            max_clones: None,
            secrets: Vec::new(),
            network: NetworkPolicy::default(),
        };
        client.post::<VmView>("/v1/vms", &request).await?;
        let this = Self {
            client: client.clone(),
            contender,
            name,
            warm,
        };
        let fill = fill(options.fill_mib);
        this.exec(&this.name, &["sh", "-c", &fill]).await?;
        Ok(this)
    }

    /// Pages of its memory that are its own.
    pub async fn private_pages(&self) -> Result<PageCount, BenchError> {
        Ok(self.inspect().await?.private_pages)
    }

    /// One fork, and its clones' end.
    pub async fn sample(&self, clones: u16) -> Result<Sample, BenchError> {
        self.until_warm().await?;
        let forked = self.fork(clones).await?;
        let commands = forked.clones.iter();
        let commands = commands.map(|clone| self.exec(clone.name.as_str(), &["hostname"]));
        try_join_all(commands).await?;
        let first_command = forked.begun.elapsed();
        let cpu = cpu_ms(forked.clones.iter().filter_map(|clone| clone.pid));
        self.end(&forked.clones).await?;
        Ok(Sample {
            contender: self.contender,
            clones,
            running_ms: Some(ms(forked.running)),
            first_command_ms: ms(first_command),
            cpu_ms: cpu / f64::from(clones),
            pause_ms: Some(ms(Duration::from_micros(forked.report.pause_us))),
            copied_mib: forked.report.pages_captured.bytes().map(crate::report::mib),
            report: Some(forked.report),
        })
    }

    /// One fork while a program in the parent speaks.
    pub async fn silence(&self) -> Result<SilenceSample, BenchError> {
        self.until_warm().await?;
        let words = self.words().await?;
        let (forked, silence) = during(words, self.fork(1)).await?;
        self.end(&forked.clones).await?;
        let pause = Duration::from_micros(forked.report.pause_us);
        Ok(SilenceSample::new(self.contender, silence, pause))
    }

    async fn fork(&self, clones: u16) -> Result<Forked, BenchError> {
        let begun = Instant::now();
        let path = format!("/v1/vms/{}/fork", self.name);
        let request = ForkRequest {
            count: clones,
            mode: ForkMode::Fast,
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

    async fn end(&self, clones: &[VmView]) -> Result<(), BenchError> {
        try_join_all(clones.iter().map(|clone| remove(&self.client, clone))).await?;
        Ok(())
    }

    async fn inspect(&self) -> Result<VmInspect, BenchError> {
        let path = format!("/v1/vms/{}/inspect", self.name);
        Ok(self.client.call(Method::GET, &path).await?)
    }

    /// The words of a program that speaks until nobody listens.
    async fn words(&self) -> Result<impl Stream<Item = ()> + use<>, BenchError> {
        let path = format!("/v1/vms/{}/exec", self.name);
        let request = command(&["sh", "-c", TALK]);
        let answer = self.client.stream(&path, &request).await?;
        Ok(stream::unfold(answer.into_body(), |mut body| async {
            body.frame().await?.ok().map(|_| ((), body))
        }))
    }

    async fn exec(&self, vm: &str, argv: &[&str]) -> Result<(), BenchError> {
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
        env: Vec::new(),
        stdin: None,
        timeout_s: None,
    }
}

fn silent(what: &'static str) -> BenchError {
    BenchError::Silent { what }
}

/// In milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A script that puts random bytes into a guest's memory.
pub fn fill(mib: u64) -> String {
    format!(
        "mkdir -p /fill && mount -t tmpfs none /fill && dd if=/dev/urandom of=/fill/random bs=1M count={mib} 2>/dev/null && sync"
    )
}
