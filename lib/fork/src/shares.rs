//! Tokens for ports of VMs: given out, listed and taken back.
//!
//! A token is known by its hash alone, which is recorded with the VM's other terms: it goes with the VM
//! to another host, and ends with it. A clone has none of its parent's. Gateways ask for the list.

use crate::{Host, HostError};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use forkyard_types::{Lifetime, ShareGrant, ShareId, ShareRequest, ShareToken, ShareView};
use forkyard_vm::lock;

/// Most tokens of one VM.
const MOST: usize = 256;
/// Most bytes of a note.
const NOTE: usize = 128;
/// Bytes of a secret.
const SECRET: usize = 32;

impl Host {
    /// Gives out a token for a port of a VM, which need not run.
    pub fn share_port(&self, vm: &str, wanted: ShareRequest) -> Result<ShareGrant, HostError> {
        let wrong = |why: String| Err(HostError::Invalid(why));
        if !(1..=Lifetime::MOST_S).contains(&wanted.expires_s) {
            let most = Lifetime::MOST_S;
            return wrong(format!(
                "a token for {} s: wanted 1 to {most}",
                wanted.expires_s
            ));
        }
        if wanted.note.len() > NOTE || wanted.note.contains(forkyard_types::acts) {
            return wrong(format!(
                "a note has {NOTE} bytes at most, and no control characters"
            ));
        }
        let vm = self.vm(vm)?;
        let now = crate::now();
        let mut secret = [0; SECRET];
        getrandom::fill(&mut secret).map_err(|error| {
            HostError::Broken(format!("the host has no random numbers: {error}"))
        })?;
        let secret = BASE64_URL_SAFE_NO_PAD.encode(secret);
        let id = ShareId::random();
        let (port, vm_id) = (wanted.port, vm.id);
        let token = ShareToken {
            vm: vm_id,
            port,
            id,
            secret: &secret,
        };
        let token = token.to_string();
        let share = ShareView {
            id,
            port,
            expires: now.saturating_add(wanted.expires_s.into()),
            note: wanted.note,
            hash: blake3::hash(token.as_bytes()).to_hex().to_string(),
        };
        if held(&lock(&vm.terms).shares, now).count() >= MOST {
            return wrong(format!(
                "{} has {MOST} tokens: take some back first",
                vm.name()
            ));
        }
        self.put_terms(&vm, |terms| {
            terms.shares.retain(|share| now < share.expires);
            terms.shares.push(share.clone());
        })?;
        Ok(ShareGrant { share, token })
    }

    /// Tokens for ports of a VM that hold, the oldest first.
    pub fn shares(&self, vm: &str) -> Result<Vec<ShareView>, HostError> {
        let vm = self.vm(vm)?;
        let terms = lock(&vm.terms);
        Ok(held(&terms.shares, crate::now()).cloned().collect())
    }

    /// Takes a token back: gateways refuse it within two seconds. What is open stays open.
    pub fn take_share_back(&self, vm: &str, id: ShareId) -> Result<ShareView, HostError> {
        let vm = self.vm(vm)?;
        let found = lock(&vm.terms)
            .shares
            .iter()
            .find(|it| it.id == id)
            .cloned();
        let found = found.ok_or_else(|| HostError::NoSuchShare { vm: vm.name(), id })?;
        self.put_terms(&vm, |terms| terms.shares.retain(|share| share.id != id))?;
        Ok(found)
    }
}

fn held(shares: &[ShareView], now: u64) -> impl Iterator<Item = &ShareView> {
    shares.iter().filter(move |share| now < share.expires)
}
