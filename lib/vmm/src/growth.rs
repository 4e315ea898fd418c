//! Memory and processors that a machine has beyond those it booted with.
//!
//! ```text
//! boots      memory = booted          processors = -smp N, places for more
//! is loaded  memory >= booted: what is more lies above 4 GiB
//!            processors are added one by one while it runs
//! ```
//!
//! All memory is one region, as that of any machine: what saves, maps and copies it need not know. A
//! guest learns of it from a table of firmware (`growth.asl`), of processors by the emulator's own.

use crate::{
    VmmError, argv,
    layout::{LOW, SPLIT},
    link::Link,
};
use forkyard_sys_host::jail::Jail;
use forkyard_types::ByteCount;
use qapi::qmp;
use std::{fs::File, io::Write, num::NonZeroU8, os::unix::fs::OpenOptionsExt};

/// Table that a machine boots with, compiled of `growth.asl`.
pub(crate) const TABLE: &[u8] = include_bytes!("growth.aml");

/// Processors that any machine has places for.
const PLACES: u8 = 8;
/// A guest's kernel takes memory in blocks of this size.
pub const BLOCK: ByteCount = ByteCount(128 << 20);
/// Largest root disk.
pub const MOST_DISK: ByteCount = ByteCount(1 << 40);
/// A kernel needs memory of that which it has to take care of more: a 64th of that.
const TIMES: u64 = 16;

/// Reason why a machine cannot have so much memory, or so many processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ungrown {
    /// Less memory than it has.
    #[error("it has {has} of memory, and cannot have less")]
    LessMemory {
        /// Memory that it has.
        has: ByteCount,
    },
    /// Memory that is not whole blocks.
    #[error("its memory grows by multiples of {BLOCK}: from {has} to {below} or {above}")]
    NoBlocks {
        /// Memory that it has.
        has: ByteCount,
        /// Largest size below that which was asked for.
        below: ByteCount,
        /// Smallest size above it.
        above: ByteCount,
    },
    /// Memory beyond what its kernel could take.
    #[error("its memory grows to {TIMES} times what its guest booted with at most, {most}")]
    MuchMemory {
        /// Most memory that it can have.
        most: ByteCount,
    },
    /// The place that memory would have is taken.
    #[error(
        "a guest that booted with {booted} cannot have more: boot it with 2 GiB or less, or with \
         a multiple of {BLOCK} from 2.75 GiB"
    )]
    NoPlace {
        /// Memory that its guest booted with.
        booted: ByteCount,
    },
    /// A smaller disk than it has.
    #[error(
        "it has a disk of {has}, and cannot have a smaller one: its file system would be cut off"
    )]
    SmallerDisk {
        /// Size of its disk.
        has: ByteCount,
    },
    /// A larger disk than there are.
    #[error("its disk grows to {MOST_DISK} at most")]
    LargeDisk,
    /// Fewer processors than it has.
    #[error("it has {has} vCPUs, and cannot have fewer")]
    FewerProcessors {
        /// Processors that it has.
        has: u8,
    },
    /// Processors that it has no places for.
    #[error("it has places for {most} vCPUs at most")]
    ManyProcessors {
        /// Most that it can have.
        most: u8,
    },
}

/// Most processors that a machine can have which has so many.
pub fn most_vcpus(vcpus: NonZeroU8) -> u8 {
    vcpus.get().max(PLACES)
}

/// Most memory that a machine can have which has some, and whose guest booted with some.
pub fn most_memory(booted: ByteCount, has: ByteCount) -> ByteCount {
    let most = booted.0.saturating_mul(TIMES).max(has.0);
    match has_place(booted) {
        // The most that is whole blocks.
        true => ByteCount(has.0 + (most - has.0) / BLOCK.0 * BLOCK.0),
        false => has,
    }
}

/// Checks that nothing is where more memory of such a machine would be.
fn has_place(booted: ByteCount) -> bool {
    match booted.0.checked_sub(LOW.0) {
        None | Some(0) => true,
        Some(above) => booted >= SPLIT && above.is_multiple_of(BLOCK.0),
    }
}

/// Checks that a machine can have so much memory which has some, and whose guest booted with some.
pub fn check_memory(booted: ByteCount, has: ByteCount, wanted: ByteCount) -> Result<(), Ungrown> {
    let Some(more) = wanted.0.checked_sub(has.0) else {
        return Err(Ungrown::LessMemory { has });
    };
    if more == 0 {
        return Ok(());
    }
    if !has_place(booted) {
        return Err(Ungrown::NoPlace { booted });
    }
    let most = most_memory(booted, has);
    if wanted > most {
        return Err(Ungrown::MuchMemory { most });
    }
    if !more.is_multiple_of(BLOCK.0) {
        let below = ByteCount(has.0 + more / BLOCK.0 * BLOCK.0);
        return Err(Ungrown::NoBlocks {
            has,
            below,
            above: ByteCount(below.0 + BLOCK.0),
        });
    }
    Ok(())
}

/// Checks that a machine can have so many processors which has some.
pub fn check_vcpus(has: NonZeroU8, wanted: NonZeroU8) -> Result<(), Ungrown> {
    let most = most_vcpus(has);
    match wanted {
        _ if wanted < has => Err(Ungrown::FewerProcessors { has: has.get() }),
        _ if wanted.get() > most => Err(Ungrown::ManyProcessors { most }),
        _ => Ok(()),
    }
}

/// Checks that a machine can have so large a disk which has some.
pub fn check_disk(has: ByteCount, wanted: ByteCount) -> Result<(), Ungrown> {
    match wanted {
        _ if wanted < has => Err(Ungrown::SmallerDisk { has }),
        _ if wanted > MOST_DISK => Err(Ungrown::LargeDisk),
        _ => Ok(()),
    }
}

/// Memory below 4 GiB that the emulator must be told of, or it would put more there than the guest
/// found when it booted.
pub(crate) fn below_4g(booted: ByteCount, memory: ByteCount) -> Option<ByteCount> {
    (booted < memory && booted <= LOW).then_some(booted)
}

/// Puts the table into the jail of a machine that is to boot. Blocks for some calls.
pub(crate) fn furnish(jail: &Jail) -> Result<(), VmmError> {
    let written = jail.within(|| {
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o444)
            .open(argv::TABLE)?;
        file.write_all(TABLE)
    });
    written.map_err(VmmError::io("write", argv::TABLE))
}

/// Adds processors one by one until there are so many. Cancel-safe: those that were added stay.
pub(crate) async fn add_vcpus(link: &Link, total: NonZeroU8) -> Result<(), VmmError> {
    let mut places = link.ask(qmp::query_hotpluggable_cpus {}).await?;
    places.sort_by_key(|it| {
        let place = &it.props;
        [
            place.socket_id,
            place.die_id,
            place.core_id,
            place.thread_id,
        ]
    });
    for (number, place) in places.into_iter().enumerate().take(total.get().into()) {
        if place.qom_path.is_some() {
            continue;
        }
        let ids = [
            ("socket-id", place.props.socket_id),
            ("die-id", place.props.die_id),
            ("core-id", place.props.core_id),
            ("thread-id", place.props.thread_id),
        ];
        let given = ids.into_iter().filter_map(|(name, id)| Some((name, id?)));
        link.ask(qmp::device_add {
            driver: place.type_,
            id: Some(format!("vcpu-{number}")),
            bus: None,
            arguments: given
                .map(|(name, id)| (name.to_owned(), id.into()))
                .collect(),
        })
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn mib(count: u64) -> ByteCount {
        ByteCount(count << 20)
    }

    #[test]
    fn a_disk_grows_and_never_shrinks() {
        let check = |has, wanted| check_disk(mib(has), mib(wanted));
        assert_eq!(check(512, 512), Ok(()));
        assert_eq!(check(512, 1 << 20), Ok(()));
        assert_eq!(check(512, 511), Err(Ungrown::SmallerDisk { has: mib(512) }));
        assert_eq!(check(512, (1 << 20) + 1), Err(Ungrown::LargeDisk));
    }

    #[test]
    fn memory_grows_by_whole_blocks_up_to_a_multiple_of_what_was_booted_with() {
        let check = |has, wanted| check_memory(mib(64), mib(has), mib(wanted));
        for (has, wanted) in [(64, 64), (64, 192), (64, 960), (192, 320), (960, 960)] {
            assert_eq!(check(has, wanted), Ok(()), "{has} to {wanted}");
        }
        let has = mib(64);
        assert_eq!(check(64, 63), Err(Ungrown::LessMemory { has }));
        let (below, above) = (mib(192), mib(320));
        let refused = Ungrown::NoBlocks { has, below, above };
        assert_eq!(check(64, 256), Err(refused));
        let most = mib(960);
        assert_eq!(check(64, 1024), Err(Ungrown::MuchMemory { most }));
        assert_eq!(check(64, u64::MAX >> 20), Err(Ungrown::MuchMemory { most }));
    }

    #[test]
    fn memory_that_would_move_does_not_grow() {
        for booted in [2049, 2560, 2815, 2900] {
            let (booted, more) = (mib(booted), mib(booted + 128));
            assert_eq!(
                check_memory(booted, booted, more),
                Err(Ungrown::NoPlace { booted })
            );
            assert_eq!(check_memory(booted, booted, booted), Ok(()));
        }
        for booted in [2048, 2816, 4096] {
            let (booted, more) = (mib(booted), mib(booted + 128));
            assert_eq!(check_memory(booted, booted, more), Ok(()));
        }
    }

    #[test]
    fn memory_stays_below_4_gib_where_it_was() {
        assert_eq!(below_4g(mib(256), mib(1024)), Some(mib(256)));
        assert_eq!(below_4g(mib(256), mib(256)), None);
        // As the emulator does by itself.
        assert_eq!(below_4g(mib(2816), mib(4096)), None);
    }

    #[test]
    fn processors_are_added_and_not_taken() {
        let count = |count| NonZeroU8::new(count).expect("some");
        let check = |has, wanted| check_vcpus(count(has), count(wanted));
        assert_eq!(check(1, 8), Ok(()));
        assert_eq!(check(16, 16), Ok(()));
        assert_eq!(check(1, 9), Err(Ungrown::ManyProcessors { most: 8 }));
        assert_eq!(check(16, 17), Err(Ungrown::ManyProcessors { most: 16 }));
        assert_eq!(check(2, 1), Err(Ungrown::FewerProcessors { has: 2 }));
    }

    #[test]
    fn the_table_is_what_its_header_says() {
        let sum = TABLE.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!((&TABLE[..4], sum), (&b"SSDT"[..], 0));
        let said = u32::from_le_bytes(TABLE[4..8].try_into().expect("four"));
        assert_eq!(usize::try_from(said), Ok(TABLE.len()));
    }
}
