//! Reader of HAProxy's `show stat` about servers.

use anyhow::Context;
use forkyard_autoscale::SlotNo;
use std::{collections::BTreeMap, time::Duration};

/// Name of the backend whose servers are looked at.
pub const BACKEND: &str = "servers";
/// Stands before the number of a slot in a server's name.
pub const PREFIX: &str = "s";

/// Servers and their queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stat {
    /// By slot.
    pub servers: BTreeMap<SlotNo, Row>,
    /// Requests that no server has been chosen for.
    pub waiting: u32,
}

/// One server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// True if its checks pass, whether or not it gets requests.
    pub up: bool,
    /// Requests that it was sent or that wait for it.
    pub open: u32,
    /// Requests of the last second.
    pub rate: u32,
    /// Mean time of the last 1024 requests: in the queue, to connect, and until the answer began.
    pub latency: Duration,
}

/// Reads an answer to `show stat`.
pub fn parse(text: &str) -> anyhow::Result<Stat> {
    let mut lines = text.lines().filter(|line| !line.is_empty());
    let head = lines.next().and_then(|line| line.strip_prefix("# "));
    let head = cells(head.context("HAProxy's statistics have no heads")?);
    let mut stat = Stat::default();
    for line in lines {
        let cells = cells(line);
        let cell = |name: &str| {
            let at = head.iter().position(|it| it == name);
            let at = at.with_context(|| format!("HAProxy's statistics have no column {name}"))?;
            anyhow::Ok(cells.get(at).map_or("", String::as_str))
        };
        // Empty where it makes no sense.
        let number = |name: &str| anyhow::Ok(cell(name)?.parse::<u32>().unwrap_or(0));
        if cell("pxname")? != BACKEND {
            continue;
        }
        let name = cell("svname")?;
        if name == "BACKEND" {
            stat.waiting = number("qcur")?;
        }
        let Some(no) = name.strip_prefix(PREFIX).and_then(|no| no.parse().ok()) else {
            continue;
        };
        let status = cell("status")?;
        let latency = number("qtime")? + number("ctime")? + number("rtime")?;
        let row = Row {
            up: ["UP", "DRAIN"].iter().any(|it| status.starts_with(it)),
            open: number("scur")? + number("qcur")?,
            rate: number("rate")?,
            latency: Duration::from_millis(latency.into()),
        };
        stat.servers.insert(SlotNo(no), row);
    }
    Ok(stat)
}

/// Cells of a line; those in quotation marks may have commas, and double marks.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match (c, cells.last_mut()) {
            ('"', _) => quoted = !quoted,
            (',', _) if !quoted => cells.push(String::new()),
            (c, Some(cell)) => cell.push(c),
            (_, None) => {}
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As HAProxy 2.6 has it, with some of its columns.
    const TEXT: &str = "# pxname,svname,qcur,scur,status,rate,last_chk,qtime,ctime,rtime,ttime,-\n\
        web,FRONTEND,,9,OPEN,7,,,,,,\n\
        servers,s0,1,4,UP,7,\"L7OK, \"\"200\"\"\",10,1,30,99,\n\
        servers,s1,0,0,MAINT,0,,0,0,0,0,\n\
        servers,s12,0,2,DRAIN 1/3,0,,0,0,5,6,\n\
        servers,s3,0,0,DOWN 1/2,0,,0,0,0,0,\n\
        servers,BACKEND,3,6,UP,7,,10,1,30,99,\n\n";

    #[test]
    fn servers_and_the_queue_are_read_and_others_are_not() {
        let stat = parse(TEXT).expect("statistics");
        assert_eq!(stat.waiting, 3);
        let row = |no| stat.servers[&SlotNo(no)];
        let latency = Duration::from_millis(41);
        assert_eq!(
            row(0),
            Row {
                up: true,
                open: 5,
                rate: 7,
                latency
            }
        );
        assert_eq!((row(12).up, row(12).open), (true, 2));
        assert!(!row(1).up && !row(3).up);
        assert_eq!(stat.servers.len(), 4);
    }

    #[test]
    fn what_is_not_statistics_is_an_error() {
        for wrong in ["", "Unknown command", "# pxname,svname\nservers,s0\n"] {
            parse(wrong).expect_err(wrong);
        }
    }
}
