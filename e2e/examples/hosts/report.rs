//! What was measured, as JSON and as a table of medians.

use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

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
    /// Until all clones were ready.
    pub ready: u64,
    /// Until all had done what they had to.
    pub done: u64,
    pub asked: u64,
    pub suppressed: u64,
    pub sent: u64,
    pub resent: u64,
    pub pushed: u64,
    pub bytes: u64,
}

#[derive(Serialize)]
struct Results<'a> {
    options: &'a str,
    kernel: String,
    cpus: usize,
    rows: &'a [Row],
}

/// Writes `cluster.json` and `cluster.md` into a folder, and shows the table.
pub fn write(out: &Path, options: &str, rows: &[Row]) {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let results = Results {
        options,
        kernel: kernel.trim().to_owned(),
        cpus: std::thread::available_parallelism().map_or(0, Into::into),
        rows,
    };
    let json = serde_json::to_string_pretty(&results).expect("no maps with odd keys");
    let table = table(rows);
    fs::create_dir_all(out).expect("a folder");
    fs::write(out.join("cluster.json"), json + "\n").expect("written");
    fs::write(out.join("cluster.md"), &table).expect("written");
    print!("{table}");
}

fn table(rows: &[Row]) -> String {
    let mut table = String::from(
        "| part | hosts | clones | way | page reporting | loss % | ready ms | done ms | asked | in lockstep | sent | again | pushed | MB |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
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
