//! `sched set`, `release`, `show`, `top`: the dispatcher's client. It starts the
//! dispatcher if none runs.

use crate::{args::Format, output};
use anyhow::{Context, bail};
use clap::Args as ClapArgs;
use forkyard_client::{Client, of_vm};
use forkyard_dispatch::{
    protocol::{Because, Level, Means, Reply, Request, Shown, VcpuShown, VmShown, Wanted},
    socket::ask,
};
use forkyard_sched::{Nanos, Parallel, Policy};
use forkyard_types::VmInspect;
use hyper::Method;
use std::{
    fs,
    io::{self, IsTerminal},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

/// Time a dispatcher may take to answer for the first time.
const START: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

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
    /// Level of intervention: observe, place (affinity, niceness, deadlines) or
    /// enforce (freeze threads that are not to run). With --policy, enforce;
    /// but place under balance, procco, cpuco and sbco without --parallel.
    #[arg(long, value_parser = level)]
    level: Option<Level>,
    /// The policy, of all VMs that are scheduled here: they share the CPUs.
    #[arg(long)]
    policy: Option<Policy>,
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

/// `sched top`
#[derive(Debug, ClapArgs)]
pub struct Top {
    /// Seconds between two looks.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Print one table and end; so it does where there is no terminal, and with
    /// -o json.
    #[arg(long)]
    once: bool,
}

fn level(word: &str) -> Result<Level, String> {
    match word {
        "observe" => Ok(Level::Observe),
        "place" => Ok(Level::Place),
        "enforce" => Ok(Level::Enforce),
        _ => Err("choose observe, place or enforce".to_owned()),
    }
}

impl Which {
    /// Finds the VM's process and name. Asks the daemon about a VM of
    /// Forkyard's.
    async fn find(self, run_dir: &Path) -> anyhow::Result<(u32, Option<String>)> {
        match (self.vm, self.pid) {
            (Some(vm), _) => {
                let path = of_vm(&vm, "inspect");
                let client = Client::new(run_dir);
                let found: VmInspect = client.call(Method::GET, &path).await?;
                let pid = found.vm.pid.with_context(|| format!("{vm} does not run"))?;
                Ok((pid, Some(found.vm.name.to_string())))
            }
            (None, Some(pid)) => Ok((pid, None)),
            (None, None) => bail!("wanted a VM or --pid"),
        }
    }
}

/// Has a VM scheduled.
pub async fn set(run_dir: &Path, format: Format, set: Set) -> anyhow::Result<ExitCode> {
    let (pid, name) = set.which.find(run_dir).await?;
    let parallel = match (set.parallel, set.not_parallel) {
        (true, _) => Some(Parallel::Yes),
        (_, true) => Some(Parallel::No),
        (false, false) => None,
    };
    let wanted = Wanted {
        pid,
        name,
        threads: set.threads,
        level: set.level,
        policy: set.policy,
        parallel,
        weight: set.weight,
        cap: set.cap,
        slice_us: set.slice,
        period_us: set.period,
    };
    start(run_dir)?;
    answer(run_dir, format, &Request::Set(wanted))
}

/// Lets a VM go.
pub async fn release(run_dir: &Path, format: Format, which: Which) -> anyhow::Result<ExitCode> {
    let (pid, _) = which.find(run_dir).await?;
    answer(run_dir, format, &Request::Release { pid })
}

/// Checks that VMs can be capped, and let go afterwards: no other program
/// schedules them.
pub fn can_cap(run_dir: &Path) -> anyhow::Result<()> {
    match ask(&socket(run_dir), &Request::Show) {
        Ok(Reply::Done(shown)) if !shown.vms.is_empty() => bail!(
            "VMs are scheduled here already, by the policy {}: release them first (forkyard sched release VM)",
            shown.policy
        ),
        Ok(Reply::Done(_) | Reply::Refused(_)) | Err(_) => Ok(()),
    }
}

/// Caps a VM, in per cent of one CPU.
pub fn cap(run_dir: &Path, pid: u32, name: &str, percent: u32) -> anyhow::Result<()> {
    start(run_dir)?;
    let wanted = Wanted {
        pid,
        name: Some(name.to_owned()),
        level: Some(Level::Enforce),
        policy: Some(Policy::Credit),
        cap: Some(percent),
        ..Wanted::default()
    };
    done(run_dir, &Request::Set(wanted)).map(drop)
}

/// Lets a VM go.
pub fn let_go(run_dir: &Path, pid: u32) -> anyhow::Result<()> {
    done(run_dir, &Request::Release { pid }).map(drop)
}

/// Tells how things are.
pub fn show(run_dir: &Path, format: Format) -> anyhow::Result<ExitCode> {
    answer(run_dir, format, &Request::Show)
}

/// Shows the state again and again.
pub async fn top(run_dir: &Path, format: Format, options: Top) -> anyhow::Result<ExitCode> {
    if options.once || format == Format::Json || !io::stdout().is_terminal() {
        return show(run_dir, format);
    }
    loop {
        output::clear();
        show(run_dir, format)?;
        tokio::time::sleep(Duration::from_secs(options.interval)).await;
    }
}

fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("sched.sock")
}

fn answer(run_dir: &Path, format: Format, request: &Request) -> anyhow::Result<ExitCode> {
    let shown = done(run_dir, request)?;
    match format {
        Format::Json => output::json(&shown)?,
        Format::Text => print(&shown),
    }
    Ok(ExitCode::SUCCESS)
}

fn done(run_dir: &Path, request: &Request) -> anyhow::Result<Shown> {
    const NONE: &str = "no VM is scheduled here: begin with forkyard sched set VM --policy sbco";
    let absent = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
    let reply = ask(&socket(run_dir), request).map_err(|error| {
        if absent.contains(&error.kind()) {
            anyhow::Error::msg(NONE)
        } else {
            anyhow::Error::new(error).context("the dispatcher did not answer")
        }
    })?;
    match reply {
        Reply::Done(shown) => Ok(shown),
        Reply::Refused(why) => bail!("{why}"),
    }
}

/// Prints the state in Prometheus' format.
pub fn metrics(run_dir: &Path, format: Format) -> anyhow::Result<ExitCode> {
    if format == Format::Json {
        return show(run_dir, format);
    }
    say_piece!("{}", exposition(&done(run_dir, &Request::Show)?));
    Ok(ExitCode::SUCCESS)
}

fn exposition(shown: &Shown) -> String {
    let mut text = format!(
        "# TYPE forkyard_sched_dispatcher_cpu_seconds_total counter\n\
         forkyard_sched_dispatcher_cpu_seconds_total {}\n\
         # TYPE forkyard_sched_switches_total counter\n\
         forkyard_sched_switches_total {}\n",
        Nanos(shown.own_ns).as_secs_f64(),
        shown.switches
    );
    type Value = fn(&VmShown, &VcpuShown) -> f64;
    let values: [(&str, &str, Value); 9] = [
        ("share", "gauge", |_, vcpu| vcpu.share),
        ("speed", "gauge", |_, vcpu| vcpu.speed),
        ("stacked", "gauge", |_, vcpu| {
            f64::from(u8::from(vcpu.stacked))
        }),
        ("distance", "gauge", |vm, _| f64::from(vm.distance)),
        ("sleeps_per_second", "gauge", |vm, _| vm.sleeps),
        ("asleep", "gauge", |vm, _| vm.asleep),
        ("enforced", "gauge", |vm, _| {
            f64::from(u8::from(vm.now == Level::Enforce))
        }),
        ("given_seconds_total", "counter", |_, vcpu| {
            Nanos(vcpu.given_ns).as_secs_f64()
        }),
        ("waited_seconds_total", "counter", |_, vcpu| {
            Nanos(vcpu.waited_ns).as_secs_f64()
        }),
    ];
    for (name, kind, value) in values {
        text += &format!("# TYPE forkyard_sched_vcpu_{name} {kind}\n");
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

fn print(shown: &Shown) {
    let by = match shown.means {
        Means::Freezer => "",
        Means::SchedExt => " by sched_ext",
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

fn named(shown: &Shown, tid: u32) -> String {
    let all = shown
        .vms
        .iter()
        .flat_map(|vm| vm.vcpus.iter().map(move |vcpu| (vm, vcpu)));
    let found = { all }.find(|(_, vcpu)| vcpu.tid == tid);
    found.map_or(tid.to_string(), |(vm, vcpu)| {
        format!("{}/{}", vm.name, vcpu.index)
    })
}

fn row(vm: &VmShown, vcpu: &VcpuShown) -> [String; 10] {
    let word = |level: Level| format!("{level:?}").to_lowercase();
    let now = match vm.because {
        Some(Because::Blocks) => "let go: blocks".to_owned(),
        Some(Because::Alone) => "let go: alone".to_owned(),
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

/// Starts a dispatcher unless one answers.
fn start(run_dir: &Path) -> anyhow::Result<()> {
    let socket = socket(run_dir);
    if ask(&socket, &Request::Show).is_ok() {
        return Ok(());
    }
    fs::create_dir_all(run_dir)
        .with_context(|| format!("cannot create {} (are you root?)", run_dir.display()))?;
    let program = std::env::current_exe()?.with_file_name("forkyard-dispatcher");
    let log = run_dir.join("sched.log");
    let to = forkyard_sys_host::private::create(&log)
        .with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(&program);
    command.args(["serve", "--socket"]).arg(&socket);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(to);
    // It outlives this command, and what ends this one does not end it.
    command.process_group(0);
    let cannot = || format!("cannot run {}", program.display());
    let mut child = command.spawn().with_context(cannot)?;
    let begun = Instant::now();
    let mut ended = false;
    while ask(&socket, &Request::Show).is_err() {
        // Another command may have started one at the same time. That one has the
        // place then, and this one ended because it listens.
        if ended || begun.elapsed() > START {
            let said = fs::read_to_string(&log).unwrap_or_default();
            bail!("the dispatcher did not start:\n{said}");
        }
        ended = child.try_wait()?.is_some();
        std::thread::sleep(POLL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_name_every_vcpu() {
        let vcpu = |index| VcpuShown {
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
        let vm = VmShown {
            name: "p".to_owned(),
            pid: 1,
            level: Level::Enforce,
            now: Level::Enforce,
            because: None,
            weight: 256,
            cap: None,
            parallel: Parallel::Yes,
            sleeps: 3.0,
            asleep: 0.5,
            distance: 2,
            vcpus: vec![vcpu(0), vcpu(1)],
        };
        let text = exposition(&Shown {
            policy: Policy::Sbco,
            means: Means::Freezer,
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
