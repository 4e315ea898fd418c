//! `forkyard-guest dock`: generalises this guest, and makes its memory and disk small.
//!
//! ```text
//! plan (a line on stdin) -> stop -> clear -> write back, trim, drop caches, compact -> fill
//!      -> let go -> report (a line on stdout)
//! ```
//!
//! **Fill**: takes free memory as memory of its own, which the kernel clears for it, and lets go of
//! it. A cleared page takes no room in a page image, whatever was in it before, and whichever image
//! the memory of this VM is a view of; and the kernel writes nothing to pages that are free.
//!
//! If memory runs out all the same, the kernel ends the process that fills first; the dock fails then.

use crate::{agent::identity::secrets, foreign, init::doing};
use forkyard_substrate::{Plan, Prepared, matches};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    hint,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// Word for the process that clears free memory.
const FILL: &str = "fill";
/// Most bytes taken at once.
const PIECE: u64 = 32 << 20;
/// Fewer are not worth it.
const LEAST: u64 = 64 << 10;
const PAGE: usize = 4096;
/// Fields of `/proc/meminfo` that say where memory is.
const USED: [&str; 12] = [
    "AnonPages",
    "Buffers",
    "Cached",
    "KernelStack",
    "MemFree",
    "MemTotal",
    "PageTables",
    "Percpu",
    "SReclaimable",
    "SUnreclaim",
    "Shmem",
    "VmallocUsed",
];

/// Carries out the plan, and reports.
pub fn main(words: &[String]) -> ExitCode {
    if let [role, margin] = words
        && role == FILL
    {
        return margin.parse().map_or(ExitCode::FAILURE, fill);
    }
    let mut line = String::new();
    if let Err(error) = io::stdin().read_line(&mut line) {
        eprintln!("forkyard-guest: cannot read the plan: {error}");
        return ExitCode::FAILURE;
    }
    let plan: Plan = match serde_json::from_str(&line) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("forkyard-guest: the plan makes no sense: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Freed now: it would be in the substrate.
    drop(line);
    let mut prepared = Prepared::default();
    stop(&plan, &mut prepared);
    clear(Path::new("/"), &plan, &mut prepared);
    if let Err(why) = give_back(plan.margin, &mut prepared) {
        // What was freed would be in the substrate.
        eprintln!("forkyard-guest: free memory was not cleared: {why}");
        return ExitCode::FAILURE;
    }
    let told = serde_json::to_string(&prepared).map_err(io::Error::from);
    let told = told.and_then(|text| {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    });
    if told.is_err() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Stops what runs of the services named. Nothing to do without systemd.
fn stop(plan: &Plan, prepared: &mut Prepared) {
    if plan.stop.is_empty() || !Path::new("/run/systemd/system").is_dir() {
        return;
    }
    let listed = without_input("systemctl").and_then(|mut command| {
        command.args(["list-units", "--plain", "--no-legend", "--state=active"]);
        command.args(&plan.stop).output()
    });
    let listed = match listed {
        Ok(listed) => String::from_utf8_lossy(&listed.stdout).into_owned(),
        Err(error) => return prepared.problems.push(format!("list services: {error}")),
    };
    let names = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let active: Vec<String> = names.map(str::to_owned).collect();
    if active.is_empty() {
        return;
    }
    let stopped = without_input("systemctl")
        .and_then(|mut command| command.arg("stop").args(&active).output());
    match stopped {
        Ok(done) if done.status.success() => prepared.stopped = active,
        Ok(done) => prepared.problems.push(format!(
            "stop services: {}",
            String::from_utf8_lossy(&done.stderr).trim()
        )),
        Err(error) => prepared.problems.push(format!("stop services: {error}")),
    }
}

/// Removes and empties what the plan names, below a root.
fn clear(root: &Path, plan: &Plan, prepared: &mut Prepared) {
    let mut note = |path: &Path, done: Result<(), String>| match done {
        Ok(()) => prepared.cleared += 1,
        Err(error) => prepared
            .problems
            .push(format!("{}: {error}", path.display())),
    };
    for pattern in &plan.remove {
        for path in found(root, pattern) {
            note(&path, secrets::scrub(&path));
        }
    }
    for pattern in &plan.empty {
        for path in found(root, pattern)
            .into_iter()
            .filter(|path| path.is_file())
        {
            note(&path, secrets::empty(&path).map_err(doing("empty it")));
        }
    }
    if let Some(name) = &plan.host_name {
        let file = root.join("etc/hostname");
        if file.is_file() {
            note(
                &file,
                foreign::put(&file, format!("{name}\n")).map_err(doing("write it")),
            );
        }
        if root == Path::new("/")
            && let Err(error) = nix::unistd::sethostname(name)
        {
            prepared
                .problems
                .push(format!("set the host name: {error}"));
        }
    }
}

/// Paths that a pattern names.
fn found(root: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut paths = vec![root.to_owned()];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        if !part.contains('*') {
            paths.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        let names = |folder: &PathBuf| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let named = entries.filter(|entry| {
                entry
                    .file_name()
                    .to_str()
                    .is_some_and(|name| matches(part, name))
            });
            named.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        paths = paths.iter().flat_map(names).collect();
    }
    paths.retain(|path| path.symlink_metadata().is_ok());
    paths
}

/// Writes back what is only in memory, drops what can be read again, and takes what is then free,
/// all but a margin.
fn give_back(margin: u64, prepared: &mut Prepared) -> Result<(), String> {
    nix::unistd::sync();
    trim(prepared);
    order("/proc/sys/vm/drop_caches", "3", prepared);
    shell();
    order("/proc/sys/vm/compact_memory", "1", prepared);
    prepared.used = meminfo();
    // The kernel's reserves are not cleared: they are made small meanwhile.
    let reserves = [
        ("/proc/sys/vm/lowmem_reserve_ratio", "0 0 0 0"),
        ("/proc/sys/vm/watermark_scale_factor", "1"),
        ("/proc/sys/vm/min_free_kbytes", "1024"),
    ];
    let former = reserves.map(|(path, _)| (path, fs::read_to_string(path)));
    for (path, word) in reserves {
        order(path, word, prepared);
    }
    // By another process: should memory run out, the kernel ends that one, and this one sets the
    // reserves as they were.
    let filled = without_input("/proc/self/exe")
        .and_then(|mut command| command.args(["dock", FILL, &margin.to_string()]).output());
    for (path, word) in former {
        if let Ok(word) = word {
            order(path, word.trim(), prepared);
        }
    }
    let filled = filled.map_err(|error| error.to_string())?;
    let told = String::from_utf8_lossy(&filled.stdout).trim().parse();
    prepared.given_back = told.map_err(|_| filled.status.to_string())?;
    Ok(())
}

/// Takes all memory that programs can have but a margin, which clears it; says how many bytes
/// that was.
fn fill(margin: u64) -> ExitCode {
    // Before it holds anything: should memory run out, this is what goes.
    if let Err(error) = fs::write("/proc/self/oom_score_adj", "1000") {
        eprintln!("forkyard-guest: cannot be the first to go: {error}");
        return ExitCode::FAILURE;
    }
    let mut held = Vec::new();
    let mut taken = 0;
    while let Some(free) = free_for_programs()
        && free > margin + LEAST
    {
        let want = (free - margin).min(PIECE) / PAGE as u64 * PAGE as u64;
        let Some(piece) = take(usize::try_from(want).unwrap_or(0)) else {
            break;
        };
        taken += want;
        held.push(piece);
    }
    drop(held);
    println!("{taken}");
    ExitCode::SUCCESS
}

/// Has a shell read again: it is what a woken VM is asked for first, as a rule.
fn shell() {
    let _ = without_input("/bin/sh").and_then(|mut command| command.args(["-c", ":"]).output());
}

fn without_input(program: &str) -> io::Result<Command> {
    let mut command = Command::new(program);
    command.stdin(foreign::null()?);
    Ok(command)
}

fn order(path: &str, word: &str, prepared: &mut Prepared) {
    if let Err(error) = fs::write(path, word) {
        prepared.problems.push(format!("{path}: {error}"));
    }
}

/// Discards what was in files that are gone: their blocks would be in the substrate.
fn trim(prepared: &mut Prepared) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mut devices = BTreeMap::new();
    for line in mounts.lines() {
        if let [device, folder, ..] = line.split(' ').collect::<Vec<_>>()[..]
            && device.starts_with("/dev/")
        {
            devices.insert(device, folder);
        }
    }
    for (device, folder) in devices {
        // A file may be mounted on, too.
        let opened = foreign::open(File::options().read(true), folder);
        match opened.and_then(|folder| forkyard_sys_guest::trim::trim(&folder)) {
            Ok(_) => {}
            // By a file system or a disk that has no such thing.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(error) => prepared.problems.push(format!("trim {device}: {error}")),
        }
    }
}

/// Memory that is the kernel's zeros, each page of it; none if there is not so much.
fn take(bytes: usize) -> Option<Vec<u8>> {
    let mut piece: Vec<u8> = Vec::new();
    piece.try_reserve_exact(bytes).ok()?;
    // The compiler must not find out that this is what new memory holds anyway.
    let mut piece = hint::black_box(piece);
    piece.resize(bytes, 0);
    Some(hint::black_box(piece))
}

/// Bytes that programs can take before memory runs out.
fn free_for_programs() -> Option<u64> {
    let text = fs::read_to_string("/proc/zoneinfo").ok()?;
    Some(usable(&text) * PAGE as u64)
}

/// Pages of all zones that are free and not kept for the kernel: above the mark at which it begins
/// to reclaim, and not held back from a user that could do with another zone.
fn usable(zones: &str) -> u64 {
    let number = |word: Option<&str>| word.and_then(|it| it.parse::<u64>().ok()).unwrap_or(0);
    let (mut sum, mut free, mut high) = (0, 0, 0);
    for line in zones.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("pages") => free = number(words.nth(1)),
            Some("high") => high = number(words.next()),
            Some("protection:") => {
                let all = line.split(|it: char| !it.is_ascii_digit());
                let held_back = all.map(|it| number(Some(it))).max().unwrap_or(0);
                sum += free.saturating_sub(high + held_back);
            }
            _ => {}
        }
    }
    sum
}

fn meminfo() -> BTreeMap<String, u64> {
    let mut text = String::new();
    let read = File::open("/proc/meminfo").and_then(|mut file| file.read_to_string(&mut text));
    if read.is_err() {
        return BTreeMap::new();
    }
    let line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
        USED.contains(&name).then(|| (name.to_owned(), kib << 10))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_keeps_is_not_free_for_programs() {
        let zone = |free: u64, high: u64, protection: &str| {
            format!(
                "Node 0, zone DMA\n  per-node stats\n      nr_inactive_anon 5\n  pages free     {free}\n        \
                 boost    0\n        min      9\n        low      10\n        high     {high}\n        \
                 protection: {protection}\n  pagesets\n    cpu: 0\n              high:  99\n"
            )
        };
        assert_eq!(usable(&zone(100, 20, "(0, 0, 0)")), 80);
        assert_eq!(usable(&zone(100, 20, "(0, 50, 70)")), 10);
        // A zone that is all kept counts for nothing, and takes nothing from the others.
        let both = zone(100, 20, "(0, 0, 443)") + &zone(1000, 40, "(0, 0, 0)");
        assert_eq!(usable(&both), 960);
        assert_eq!(usable(""), 0);
    }

    #[test]
    fn what_a_plan_names_goes_and_all_else_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        for path in [
            "etc/ssh/ssh_host_rsa_key",
            "home/ann/.bash_history",
            "home/ann/kept",
        ] {
            put(path, "text");
        }
        put("etc/machine-id", "0123\n");
        put("etc/hostname", "p\n");
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
        let plan = Plan {
            remove: words(&[
                "/etc/ssh/ssh_host_*_key",
                "/home/*/.bash_history",
                "/var/none",
            ]),
            empty: words(&["/etc/machine-id", "/etc/none"]),
            host_name: Some("localhost".into()),
            ..Plan::default()
        };
        let mut prepared = Prepared::default();
        clear(root, &plan, &mut prepared);
        assert_eq!(prepared.problems, [""; 0]);
        assert_eq!(prepared.cleared, 4);
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        assert_eq!(text("etc/ssh/ssh_host_rsa_key"), None);
        assert_eq!(text("home/ann/.bash_history"), None);
        assert_eq!(text("home/ann/kept").as_deref(), Some("text"));
        assert_eq!(text("etc/machine-id").as_deref(), Some(""));
        assert_eq!(text("etc/hostname").as_deref(), Some("localhost\n"));
    }

    #[test]
    fn memory_that_is_taken_is_there_and_zero() {
        let piece = take(3 * PAGE).expect("there is so much");
        assert_eq!(piece, vec![0; 3 * PAGE]);
        assert!(take(usize::MAX / 2).is_none());
    }
}
