//! What was measured, as JSON and as a table of medians.

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
    pub way: &'static str,
    pub reporting: bool,
    /// Packets lost, of a hundred.
    pub loss: u8,
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
    fs::create_dir_all(out).expect("a folder");
    fs::write(out.join("cluster.json"), json + "\n").expect("written");
    fs::write(out.join("cluster.md"), &table).expect("written");
    print!("{table}");
}

fn table(rows: &[Row]) -> String {
    let mut table = String::from(
        "| part | hosts | clones | way | page reporting | loss % | ready ms | done ms | once more ms | asked | in lockstep | sent | again | pushed | MB |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut cells: BTreeMap<_, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        let key = (
            row.part,
            row.clones,
            row.hosts,
            row.way,
            !row.reporting,
            row.loss,
        );
        cells.entry(key).or_default().push(row);
    }
    for ((part, clones, hosts, way, silent, loss), rows) in cells {
        let of = |of: fn(&Row) -> u64| median(rows.iter().map(|row| of(row)).collect());
        let reporting = if silent { "no" } else { "yes" };
        let megabytes = of(|row| row.bytes / 100_000);
        let counts = [
            of(|row| row.ready),
            of(|row| row.done),
            of(|row| row.again),
            of(|row| row.asked),
            of(|row| row.suppressed),
            of(|row| row.sent),
            of(|row| row.resent),
            of(|row| row.pushed),
        ];
        let counts = counts.map(|count| count.to_string()).join(" | ");
        let _ = writeln!(
            table,
            "| {part} | {hosts} | {clones} | {way} | {reporting} | {loss} | {counts} | {}.{} |",
            megabytes / 10,
            megabytes % 10
        );
    }
    table
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
