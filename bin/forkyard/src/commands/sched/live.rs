//! `sched set`, `release`, `show`, `top`: the daemon's client.

use crate::{args::Format, output};
use anyhow::bail;
use clap::Args as ClapArgs;
use forkyard_api_client::{Client, of_vm};
use forkyard_types::{
    Parallel, SchedLevel, SchedMeans, SchedPause, SchedPolicy, SchedProcess, SchedSettings,
    SchedState, VcpuSched, VmSched,
};
use hyper::Method;
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::Duration,
};

/// Path of the state of the daemon's host.
const HOST: &str = "/v1/sched";

/// A VM of Forkyard's, or any QEMU.
#[derive(Debug, ClapArgs)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// Name or id of a VM.
    pub vm: Option<String>,
    /// Process of any QEMU, run with `-name …,debug-threads=on`.
    #[arg(long)]
    pub pid: Option<u32>,
}

/// `sched set`
#[derive(Debug, ClapArgs)]
pub struct Set {
    #[command(flatten)]
    which: Which,
    /// The vCPUs' threads in the guest's order, as QMP's query-cpus-fast has them,
    /// of a QEMU that does not name its threads.
    #[arg(long, requires = "pid", value_delimiter = ',')]
    threads: Option<Vec<u32>>,
    /// SchedLevel of intervention: observe, place (affinity, niceness, deadlines) or
    /// enforce (freeze threads that are not to run). With --policy, enforce;
    /// but place under balance, procco, cpuco and sbco without --parallel.
    #[arg(long, value_parser = level)]
    level: Option<SchedLevel>,
    /// The policy, of all VMs that are scheduled here: they share the CPUs.
    #[arg(long)]
    policy: Option<SchedPolicy>,
    /// The VM's vCPUs wait for each other.
    #[arg(long, conflicts_with = "not_parallel")]
    parallel: bool,
    /// They do not.
    #[arg(long)]
    not_parallel: bool,
    /// Weight of the VM; 256 is usual.
    #[arg(long)]
    weight: Option<u32>,
    /// The most it gets, in per cent of one CPU; 0 lifts it. Under credit.
    #[arg(long)]
    cap: Option<u32>,
    /// Time reserved for each vCPU in every period, in µs; 0 for none. Under
    /// sedf and atropos.
    #[arg(long, value_name = "MICROSECONDS")]
    slice: Option<u64>,
    /// The period, in µs.
    #[arg(long, value_name = "MICROSECONDS", requires = "slice")]
    period: Option<u64>,
}

/// `sched show`
#[derive(Debug, ClapArgs)]
pub struct Whose {
    /// Name or id of a VM: that of its host; without, of the daemon's.
    vm: Option<String>,
}

/// `sched top`
#[derive(Debug, ClapArgs)]
pub struct Top {
    #[command(flatten)]
    whose: Whose,
    /// Seconds between two looks.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Print one table and end; so it does where there is no terminal, and with
    /// -o json.
    #[arg(long)]
    once: bool,
}

fn level(word: &str) -> Result<SchedLevel, String> {
    match word {
        "observe" => Ok(SchedLevel::Observe),
        "place" => Ok(SchedLevel::Place),
        "enforce" => Ok(SchedLevel::Enforce),
        _ => Err("choose observe, place or enforce".to_owned()),
    }
}

impl Which {
    /// Returns the path of its settings.
    fn path(&self) -> anyhow::Result<String> {
        match (&self.vm, self.pid) {
            (Some(vm), _) => Ok(of_vm(vm, "sched")),
            (None, Some(pid)) => Ok(format!("{HOST}/processes/{pid}")),
            (None, None) => bail!("wanted a VM or --pid"),
        }
    }
}

/// Has a VM scheduled.
pub async fn set(client: &Client, format: Format, set: Set) -> anyhow::Result<ExitCode> {
    let path = set.which.path()?;
    let parallel = match (set.parallel, set.not_parallel) {
        (true, _) => Some(Parallel::Yes),
        (_, true) => Some(Parallel::No),
        (false, false) => None,
    };
    let settings = SchedSettings {
        level: set.level,
        policy: set.policy,
        parallel,
        weight: set.weight,
        cap: set.cap,
        slice_us: set.slice,
        period_us: set.period,
    };
    let threads = set.threads;
    let state = match set.which.vm {
        Some(_) => client.put(&path, &settings).await?,
        None => {
            client
                .put(&path, &SchedProcess { threads, settings })
                .await?
        }
    };
    told(format, &state)
}

/// Lets a VM go.
pub async fn release(client: &Client, format: Format, which: Which) -> anyhow::Result<ExitCode> {
    told(format, &client.call(Method::DELETE, &which.path()?).await?)
}

/// Tells how things are, here or on a VM's host.
pub async fn show(client: &Client, format: Format, whose: &Whose) -> anyhow::Result<ExitCode> {
    told(format, &state(client, whose).await?)
}

async fn state(client: &Client, whose: &Whose) -> anyhow::Result<SchedState> {
    let path = match &whose.vm {
        Some(vm) => of_vm(vm, "sched"),
        None => HOST.to_owned(),
    };
    Ok(client.call(Method::GET, &path).await?)
}

/// Shows the state again and again.
pub async fn top(client: &Client, format: Format, options: Top) -> anyhow::Result<ExitCode> {
    if options.once || format == Format::Json || !io::stdout().is_terminal() {
        return show(client, format, &options.whose).await;
    }
    loop {
        output::clear();
        show(client, format, &options.whose).await?;
        tokio::time::sleep(Duration::from_secs(options.interval)).await;
    }
}

fn told(format: Format, state: &SchedState) -> anyhow::Result<ExitCode> {
    match format {
        Format::Json => output::json(state)?,
        Format::Text => print(state),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the state in Prometheus' format.
pub async fn metrics(client: &Client, format: Format, whose: &Whose) -> anyhow::Result<ExitCode> {
    if format == Format::Json {
        return show(client, format, whose).await;
    }
    say_piece!("{}", exposition(&state(client, whose).await?));
    Ok(ExitCode::SUCCESS)
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

fn exposition(shown: &SchedState) -> String {
    let mut text = format!(
        "# HELP forkyard_sched_dispatcher_cpu_seconds_total Processor time that the dispatcher has used.\n\
         # TYPE forkyard_sched_dispatcher_cpu_seconds_total counter\n\
         forkyard_sched_dispatcher_cpu_seconds_total {}\n\
         # HELP forkyard_sched_switches_total Times that the dispatcher stopped one vCPU for another.\n\
         # TYPE forkyard_sched_switches_total counter\n\
         forkyard_sched_switches_total {}\n",
        seconds(shown.own_ns),
        shown.switches
    );
    type Value = fn(&VmSched, &VcpuSched) -> f64;
    let values: [(&str, &str, &str, Value); 9] = [
        (
            "share",
            "gauge",
            "Part of a processor that the vCPU had of late.",
            |_, vcpu| vcpu.share,
        ),
        (
            "speed",
            "gauge",
            "Time running, of the time that it ran or waited.",
            |_, vcpu| vcpu.speed,
        ),
        (
            "stacked",
            "gauge",
            "1 if a sibling is meant to be on the same processor.",
            |_, vcpu| f64::from(u8::from(vcpu.stacked)),
        ),
        (
            "distance",
            "gauge",
            "Greatest difference of places of vCPUs of the VM that wait.",
            |vm, _| f64::from(vm.distance),
        ),
        (
            "sleeps_per_second",
            "gauge",
            "Sleeps of a vCPU of the VM in a second.",
            |vm, _| vm.sleeps,
        ),
        (
            "asleep",
            "gauge",
            "Part of the time that a vCPU of the VM sleeps.",
            |vm, _| vm.asleep,
        ),
        (
            "enforced",
            "gauge",
            "1 while the policy is enforced.",
            |vm, _| f64::from(u8::from(vm.now == SchedLevel::Enforce)),
        ),
        (
            "given_seconds_total",
            "counter",
            "Processor time that turns have given the vCPU.",
            |_, vcpu| seconds(vcpu.given_ns),
        ),
        (
            "waited_seconds_total",
            "counter",
            "Time that the vCPU has waited for its turns.",
            |_, vcpu| seconds(vcpu.waited_ns),
        ),
    ];
    for (name, kind, help, value) in values {
        text += &format!(
            "# HELP forkyard_sched_vcpu_{name} {help}\n# TYPE forkyard_sched_vcpu_{name} {kind}\n"
        );
        for vm in &shown.vms {
            for vcpu in &vm.vcpus {
                text += &format!(
                    "forkyard_sched_vcpu_{name}{{vm={:?},vcpu=\"{}\"}} {}\n",
                    vm.name,
                    vcpu.index,
                    value(vm, vcpu)
                );
            }
        }
    }
    text
}

fn print(shown: &SchedState) {
    let by = match shown.means {
        SchedMeans::Freezer => "",
        SchedMeans::SchedExt => " by sched_ext",
    };
    say!(
        "policy {}{by}, {} switches, dispatcher {:.1} % of a CPU",
        shown.policy,
        shown.switches,
        shown.own * 100.0
    );
    let cpus: Vec<_> = { shown.cpus.iter() }
        .map(|cpu| {
            let thread = |tid: &u32| named(shown, *tid);
            [
                cpu.cpu.to_string(),
                cpu.running.as_ref().map(thread).unwrap_or_default(),
                cpu.waiting.iter().map(thread).collect::<Vec<_>>().join(" "),
            ]
        })
        .collect();
    output::table(["CPU", "RUNS", "WAITING"], &cpus);
    let vcpus: Vec<_> = { shown.vms.iter() }
        .flat_map(|vm| vm.vcpus.iter().map(move |vcpu| row(vm, vcpu)))
        .collect();
    let heads = [
        "VCPU", "LEVEL", "NOW", "WEIGHT", "CPU", "SHARE", "SPEED", "STACKED", "DISTANCE",
        "SLEEPS/S",
    ];
    output::table(heads, &vcpus);
}

fn named(shown: &SchedState, tid: u32) -> String {
    let all = shown
        .vms
        .iter()
        .flat_map(|vm| vm.vcpus.iter().map(move |vcpu| (vm, vcpu)));
    let found = { all }.find(|(_, vcpu)| vcpu.tid == tid);
    found.map_or(tid.to_string(), |(vm, vcpu)| {
        format!("{}/{}", vm.name, vcpu.index)
    })
}

fn row(vm: &VmSched, vcpu: &VcpuSched) -> [String; 10] {
    let word = |level: SchedLevel| format!("{level:?}").to_lowercase();
    let now = match vm.because {
        Some(SchedPause::Blocks) => "let go: blocks".to_owned(),
        Some(SchedPause::Alone) => "let go: alone".to_owned(),
        None => word(vm.now),
    };
    [
        format!("{}/{}", vm.name, vcpu.index),
        word(vm.level),
        now,
        vm.weight.to_string(),
        vcpu.cpu.map_or(String::new(), |cpu| cpu.to_string()),
        format!("{:.0} %", vcpu.share * 100.0),
        format!("{:.2}", vcpu.speed),
        if vcpu.stacked { "yes" } else { "no" }.to_owned(),
        vm.distance.to_string(),
        format!("{:.0}", vm.sleeps),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_name_every_vcpu() {
        let vcpu = |index| VcpuSched {
            index,
            tid: 1,
            cpu: None,
            share: 0.25,
            speed: 0.5,
            given_ns: 1_500_000_000,
            waited_ns: 0,
            stacked: index == 1,
            ordinate: None,
        };
        let vm = VmSched {
            name: "p".to_owned(),
            pid: 1,
            level: SchedLevel::Enforce,
            now: SchedLevel::Enforce,
            because: None,
            weight: 256,
            cap: None,
            parallel: Parallel::Yes,
            sleeps: 3.0,
            asleep: 0.5,
            distance: 2,
            vcpus: vec![vcpu(0), vcpu(1)],
        };
        let text = exposition(&SchedState {
            policy: SchedPolicy::Sbco,
            means: SchedMeans::Freezer,
            own: 0.5,
            own_ns: 250_000_000,
            guard: 2,
            switches: 7,
            cpus: Vec::new(),
            vms: vec![vm],
        });
        for line in [
            "forkyard_sched_switches_total 7",
            "forkyard_sched_dispatcher_cpu_seconds_total 0.25",
            "forkyard_sched_vcpu_given_seconds_total{vm=\"p\",vcpu=\"0\"} 1.5",
            "forkyard_sched_vcpu_enforced{vm=\"p\",vcpu=\"1\"} 1",
            "forkyard_sched_vcpu_share{vm=\"p\",vcpu=\"0\"} 0.25",
            "forkyard_sched_vcpu_stacked{vm=\"p\",vcpu=\"1\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
