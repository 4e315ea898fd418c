//! Parser of the output of Slurm's commands. What makes no sense is left out: it
//! may be of another version, and is not to stop everything.

use forkyard_types::{ByteCount, NodeName, Room, TicketId};
use std::collections::BTreeMap;

/// An allocation's number, name and comment, for `squeue --format`.
pub const FORMAT: &str = "%A|%j|%k";

/// A node as Slurm shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub offers: Room,
    pub taken: Room,
    /// True if the node takes nothing new.
    pub draining: bool,
}

/// Slurm's record of one grant: an allocation on each of its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The least of their numbers: later ones have greater ones.
    pub first: u64,
    /// Number of them.
    pub parts: usize,
    pub whose: Whose,
}

/// Owner of a grant, as its allocations give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    pub holder: NodeName,
    /// Number of allocations there are to be.
    pub parts: usize,
    /// vCPUs of all of them.
    pub vcpus: u32,
    pub user: Option<String>,
}

impl Held {
    /// Tells whether none of it is missing.
    pub fn is_whole(&self) -> bool {
        self.parts == self.whose.parts
    }
}

impl Whose {
    /// As an allocation's comment.
    pub fn to_comment(&self) -> String {
        let Self {
            holder,
            parts,
            vcpus,
            user,
        } = self;
        format!(
            "{holder} {parts} {vcpus} {}",
            user.as_deref().unwrap_or_default()
        )
    }

    fn of_comment(text: &str) -> Option<Self> {
        let mut words = text.splitn(4, ' ');
        let mut next = || words.next();
        let (holder, parts, vcpus) = (next()?, next()?, next()?);
        let user = next().unwrap_or_default().trim();
        Some(Self {
            holder: holder.parse().ok()?,
            parts: parts.parse().ok()?,
            vcpus: vcpus.parse().ok()?,
            user: (!user.is_empty()).then(|| user.to_owned()),
        })
    }
}

/// The nodes that are alive, of a partition if one is named: `scontrol --oneliner show
/// nodes`.
pub fn nodes(shown: &str, partition: Option<&str>) -> BTreeMap<NodeName, Node> {
    let mut nodes = BTreeMap::new();
    for line in shown.lines() {
        // Values with spaces in them are none that we want.
        let mut fields = BTreeMap::new();
        for (field, value) in line.split_whitespace().filter_map(|it| it.split_once('=')) {
            // What people wrote of the node comes last.
            fields.entry(field).or_insert(value);
        }
        let (Some((name, node)), Some(partitions)) = (node(&fields), fields.get("Partitions"))
        else {
            continue;
        };
        if partition.is_none_or(|wanted| partitions.split(',').any(|it| it == wanted)) {
            nodes.insert(name, node);
        }
    }
    nodes
}

fn node(fields: &BTreeMap<&str, &str>) -> Option<(NodeName, Node)> {
    let number = |field: &str| fields.get(field)?.parse::<u64>().ok();
    let room = |vcpus, mib: u64| {
        Some(Room {
            vcpus: u32::try_from(vcpus).ok()?,
            memory: ByteCount(mib.checked_mul(1 << 20)?),
        })
    };
    let state = fields.get("State")?;
    let is = |flag: &str| state.contains(flag);
    // A star: it does not respond.
    if is("*") || is("DOWN") || is("FAIL") || is("UNKNOWN") || is("POWER") {
        return None;
    }
    let node = Node {
        offers: room(
            number("CPUEfctv").or_else(|| number("CPUTot"))?,
            number("RealMemory")?,
        )?,
        taken: room(number("CPUAlloc")?, number("AllocMem")?)?,
        draining: is("DRAIN") || is("MAINT") || is("RESERVED"),
    };
    Some((fields.get("NodeName")?.parse().ok()?, node))
}

/// Parses the allocations of our grants, which have this before their ids, as
/// [`FORMAT`] has them.
pub fn grants(shown: &str, name: &str) -> BTreeMap<TicketId, Held> {
    let mut grants: BTreeMap<TicketId, Held> = BTreeMap::new();
    for (number, grant, whose) in shown.lines().filter_map(|line| job(line, name)) {
        let held = grants.entry(grant).or_insert(Held {
            first: number,
            parts: 0,
            whose,
        });
        held.first = held.first.min(number);
        held.parts += 1;
    }
    grants
}

fn job(line: &str, name: &str) -> Option<(u64, TicketId, Whose)> {
    let mut fields = line.splitn(3, '|');
    let number = fields.next()?.trim().parse().ok()?;
    let grant = fields.next()?.strip_prefix(name)?.parse().ok()?;
    Some((number, grant, Whose::of_comment(fields.next()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "\
NodeName=a Arch=x86_64 CoresPerSocket=1 CPUAlloc=3 CPUEfctv=16 CPUTot=16 CPULoad=0.10 OS=Linux 6.1.0 #1 SMP Debian 6.1 RealMemory=4000 AllocMem=96 FreeMem=N/A State=MIXED ThreadsPerCore=1 Partitions=debug,long BootTime=2026-01-01T00:00:00
NodeName=b CPUAlloc=0 CPUTot=8 RealMemory=2000 AllocMem=0 State=IDLE+DRAIN Partitions=debug Reason=a disk State=DOWN [root@x]
NodeName=c CPUAlloc=0 CPUTot=8 RealMemory=2000 AllocMem=0 State=IDLE* Partitions=debug
NodeName=d CPUAlloc=0 CPUTot=8 RealMemory=2000 AllocMem=0 State=DOWN Partitions=debug
NodeName=e CPUTot=many State=IDLE Partitions=debug

";

    fn name(text: &str) -> NodeName {
        text.parse().expect("a name")
    }

    #[test]
    fn nodes_that_live_are_seen_with_their_room() {
        let seen = nodes(NODES, None);
        let a = Node {
            offers: Room {
                vcpus: 16,
                memory: ByteCount(4000 << 20),
            },
            taken: Room {
                vcpus: 3,
                memory: ByteCount(96 << 20),
            },
            draining: false,
        };
        assert_eq!(seen.get(&name("a")), Some(&a));
        assert_eq!(seen.get(&name("b")).map(|node| node.draining), Some(true));
        assert_eq!(seen.get(&name("c")), None);
        assert_eq!(seen.get(&name("d")), None);
        assert_eq!(seen.get(&name("e")), None);
    }

    #[test]
    fn those_of_another_partition_are_not() {
        let seen = nodes(NODES, Some("long"));
        assert_eq!(seen.keys().collect::<Vec<_>>(), [&name("a")]);
        assert!(nodes(NODES, Some("lon")).is_empty());
    }

    #[test]
    fn allocations_are_ours_by_their_names() {
        let grant = TicketId::random();
        let whose = Whose {
            holder: name("a"),
            parts: 2,
            vcpus: 8,
            user: Some("ci".into()),
        };
        let own = whose.to_comment();
        let shown = format!(
            "8|forkyard-{grant}|{own}\n9|sleep|(null)\n10|forkyard-x|{own}\nx|forkyard-{grant}|{own}\n\
             7|forkyard-{grant}|{own}\n11|forkyard-{grant}|(null)\n"
        );
        let seen = grants(&shown, "forkyard-");
        let held = Held {
            first: 7,
            parts: 2,
            whose: whose.clone(),
        };
        assert!(held.is_whole());
        assert_eq!(seen, [(grant, held)].into());
        let nobodys = Whose {
            user: None,
            ..whose
        };
        let shown = format!("7|forkyard-{grant}|{}", nobodys.to_comment());
        let held = &grants(&shown, "forkyard-")[&grant];
        assert_eq!(held.whose, nobodys);
        assert!(!held.is_whole());
    }
}
