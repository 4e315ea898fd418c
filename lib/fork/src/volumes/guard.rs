//! Uses of volumes, and hand-overs of them to other hosts: never both at a time.
//!
//! ```text
//! free <--> used by some            free --begin--> moving --end-----------------> free
//!                                                     |                              ^
//!                                                     `--> unsettled --it is known---'
//! ```
//!
//! Each use takes its volumes before it looks at whether it may have them, and holds them until what it
//! does is on record or done; a hand-over likewise, from before its first check to its end. So neither
//! decides by what the other is about to change. A hand-over of which it is not known how it ended holds
//! its volume until it is.

use super::VolumeError;
use forkyard_types::{ByteCount, VmName, VolumeMovePhase, VolumeMoving};
use forkyard_vm::lock;
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Attempts to begin a hand-over of a volume in use, and the time between them.
const TRIES: u32 = 50;
const AGAIN: Duration = Duration::from_millis(20);

/// Volumes that are in use, or on their way to other hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guards(Arc<Mutex<BTreeMap<VmName, Guarded>>>);

#[derive(Debug)]
enum Guarded {
    Used(NonZeroUsize),
    Moving(Way),
}

#[derive(Debug)]
struct Way {
    to: String,
    phase: VolumeMovePhase,
    sent: Arc<AtomicU64>,
}

/// Volumes in use, until dropped.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Used {
    guards: Guards,
    volumes: BTreeSet<VmName>,
}

/// Hand-over of a volume, until dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct HandOver {
    guards: Guards,
    volume: VmName,
    /// Bytes that were sent.
    pub sent: Arc<AtomicU64>,
}

impl Guards {
    /// Takes volumes for a use of them: all of them, or none.
    pub fn take<'a>(
        &self,
        volumes: impl IntoIterator<Item = &'a VmName>,
    ) -> Result<Used, VolumeError> {
        let volumes: BTreeSet<_> = volumes.into_iter().cloned().collect();
        let mut all = lock(&self.0);
        for volume in &volumes {
            if let Some(Guarded::Moving(way)) = all.get(volume) {
                return Err(VolumeError::Moves {
                    volume: volume.clone(),
                    to: way.to.clone(),
                    is_unsettled: way.phase == VolumeMovePhase::Unsettled,
                });
            }
        }
        for volume in &volumes {
            match all.entry(volume.clone()) {
                Entry::Vacant(free) => {
                    free.insert(Guarded::Used(NonZeroUsize::MIN));
                }
                Entry::Occupied(mut taken) => {
                    if let Guarded::Used(uses) = taken.get_mut() {
                        *uses = uses.saturating_add(1);
                    }
                }
            }
        }
        drop(all);
        let guards = self.clone();
        Ok(Used { guards, volumes })
    }

    /// Begins the hand-over of a volume that is not in use.
    pub fn begin(&self, volume: &VmName, to: &str) -> Result<HandOver, VolumeError> {
        let volume = volume.clone();
        match lock(&self.0).entry(volume.clone()) {
            Entry::Vacant(free) => {
                let sent = Arc::<AtomicU64>::default();
                free.insert(Guarded::Moving(Way {
                    to: to.to_owned(),
                    phase: VolumeMovePhase::Preparing,
                    sent: sent.clone(),
                }));
                let guards = self.clone();
                Ok(HandOver {
                    guards,
                    volume,
                    sent,
                })
            }
            Entry::Occupied(taken) => Err(match taken.get() {
                Guarded::Used(_) => VolumeError::Busy { volume },
                Guarded::Moving(way) => VolumeError::Moves {
                    volume,
                    to: way.to.clone(),
                    is_unsettled: way.phase == VolumeMovePhase::Unsettled,
                },
            }),
        }
    }

    /// Begins it once uses have ended that take a moment, as a look at the authority's record does.
    /// Cancel-safe.
    pub async fn begin_soon(&self, volume: &VmName, to: &str) -> Result<HandOver, VolumeError> {
        for _ in 0..TRIES {
            match self.begin(volume, to) {
                Err(VolumeError::Busy { .. }) => tokio::time::sleep(AGAIN).await,
                begun => return begun,
            }
        }
        self.begin(volume, to)
    }

    /// Holds a volume of which it is not known whether another host has it: an earlier daemon began to
    /// hand it over.
    pub fn hold(&self, volume: &VmName, to: &str) {
        let way = Way {
            to: to.to_owned(),
            phase: VolumeMovePhase::Unsettled,
            sent: Arc::default(),
        };
        lock(&self.0).insert(volume.clone(), Guarded::Moving(way));
    }

    /// Tells whether it is not known which host has a volume.
    pub fn is_unsettled(&self, volume: &VmName) -> bool {
        let all = lock(&self.0);
        matches!(all.get(volume), Some(Guarded::Moving(way)) if way.phase == VolumeMovePhase::Unsettled)
    }

    /// Frees a volume of which that is known now.
    pub fn settled(&self, volume: &VmName) {
        let mut all = lock(&self.0);
        let is_unsettled = |it: &Guarded| matches!(it, Guarded::Moving(way) if way.phase == VolumeMovePhase::Unsettled);
        if all.get(volume).is_some_and(is_unsettled) {
            all.remove(volume);
        }
    }

    /// Way of a volume to another host, if it is on one.
    pub fn way(&self, volume: &VmName) -> Option<VolumeMoving> {
        match lock(&self.0).get(volume)? {
            Guarded::Used(_) => None,
            Guarded::Moving(way) => Some(VolumeMoving {
                to: way.to.clone(),
                phase: way.phase,
                sent: ByteCount(way.sent.load(Ordering::Relaxed)),
            }),
        }
    }

    fn release(&self, volume: &VmName) {
        let mut all = lock(&self.0);
        let left = match all.get(volume) {
            Some(Guarded::Used(uses)) => NonZeroUsize::new(uses.get() - 1),
            Some(Guarded::Moving(_)) | None => return,
        };
        match left {
            Some(left) => all.insert(volume.clone(), Guarded::Used(left)),
            None => all.remove(volume),
        };
    }
}

impl HandOver {
    /// Notes how far it is.
    pub fn is_in(&self, phase: VolumeMovePhase) {
        if let Some(Guarded::Moving(way)) = lock(&self.guards.0).get_mut(&self.volume) {
            way.phase = phase;
        }
    }

    /// Ends it without a result: its volume is held until that is known.
    pub fn leave_unsettled(self) {
        self.is_in(VolumeMovePhase::Unsettled);
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        for volume in &self.volumes {
            self.guards.release(volume);
        }
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        if !self.guards.is_unsettled(&self.volume) {
            lock(&self.guards.0).remove(&self.volume);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> VmName {
        text.parse().expect("a name")
    }

    #[test]
    fn a_volume_is_used_by_many_or_handed_over_by_one() {
        let (guards, d) = (Guards::default(), name("d"));
        let (one, two) = (guards.take([&d]).expect("free"), guards.take([&d]));
        let two = two.expect("used by another");
        assert!(matches!(
            guards.begin(&d, "b"),
            Err(VolumeError::Busy { .. })
        ));
        drop(one);
        guards.begin(&d, "b").expect_err("there is one use yet");
        drop(two);
        let moving = guards.begin(&d, "b").expect("free");
        assert!(matches!(
            guards.take([&d]),
            Err(VolumeError::Moves {
                is_unsettled: false,
                ..
            })
        ));
        guards.begin(&d, "c").expect_err("one hand-over at a time");
        drop(moving);
        drop(guards.take([&d]).expect("free again"));
    }

    #[test]
    fn of_several_volumes_all_are_taken_or_none() {
        let (guards, d, e) = (Guards::default(), name("d"), name("e"));
        let moving = guards.begin(&e, "b").expect("free");
        guards.take([&d, &e]).expect_err("one of them moves");
        drop(guards.begin(&d, "b").expect("it was not taken"));
        drop(moving);
        // One that is named twice is one use.
        drop(guards.take([&d, &d]).expect("free"));
        drop(guards.begin(&d, "b").expect("free"));
    }

    #[test]
    fn a_hand_over_of_which_nothing_is_known_holds_its_volume_until_it_is() {
        let (guards, d) = (Guards::default(), name("d"));
        guards.begin(&d, "b").expect("free").leave_unsettled();
        assert!(guards.is_unsettled(&d));
        assert!(matches!(
            guards.take([&d]),
            Err(VolumeError::Moves {
                is_unsettled: true,
                ..
            })
        ));
        guards.begin(&d, "b").expect_err("neither does it move");
        guards.settled(&d);
        let moving = guards.begin(&d, "b").expect("free");
        // One that is under way is not settled by others.
        guards.settled(&d);
        guards.take([&d]).expect_err("it moves");
        drop(moving);
        guards.hold(&d, "b");
        assert_eq!(
            guards.way(&d).map(|way| way.phase),
            Some(VolumeMovePhase::Unsettled)
        );
    }
}
