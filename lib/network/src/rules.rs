//! Frames that may pass: one nftables table of the bridge family.
//!
//! A frame from a tap of ours passes if (tap, source MAC, source IPv4) is in
//! the set `members`, for IPv4 and ARP alike; whatever else a guest sends is
//! dropped, forged or of another protocol; but one that does not know its
//! address yet may ask the host for it by DHCP, from its own MAC (the set
//! `stations`), ten times a second at most, unheard by its siblings, none of
//! which can answer in the host's place. Between a tap and the host itself
//! nothing passes, in either direction, unless the family is in the set
//! `routed`; what of that goes where is the routes' to say. Interfaces of
//! others are not looked at. What comes from another host is for guests alone,
//! and has been looked at before (`tunnels`).
//!
//! Where br_netfilter shows frames between guests to IPv4's rules, it skips what
//! comes at the same priority as itself, 0: `between_guests` comes before.
//!
//! A deletion takes the kernel 15 ms and more, however many it is of: a member that
//! is dismissed while another `nft` runs goes together with all that wait.

use crate::{
    NetworkError,
    names::Link,
    nft::{Nft, apply},
};
use forkyard_types::{Address, VmId};
use nftables::{
    batch::Batch,
    expr::{Expression, NamedExpression},
    schema::{Element, NfListObject, Table},
    types::NfFamily,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

pub(crate) const TABLE: &str = "forkyard";
const MEMBERS: &str = "members";
const STATIONS: &str = "stations";
/// As `nft -j` reads it; see nftables-json(5), and `nft list table bridge
/// forkyard` for the same in its own words. Replaces what an earlier daemon
/// left, at one stroke.
pub(crate) const RULES: &str = include_str!("rules.json");

/// Sender that a tap may have, and its addresses.
type Permit = (VmId, Address);

/// The rules in force.
#[derive(Debug)]
pub(crate) struct Rules {
    permits: Mutex<Permits>,
    nft: Nft,
}

#[derive(Debug, Default)]
struct Permits {
    given: BTreeMap<VmId, Address>,
    /// Still in the kernel's set.
    revoked: Vec<Permit>,
}

impl Rules {
    /// Puts the rules in force, with no member.
    pub(crate) async fn enforce(nft: Nft) -> Result<Self, NetworkError> {
        nft.run_text(RULES).await?;
        Ok(Self {
            permits: Mutex::default(),
            nft,
        })
    }

    /// Lets these send. If cancelled, it happens or not; `dismiss` copes.
    pub(crate) async fn admit(&self, members: &[Permit]) -> Result<(), NetworkError> {
        if members.is_empty() {
            return Ok(());
        }
        let turn = self.nft.turn().await;
        self.permits().given.extend(members.iter().copied());
        let mut batch = Batch::new();
        elements(members).into_iter().for_each(|e| batch.add(e));
        apply(turn, &batch.to_nftables()).await.1
    }

    /// Lets this one send no more. If cancelled, the next one sees to it.
    pub(crate) async fn dismiss(&self, vm: VmId) -> Result<(), NetworkError> {
        {
            let mut permits = self.permits();
            let Some(address) = permits.given.remove(&vm) else {
                return Ok(());
            };
            permits.revoked.push((vm, address));
        }
        let turn = self.nft.turn().await;
        let revoked = mem::take(&mut self.permits().revoked);
        if revoked.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        // Added first: to delete what is not there would fail, and an admission
        // may have failed before.
        elements(&revoked).into_iter().for_each(|e| batch.add(e));
        elements(&revoked).into_iter().for_each(|e| batch.delete(e));
        // The turn ends after this: the next holder must find what was not done.
        let (_turn, done) = apply(turn, &batch.to_nftables()).await;
        if done.is_err() {
            self.permits().revoked.extend(revoked);
        }
        done
    }

    /// Commands that let all members send that may, where the rules were put in force anew.
    pub(crate) fn readmit(&self) -> Result<Vec<Value>, NetworkError> {
        let given: Vec<_> = {
            let mut permits = self.permits();
            // Not in the kernel's sets any more.
            permits.revoked.clear();
            permits.given.iter().map(|(vm, at)| (*vm, *at)).collect()
        };
        if given.is_empty() {
            return Ok(Vec::new());
        }
        let add = |element| {
            let element = serde_json::to_value(element);
            let element = element.map_err(|source| NetworkError::Rules { source })?;
            Ok(json!({ "add": element }))
        };
        elements(&given).into_iter().map(add).collect()
    }

    /// Removes the rules, and all members with them.
    pub(crate) async fn lift(&self) -> Result<(), NetworkError> {
        let turn = self.nft.turn().await;
        *self.permits() = Permits::default();
        let table = || {
            NfListObject::Table(Table {
                family: NfFamily::Bridge,
                name: TABLE.into(),
                handle: None,
            })
        };
        let mut batch = Batch::new();
        // Added first, so that removing what is not there is no error.
        batch.add(table());
        batch.delete(table());
        apply(turn, &batch.to_nftables()).await.1
    }

    fn permits(&self) -> MutexGuard<'_, Permits> {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of both sets: under which identity a tap may speak, and under which it may ask for its own.
fn elements(permits: &[Permit]) -> [NfListObject<'static>; 2] {
    let of = |set: &'static str, words: fn(&Permit) -> Vec<String>| {
        let element = |permit| {
            let words = words(permit).into_iter();
            let words = words.map(|word| Expression::String(word.into())).collect();
            Expression::Named(NamedExpression::Concat(words))
        };
        NfListObject::Element(Element {
            family: NfFamily::Bridge,
            table: TABLE.into(),
            name: set.into(),
            elem: permits.iter().map(element).collect(),
        })
    };
    [
        of(MEMBERS, |(vm, address)| {
            let tap = Link::Tap(*vm).name();
            vec![tap, address.mac.to_string(), address.ip.to_string()]
        }),
        of(STATIONS, |(vm, address)| {
            vec![Link::Tap(*vm).name(), address.mac.to_string()]
        }),
    ]
}
