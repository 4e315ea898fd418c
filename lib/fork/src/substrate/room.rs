//! Room for substrates.

use super::{Substrate, SubstrateError};
use crate::{Host, HostError};
use forkyard_substrate::pool::{Full, HeldSubstrate, make_room};
use forkyard_types::{ByteCount, SubstrateParts};

/// Seconds between two records of a use.
const SELDOM: u64 = 60;

impl Host {
    /// Makes room for a substrate of these parts, which is not counted yet. The caller holds the
    /// turn.
    pub(super) async fn room_for(&self, parts: &SubstrateParts) -> Result<(), HostError> {
        let mut held = Vec::new();
        let all = self.all_substrates()?;
        for it in &all {
            let Some(own) = &it.entry.parts else { continue };
            held.push(HeldSubstrate {
                name: it.name.to_string(),
                bytes: size(own),
                used: it.entry.used.max(it.entry.created),
                boot: it.entry.boot,
                needed: self.first_over(it)?.is_some() || !self.standby_of(&it.name).0.is_empty(),
            });
        }
        let limit = self.parts.options.substrate_pool;
        let going = make_room(&held, limit.0, size(parts));
        let going = going.map_err(|Full { short, could_go }| SubstrateError::Full {
            limit,
            short: ByteCount(short),
            could_go: match could_go[..] {
                [] => "nothing in it can be removed".to_owned(),
                _ => format!(
                    "`forkyard substrate rm` could remove {}",
                    could_go.join(", ")
                ),
            },
        })?;
        for it in all
            .iter()
            .filter(|it| going.iter().any(|name| it.name.as_str() == name))
        {
            tracing::info!(name = %it.name, "goes, to make room for another");
            self.forget_boot(it).await;
        }
        Ok(())
    }

    /// Notes that a substrate is used, now and then.
    pub(super) fn note_use(&self, substrate: &Substrate) -> Result<(), HostError> {
        let now = crate::now();
        if now < substrate.entry.used.saturating_add(SELDOM) {
            return Ok(());
        }
        let mut used = substrate.clone();
        used.entry.used = now;
        Ok(self.parts.store.update_substrate(&used.record()?)?)
    }
}

/// Bytes that a substrate of these parts takes.
pub(super) fn size(parts: &SubstrateParts) -> u64 {
    let bytes = [parts.memory.file, parts.disk.file, parts.devices];
    bytes
        .into_iter()
        .map(|it| it.0)
        .fold(0, u64::saturating_add)
}
