//! `run`, `fork`, `checkpoint`, `ps`, `inspect`.

use super::{
    independence,
    progress::{self, Watched},
    signals::interruptible,
    substrate,
};
use crate::{
    args::{Checkpoint, Fork, Format, Ps, Run},
    output,
};
use anyhow::Context;
use clap::Args;
use forkyard_api_client::{Client, ClientError, of_vm};
use forkyard_types::{
    CheckpointRequest, CloneResult, ForkMode, ForkRequest, ForkResponse, ForkStarted, Labels,
    ListedVm, RequestId, RunRequest, VmInspect, VmView,
};
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use std::{process::ExitCode, time::Duration};

/// Some of several things asked for failed.
pub const PARTLY: u8 = 3;

/// Time a command waits for its result.
#[derive(Clone, Copy, Debug, Args)]
pub struct Patience {
    /// Return once the request is accepted; `forkyard ps` shows what comes of it.
    #[arg(long, overrides_with = "wait")]
    pub no_wait: bool,
    /// Return when it is done: the default.
    #[arg(long)]
    pub wait: bool,
    /// Wait for so many seconds at most, and for one at least. The work goes on
    /// all the same.
    #[arg(long, value_name = "SECONDS", conflicts_with = "no_wait")]
    pub timeout: Option<u32>,
}

/// Something asked for takes longer than its user would wait.
#[derive(Debug, thiserror::Error)]
#[error("not done within {seconds} s; it goes on, and `forkyard ps` shows what comes of it")]
pub struct Impatient {
    seconds: u32,
}

impl Impatient {
    /// Error of a wait that took so long.
    pub fn after(seconds: u32) -> Self {
        Self { seconds }
    }
}

/// Advice about a VM or checkpoint that is being made.
pub const MADE: &str =
    "`forkyard ps` shows it, at the latest once it is made, and `forkyard rm` ends it";

impl Patience {
    /// A request's path, with what it says of waiting.
    fn path(self, path: &str) -> String {
        match self.no_wait {
            true => format!("{path}?wait=false"),
            false => path.to_owned(),
        }
    }

    pub async fn wait<T>(
        self,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> anyhow::Result<T> {
        let work = async { Ok(interruptible(MADE, work).await??) };
        let Some(seconds) = self.timeout else {
            return work.await;
        };
        // A client that hangs up before the request has arrived has asked for nothing.
        let limit = Duration::from_secs(seconds.max(1).into());
        match tokio::time::timeout(limit, work).await {
            Ok(done) => done,
            Err(_) => Err(Impatient { seconds }.into()),
        }
    }
}

/// Boots a VM, or takes one of a substrate.
pub async fn run(client: &Client, format: Format, run: Run) -> anyhow::Result<ExitCode> {
    if let Some(from) = run.from.clone() {
        return substrate::run_from(client, format, &from, run).await;
    }
    let kernel = run.kernel.map(|path| {
        path.canonicalize()
            .with_context(|| format!("no kernel at {}", path.display()))
    });
    let kernel = kernel.transpose()?.map(|path| path.display().to_string());
    let request = RunRequest {
        image: run.image.unwrap_or_default(),
        name: run.name,
        vcpus: run.vcpus.unwrap_or(1),
        memory: run.memory,
        memory_mib: None,
        warm: run.warm,
        kernel,
        max_clones: run.max_clones,
        secrets: run.secrets,
        network: run.network.policy(run.join.as_deref())?,
        volume: run.disks.volume,
        data: run.disks.data,
        cold: run.cold,
        labels: Labels(run.labels.into_iter().collect()),
        env: run.env.into_iter().collect(),
        lifetime: run.life.lifetime(),
        idle: run.life.idle,
        restart: run.life.restart,
        cpu_baseline: run.cpu_baseline,
        join: run.join,
    };
    let bar = spinner(format!(
        "booting {}; the first time its image is built, which takes a minute",
        request.image
    ));
    let place = match (&run.node, run.spread) {
        (Some(node), _) => format!("node={node}"),
        (None, spread) => format!("spread={spread}"),
    };
    let wait = !run.patience.no_wait;
    let path = format!("/v1/vms?wait={wait}&{place}");
    let vm = run.patience.wait(client.post::<VmView>(&path, &request));
    let vm = vm.await;
    bar.finish_and_clear();
    let vm = vm?;
    match run.patience.no_wait && format == Format::Text {
        true => {
            say!("{} is starting", vm.name);
            Ok(ExitCode::SUCCESS)
        }
        false => output::told_of_run(format, &vm),
    }
}

/// A sign of life on standard error, where that is a terminal.
pub fn spinner(text: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(output::line(&text));
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Forks a VM.
pub async fn fork(client: &Client, format: Format, fork: Fork) -> anyhow::Result<ExitCode> {
    let path = of_vm(&fork.vm, "fork");
    let watch = RequestId::random();
    let request = ForkRequest {
        count: fork.count,
        mode: mode(fork.live),
        scrub: fork.scrub,
        inherit_secrets: fork.inherit_secrets,
        to: fork.to,
        settle: fork.settle,
        spread: fork.spread,
        watch: Some(watch),
    };
    if fork.patience.no_wait {
        let begun: ForkStarted = client.post(&fork.patience.path(&path), &request).await?;
        match format {
            Format::Json => output::json(&begun)?,
            Format::Text => say!("fork {} of {} has begun", begun.fork, fork.vm),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let made = client.post::<ForkResponse>(&path, &request);
    let made = progress::shown(client, Watched::Fork(&fork.vm), watch, made);
    let answer = fork.patience.wait(made).await?;
    let mut failed = 0;
    let mut made = Vec::new();
    for clone in &answer.clones {
        match clone {
            CloneResult::Vm(vm) => made.push(VmView::clone(vm)),
            CloneResult::Error(error) => {
                failed += 1;
                match format {
                    Format::Text => tell!("forkyard: a clone failed: {error}"),
                    Format::Json => output::complain(&ClientError::from(error.clone()).into()),
                }
            }
        }
    }
    match format {
        Format::Json => output::json(&answer)?,
        Format::Text if made.is_empty() => tell!("forkyard: no clone of {} was made", fork.vm),
        Format::Text => {
            output::with_parents(client, &made).await;
            let report = &answer.report;
            say!(
                "{} clone{}: running after {}, ready after {}; {} stood still for {}",
                made.len(),
                if made.len() == 1 { "" } else { "s" },
                output::ms(report.running_us),
                output::ms(report.ready_us),
                fork.vm,
                output::ms(report.pause_us)
            );
        }
    }
    if fork.settled {
        super::settled::wait(client, &made).await?;
    }
    Ok(match (failed, made.len()) {
        (0, _) => ExitCode::SUCCESS,
        (_, 0) => ExitCode::FAILURE,
        (_, _) => ExitCode::from(PARTLY),
    })
}

/// Keeps an instant of a VM.
pub async fn checkpoint(
    client: &Client,
    format: Format,
    checkpoint: Checkpoint,
) -> anyhow::Result<ExitCode> {
    let path = of_vm(&checkpoint.vm, "checkpoint");
    let request = CheckpointRequest {
        name: checkpoint.name,
        mode: mode(checkpoint.live),
    };
    let kept = client.post::<VmView>(&path, &request);
    let kept = interruptible(MADE, kept).await??;
    match format {
        Format::Json => output::json(&kept)?,
        Format::Text => say!("{} can be forked: forkyard fork {0}", kept.name),
    }
    Ok(ExitCode::SUCCESS)
}

fn mode(live: bool) -> ForkMode {
    match live {
        true => ForkMode::Live,
        false => ForkMode::Fast,
    }
}

/// Lists the VMs.
pub async fn list(client: &Client, format: Format, wanted: &Ps) -> anyhow::Result<ExitCode> {
    let mut path = "/v1/vms".to_owned();
    if !wanted.states.is_empty() {
        path += &format!("?state={}", wanted.states.join(","));
    }
    let mut vms: Vec<ListedVm> = client.call(Method::GET, &path).await?;
    let has =
        |vm: &ListedVm, (name, value): &(String, String)| vm.vm.labels.0.get(name) == Some(value);
    vms.retain(|vm| wanted.labels.iter().all(|label| has(vm, label)));
    match format {
        Format::Json => output::json(&vms)?,
        Format::Text => output::everywhere(vms),
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows one VM in full.
pub async fn inspect(client: &Client, format: Format, vm: &str) -> anyhow::Result<ExitCode> {
    let seen: VmInspect = client.call(Method::GET, &of_vm(vm, "inspect")).await?;
    if format == Format::Json {
        output::json(&seen)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::with_parents(client, std::slice::from_ref(&seen.vm)).await;
    say!("\nepoch    {}", seen.vm.epoch);
    say!("accel    {}", seen.vm.accel);
    if let Some(why) = &seen.emulated_because {
        say!("no kvm   {why}");
    }
    say!("mac      {}", seen.vm.address.mac);
    say!("network  {}", output::network(&seen.network));
    for (name, value) in &seen.vm.labels.0 {
        say!("label    {name}={value}");
    }
    if let Some(image) = seen.memory_image {
        say!(
            "memory   a view of an image of {} in {} layers; {} of it, {} with data, served in {} requests, to {} users",
            image.pages,
            image.layers,
            image.pages_served,
            image.data_served,
            image.requests,
            image.users
        );
        say!(
            "image    {} of data: {} from below; its own: {} plain, {} packed into {}, {} found elsewhere",
            image.data,
            image.shared,
            image.plain,
            image.packed,
            image.packed_bytes,
            image.deduplicated
        );
        say!(
            "touched  {} asked for, {} given ahead",
            image.touched,
            image.prefetched
        );
    }
    for awaited in &seen.vm.awaits {
        say!(
            "away     {} of {} of its {}, on another host",
            awaited.away,
            awaited.pages,
            awaited.part
        );
    }
    if let Some(why) = &seen.vm.failure {
        say!("failure  {why}");
    }
    output::life(&seen.vm);
    if seen.booted < seen.vm.memory && seen.booted.0 > 0 {
        say!(
            "grown    from {}, which its guest booted with, to {}",
            seen.booted,
            seen.vm.memory
        );
    }
    say!("private  {}", seen.private_pages);
    for slice in &seen.disk {
        say!("disk     {} ({})", slice.path, slice.allocated);
    }
    say!("depends  {}", independence::told(&seen.independence));
    say!("warm     {} clones", seen.warm);
    for note in &seen.notes {
        say!("note     {note}");
    }
    for path in &seen.secrets {
        say!("secret   {path}");
    }
    for fork in &seen.forks {
        say!(
            "fork     pause {} (disk {}, descriptor {}, capture {} of {}), load {}; running {}, ready {}; {} fetched by then",
            output::ms(fork.pause_us),
            output::ms(fork.disk_us),
            output::ms(fork.descriptor_us),
            output::ms(fork.capture_us),
            fork.pages_captured,
            output::ms(fork.load_us),
            output::ms(fork.running_us),
            output::ms(fork.ready_us),
            fork.pages_fetched
        );
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::{super::signals::Interrupted, *};
    use nix::sys::signal::{Signal, raise};

    #[tokio::test]
    async fn a_command_that_is_interrupted_says_that_its_work_goes_on() {
        let patience = Patience {
            no_wait: false,
            wait: true,
            timeout: None,
        };
        let begun = async {
            // Not before the signal is listened for.
            tokio::task::yield_now().await;
            raise(Signal::SIGTERM).expect("to itself");
            std::future::pending::<Result<(), ClientError>>().await
        };
        let error = patience.wait(begun).await.expect_err("interrupted");
        assert!(error.is::<Interrupted>(), "{error}");
    }
}
