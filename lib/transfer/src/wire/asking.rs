//! Wishes of a client, and its reception.

use super::fields::Fields;
use super::{MemberId, Seq, put_run};
use crate::pages::Run;
use forkyard_types::PageCount;

/// Most asks a packet of requests may hold.
pub const MAX_ASKS: usize = 80;

/// Bytes of one ask.
const ASK: usize = 15;

/// A client's report, and what it asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Member that asks.
    pub member: MemberId,
    /// Reception of the member.
    pub report: Report,
    /// Wishes of the member; may be empty.
    pub asks: Vec<PageRequest>,
}

/// Reception of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// True if packets to the group reach it.
    pub hears: bool,
    /// Packets of others that came to its group.
    pub foreign: u32,
    /// Time from a question to its answer, in µs; 0 if not known.
    pub round_trip: u32,
    /// Packets that came to it alone.
    pub alone: Reception,
    /// Packets that came by the group.
    pub group: Reception,
}

/// Packets that came one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reception {
    /// Highest number among its packets.
    pub highest: Seq,
    /// Packets.
    pub packets: u64,
    /// Bytes a second, on average over the last tens of milliseconds.
    pub rate: u64,
}

/// Reason why a page is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// The page is waited for.
    Waited,
    /// The page will be waited for.
    Ahead,
    /// The page is not needed any more.
    Withdrawn,
}

/// Pages asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Run of pages.
    pub run: Run,
    /// Reason.
    pub urgency: Urgency,
    /// Number of times the same was asked before.
    pub before: u8,
    /// Parts of it that are missing; of several pages, all.
    pub parts: PartSet,
}

/// Parts of a page, a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartSet(u8);

impl PartSet {
    /// The page, in however many parts it comes.
    pub const ALL: Self = Self(u8::MAX);

    /// Those of so many that are not among `have`.
    pub(crate) fn missing(have: u8, parts: u8) -> Self {
        let all = 1u8.checked_shl(parts.into()).map_or(u8::MAX, |bit| bit - 1);
        match all & !have {
            0 => Self::ALL,
            missing => Self(missing),
        }
    }

    /// The first of so many from `index` on.
    pub(crate) fn next(self, index: u8, parts: u8) -> Option<u8> {
        let wanted = |index: &u8| self.0 & (1u8.checked_shl((*index).into()).unwrap_or(0)) != 0;
        (index..parts).find(wanted)
    }

    /// Tells whether it has all that `other` has.
    pub(crate) fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those whose bits are set; `None` if none is.
    pub(crate) fn of(bits: u8) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }
}

/// Reads the rest of a packet of requests.
pub(super) fn request(fields: &mut Fields<'_>) -> Option<Request> {
    let member = fields.member()?;
    let hears = match fields.u8()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let report = Report {
        hears,
        foreign: fields.u32()?,
        round_trip: fields.u32()?,
        alone: reception(fields)?,
        group: reception(fields)?,
    };
    if fields.0.len() > MAX_ASKS * ASK {
        return None;
    }
    let mut asks = Vec::with_capacity(fields.0.len() / ASK);
    while !fields.0.is_empty() {
        asks.push(ask(fields)?);
    }
    Some(Request {
        member,
        report,
        asks,
    })
}

fn reception(fields: &mut Fields<'_>) -> Option<Reception> {
    Some(Reception {
        highest: Seq(fields.u64()?),
        packets: fields.u64()?,
        rate: fields.u64()?,
    })
}

fn ask(fields: &mut Fields<'_>) -> Option<PageRequest> {
    let run = fields.run()?;
    let urgency = match fields.u8()? {
        0 => Urgency::Waited,
        1 => Urgency::Ahead,
        2 => Urgency::Withdrawn,
        _ => return None,
    };
    let before = fields.u8()?;
    let parts = PartSet::of(fields.u8()?)?;
    (parts == PartSet::ALL || run.pages == PageCount(1)).then_some(PageRequest {
        run,
        urgency,
        before,
        parts,
    })
}

/// Writes what follows in a packet of requests.
pub(super) fn put(request: &Request, out: &mut Vec<u8>) {
    let Report {
        hears,
        foreign,
        round_trip,
        alone,
        group,
    } = request.report;
    out.extend(request.member.0.to_le_bytes());
    out.push(u8::from(hears));
    out.extend(foreign.to_le_bytes());
    out.extend(round_trip.to_le_bytes());
    for way in [alone, group] {
        out.extend(way.highest.0.to_le_bytes());
        out.extend(way.packets.to_le_bytes());
        out.extend(way.rate.to_le_bytes());
    }
    for ask in request.asks.iter().take(MAX_ASKS) {
        put_run(ask.run, out);
        out.push(match ask.urgency {
            Urgency::Waited => 0,
            Urgency::Ahead => 1,
            Urgency::Withdrawn => 2,
        });
        out.push(ask.before);
        out.push(ask.parts.0);
    }
}
