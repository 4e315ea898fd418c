//! Options of the negotiation: what they carry, and what they are answered with.

use crate::{
    export::Export,
    wire::{
        Fields, MAX_PAYLOAD, OPTION_REPLY_MAGIC, answer,
        info::{self, EXPORT},
    },
};

/// Name of the one metadata context.
pub const ALLOCATION: &str = "base:allocation";
/// Number by which block status replies call it.
pub const ALLOCATION_ID: u32 = 1;
/// Block size that costs no read before a write, in bytes.
const PREFERRED_BLOCK: u32 = 4096;

/// Appends a reply to an option.
pub fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&length(data).to_be_bytes());
    out.extend_from_slice(data);
}

fn length(data: &[u8]) -> u32 {
    u32::try_from(data.len()).unwrap_or(u32::MAX)
}

/// Appends the name of an export, in answer to `LIST`.
pub fn listed(out: &mut Vec<u8>, option: u32, name: &str) {
    let mut data = length(name.as_bytes()).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    reply(out, option, answer::SERVER, &data);
}

/// Content of `INFO` and `GO`.
#[derive(Debug)]
pub struct Wanted<'a> {
    pub name: &'a str,
    infos: Fields<'a>,
}

impl<'a> Wanted<'a> {
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = usize::from(fields.u16()?);
        (fields.0.len() == count * 2).then_some(Self {
            name,
            infos: fields,
        })
    }

    /// Appends what is asked for, and the end of it.
    pub fn answer(mut self, out: &mut Vec<u8>, option: u32, export: &Export, structured: bool) {
        let mut data = EXPORT.to_be_bytes().to_vec();
        data.extend_from_slice(&export.size.to_be_bytes());
        data.extend_from_slice(&export.flags(structured).to_be_bytes());
        reply(out, option, answer::INFO, &data);
        let (mut name, mut sizes) = (false, false);
        while let Some(wanted) = self.infos.u16() {
            name |= wanted == info::NAME;
            sizes |= wanted == info::BLOCK_SIZE;
        }
        if name {
            let mut data = info::NAME.to_be_bytes().to_vec();
            data.extend_from_slice(self.name.as_bytes());
            reply(out, option, answer::INFO, &data);
        }
        if sizes {
            let mut data = info::BLOCK_SIZE.to_be_bytes().to_vec();
            for size in [1, PREFERRED_BLOCK, MAX_PAYLOAD] {
                data.extend_from_slice(&size.to_be_bytes());
            }
            reply(out, option, answer::INFO, &data);
        }
        reply(out, option, answer::ACK, &[]);
    }
}

/// Content of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Debug)]
pub struct Contexts<'a> {
    pub name: &'a str,
    /// True if the one context is named.
    pub exact: bool,
    /// True if the one context is in a namespace that is named, or all are asked for.
    pub listed: bool,
}

impl<'a> Contexts<'a> {
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u32()?;
        let (mut exact, mut listed) = (false, count == 0);
        for _ in 0..count {
            // Ends with the data, whatever `count` is.
            let query = fields.string()?;
            exact |= query == ALLOCATION;
            listed |= query == ALLOCATION || query == "base:";
        }
        fields.0.is_empty().then_some(Self {
            name,
            exact,
            listed,
        })
    }
}

/// Appends the one metadata context.
pub fn context(out: &mut Vec<u8>, option: u32, id: u32) {
    let mut data = id.to_be_bytes().to_vec();
    data.extend_from_slice(ALLOCATION.as_bytes());
    reply(out, option, answer::META_CONTEXT, &data);
}
