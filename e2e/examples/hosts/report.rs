//! Report of the measurements, as JSON and as a table of medians.

use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, time::Duration};

/// One measurement. Times are from the request on, in milliseconds; pages and
/// bytes are what the parent's host counts of its links.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub part: &'static str,
    pub round: u16,
    pub hosts: u8,
    pub clones: u16,
    /// Of the parent, in MiB, and what its job uses of it.
    pub memory: u32,
    pub fill: u32,
    pub way: &'static str,
    pub reporting: bool,
    /// Packets lost, of a hundred.
    pub loss: u8,
    /// Of a long link, in milliseconds.
    pub round_trip: u32,
    /// Until all clones' vCPUs ran.
    pub running: u64,
    /// Until all clones were ready; of copies, until every host had the file.
    pub ready: u64,
    /// Until all had done what they had to.
    pub done: u64,
    /// For the same once more, where that was measured.
    pub again: u64,
    pub asked: u64,
    pub suppressed: u64,
    pub sent: u64,
    pub resent: u64,
    pub pushed: u64,
    /// Pages that came while a clone waited for them; counted in `far` alone.
    pub waited: u64,
    pub bytes: u64,
}

/// Times that something took, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    pub what: &'static str,
    pub samples: usize,
    pub median: f64,
    /// Nine in ten took no longer.
    pub most: f64,
}

impl Latency {
    /// Of all that were measured.
    pub fn of(what: &'static str, times: &mut [Duration]) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let time = times.get(times.len() * percent / 100);
            time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
        };
        Self {
            what,
            samples: times.len(),
            median: at(50),
            most: at(90),
        }
    }
}

#[derive(Serialize)]
struct Results<'a> {
    options: &'a str,
    kernel: String,
    cpus: usize,
    rows: &'a [Row],
    latencies: &'a [Latency],
}

/// Writes `cluster.json` and `cluster.md` into a folder, and shows the tables.
pub fn write(out: &Path, options: &str, rows: &[Row], latencies: &[Latency]) {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let results = Results {
        options,
        kernel: kernel.trim().to_owned(),
        cpus: std::thread::available_parallelism().map_or(0, Into::into),
        rows,
        latencies,
    };
    let json = serde_json::to_string_pretty(&results).expect("no maps with odd keys");
    let mut table = table(rows);
    if !latencies.is_empty() {
        table += "\n| page | samples | median µs | 90 % µs |\n|---|---|---|---|\n";
    }
    for latency in latencies {
        let Latency {
            what,
            samples,
            median,
            most,
        } = latency;
        let _ = writeln!(table, "| {what} | {samples} | {median:.0} | {most:.0} |");
    }
    table += &goals(rows, latencies);
    fs::create_dir_all(out).expect("a folder");
    fs::write(out.join("cluster.json"), json + "\n").expect("written");
    fs::write(out.join("cluster.md"), &table).expect("written");
    print!("{table}");
}

fn table(rows: &[Row]) -> String {
    let mut table = String::from(
        "| part | MiB, used | hosts | clones | way | page reporting | loss % | round trip ms | running ms | ready ms | done ms | once more ms | asked | in lockstep | sent | again | pushed | waited for | MB |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut cells: BTreeMap<_, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        let key = (
            row.part,
            (row.memory, row.fill),
            row.clones,
            row.hosts,
            row.way,
            !row.reporting,
            row.loss,
            row.round_trip,
        );
        cells.entry(key).or_default().push(row);
    }
    for ((part, (memory, fill), clones, hosts, way, silent, loss, trip), rows) in cells {
        let of = |of: fn(&Row) -> u64| median(rows.iter().map(|row| of(row)).collect());
        let reporting = if silent { "no" } else { "yes" };
        let megabytes = of(|row| row.bytes / 100_000);
        let counts = [
            of(|row| row.running),
            of(|row| row.ready),
            of(|row| row.done),
            of(|row| row.again),
            of(|row| row.asked),
            of(|row| row.suppressed),
            of(|row| row.sent),
            of(|row| row.resent),
            of(|row| row.pushed),
            of(|row| row.waited),
        ];
        let counts = counts.map(|count| count.to_string()).join(" | ");
        let _ = writeln!(
            table,
            "| {part} | {memory}, {fill} | {hosts} | {clones} | {way} | {reporting} | {loss} | {trip} | {counts} | {}.{} |",
            megabytes / 10,
            megabytes % 10
        );
    }
    table
}

/// Lists the goals, as far as they were measured.
fn goals(rows: &[Row], latencies: &[Latency]) -> String {
    let mut goals = String::new();
    let mut goal = |aim: &str, measured: String, is_met: bool| {
        let is_met = if is_met { "yes" } else { "no" };
        let _ = writeln!(goals, "| {aim} | {measured} | {is_met} |");
    };
    let takes = rows.iter().filter(|row| {
        row.part == "takes" && row.reporting && row.way == "multicast" && row.clones >= 32
    });
    for row in takes {
        let (clones, memory, fill) = (row.clones, row.memory, row.fill);
        goal(
            "32 clones that take most of their memory anew: less than 10 MB in all",
            format!(
                "{:.1} MB; {clones} clones of {memory} MiB take {fill}",
                row.bytes as f64 / 1e6
            ),
            row.bytes < 10_000_000,
        );
    }
    let agile: Vec<_> = rows.iter().filter(|row| row.part == "agility").collect();
    if !agile.is_empty() {
        let clones: u64 = agile.iter().map(|row| u64::from(row.clones)).sum();
        goal(
            "4 parents fork 32 clones each, five times, to the same 8 hosts, and no clone fails",
            format!("{clones} clones in {} forks, none failed", agile.len()),
            clones >= 4 * 32 * 5,
        );
    }
    let of = |what| latencies.iter().find(|latency| latency.what == what);
    if let (Some(away), Some(echo)) = (of("away"), of("echo")) {
        let ratio = away.median / echo.median;
        goal(
            "a page within twice a round trip of its size",
            format!("{ratio:.2} times"),
            ratio <= 2.0,
        );
    }
    let settled = |way: &str, lost: bool| {
        let rows = rows.iter().filter(|row| row.part == "settle");
        let rows = rows.filter(|row| row.way == way && (row.loss > 0) == lost);
        let times: Vec<u64> = rows.map(|row| row.done).collect();
        (!times.is_empty()).then(|| median(times))
    };
    for way in ["unicast", "multicast"] {
        if let (Some(whole), Some(lossy)) = (settled(way, false), settled(way, true)) {
            let ratio = lossy as f64 / whole.max(1) as f64;
            goal(
                "packets lost cost less than a tenth of the time",
                format!("{ratio:.2} times, {way}"),
                ratio < 1.1,
            );
        }
    }
    if goals.is_empty() {
        return goals;
    }
    format!("\n| goal | measured | met |\n|---|---|---|\n{goals}")
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
