//! What may pass: one nftables table of the bridge family.
//!
//! A frame from a tap of ours passes if (tap, source MAC, source IPv4) is in
//! the set `members`, for IPv4 and ARP alike; whatever else a guest sends is
//! dropped, forged or of another protocol. Nothing passes between a tap and
//! the host itself. Interfaces of others are not looked at.

use crate::{NetworkError, names::Link};
use forkyard_types::{Address, VmId};
use nftables::{
    batch::Batch,
    expr::{Expression, NamedExpression},
    helper::apply_ruleset,
    schema::{Element, FlushObject, NfCmd, NfListObject, NfObject, Nftables, Set, Table},
    types::NfFamily,
};

const TABLE: &str = "forkyard";
const SET: &str = "members";
/// As `nft -j` reads it; see nftables-json(5), and `nft list table bridge
/// forkyard` for the same in its own words.
const RULES: &str = include_str!("rules.json");

/// Who may send from a tap, and as what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permit {
    pub vm: VmId,
    pub address: Address,
}

impl Permit {
    fn element(&self) -> Expression<'static> {
        let words = [
            Link::Tap(self.vm).name(),
            self.address.mac.to_string(),
            self.address.ip.to_string(),
        ];
        let words = words
            .into_iter()
            .map(|word| Expression::String(word.into()))
            .collect();
        Expression::Named(NamedExpression::Concat(words))
    }
}

fn elements(permits: &[Permit]) -> Element<'static> {
    Element {
        family: NfFamily::Bridge,
        table: TABLE.into(),
        name: SET.into(),
        elem: permits.iter().map(Permit::element).collect(),
    }
}

/// Makes the table as it should be, with just these members, at one stroke.
pub(crate) async fn reset(permits: Vec<Permit>) -> Result<(), NetworkError> {
    let mut rules: Nftables<'static> =
        serde_json::from_str(RULES).map_err(|source| NetworkError::Rules { source })?;
    let objects = rules.objects.to_mut();
    let set = Set {
        family: NfFamily::Bridge,
        table: TABLE.into(),
        name: SET.into(),
        ..Set::default()
    };
    objects.push(NfObject::CmdObject(NfCmd::Flush(FlushObject::Set(
        Box::new(set),
    ))));
    if !permits.is_empty() {
        objects.push(NfObject::CmdObject(NfCmd::Add(NfListObject::Element(
            elements(&permits),
        ))));
    }
    apply(rules).await
}

/// Lets these send.
pub(crate) async fn admit(permits: &[Permit]) -> Result<(), NetworkError> {
    let mut batch = Batch::new();
    batch.add(NfListObject::Element(elements(permits)));
    apply(batch.to_nftables()).await
}

/// Lets this one send no more.
pub(crate) async fn dismiss(permit: Permit) -> Result<(), NetworkError> {
    let mut batch = Batch::new();
    batch.delete(NfListObject::Element(elements(&[permit])));
    apply(batch.to_nftables()).await
}

/// Removes the table.
pub(crate) async fn remove() -> Result<(), NetworkError> {
    let table = || Table {
        family: NfFamily::Bridge,
        name: TABLE.into(),
        handle: None,
    };
    let mut batch = Batch::new();
    // Added first, so that removing what is not there is no error.
    batch.add(NfListObject::Table(table()));
    batch.delete(NfListObject::Table(table()));
    apply(batch.to_nftables()).await
}

/// Runs `nft`, on a thread that may block. Goes on to its end if cancelled.
async fn apply(rules: Nftables<'static>) -> Result<(), NetworkError> {
    match tokio::task::spawn_blocking(move || apply_ruleset(&rules)).await {
        Ok(outcome) => outcome.map_err(|source| NetworkError::Nft {
            source: Box::new(source),
        }),
        Err(broke) => std::panic::resume_unwind(broke.into_panic()),
    }
}
