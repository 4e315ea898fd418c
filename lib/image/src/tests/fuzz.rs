//! Files damaged at random, many at a time: what reads them says so and goes on
//! living. For longer: `PROPTEST_CASES=1000000 cargo test --release -p forkyard-image fuzz`

use super::{Says, bytes_of, file_of, image, lineage, read_all, write};
use crate::{Checksum, Image, ImageError, Layer, Temper, rewrite};
use forkyard_types::PAGE_SIZE;
use proptest::prelude::*;
use std::sync::{Arc, OnceLock};

/// Something that happens to a file.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// A byte becomes another.
    Byte(usize, u8),
    /// Eight bytes of the header or the index become a number.
    Number(usize, u64),
    /// Everything from here on is gone.
    Cut(usize),
    /// A stretch is copied over another.
    Copy(usize, usize, usize),
}

struct Sample {
    parent: Image,
    bytes: Vec<u8>,
    reads: Vec<u8>,
}

/// A layer with all there is: slots, zeros, chunks, borrowed and like pages.
fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let parent: Vec<Says> = (1..40).map(Says::Data).collect();
        let parent = image(write(lineage(1, None), &parent, |n| n), None).expect("an image");
        let says = |n: u8| match n % 7 {
            0 => Says::Zero,
            1 => Says::Nothing,
            2 => Says::Data(n + 1),
            3 => Says::Data(20),
            4 => Says::Data(200),
            _ => Says::Data(n + 60),
        };
        let says: Vec<Says> = (0..60).map(says).collect();
        let whole = image(write(lineage(2, Some(1)), &says, |n| n), Some(&parent));
        let whole = whole.expect("an image");
        let dest = tempfile::tempfile().expect("temporary file");
        let temper = |page: forkyard_types::PageNo| match page.0 % 3 {
            0 => Temper::Hot,
            _ => Temper::Cold,
        };
        rewrite(&whole, Some(&parent), temper, &dest).expect("rewrites");
        let holdings = Layer::open(dest.try_clone().expect("clones"))
            .expect("a layer")
            .holdings();
        let all = [holdings.plain, holdings.packed, holdings.shared];
        assert!(all.iter().all(|pages| pages.0 > 3), "{holdings:?}");
        Sample {
            reads: read_all(&whole).expect("reads"),
            bytes: bytes_of(&dest),
            parent,
        }
    })
}

fn harm() -> impl Strategy<Value = Harm> {
    let place = || any::<usize>();
    prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|(at, byte)| Harm::Byte(at, byte)),
        4 => (place(), any::<u64>(), 0..64u32).prop_map(|(at, n, shift)| Harm::Number(at, n >> shift)),
        1 => place().prop_map(Harm::Cut),
        2 => (place(), place(), 1..200usize).prop_map(|(from, to, n)| Harm::Copy(from, to, n)),
    ]
}

fn inflict(bytes: &mut Vec<u8>, harm: Harm) {
    let length = bytes.len().max(1);
    match harm {
        Harm::Byte(at, byte) => {
            if let Some(place) = bytes.get_mut(at % length) {
                *place = byte;
            }
        }
        Harm::Number(at, number) => {
            // Where numbers are: the first 128 bytes, and the index at the end.
            let fields = 16;
            let at = match at % 2 {
                0 => at / 2 % fields * 8,
                _ => length.saturating_sub(8 + at / 2 % 256 * 8),
            };
            if let Some(place) = bytes.get_mut(at..at + 8) {
                place.copy_from_slice(&number.to_le_bytes());
            }
        }
        Harm::Cut(at) => bytes.truncate(at % length),
        Harm::Copy(from, to, count) => {
            let (from, to) = (from % length, to % length);
            let count = count.min(length - from.max(to));
            if count < bytes.len() {
                bytes.copy_within(from..from + count, to);
            }
        }
    }
}

/// Makes the checksums of index and header right, so that what is behind them is
/// reached.
fn mend(bytes: &mut [u8]) {
    let number = |bytes: &[u8], at: usize| {
        let raw = bytes.get(at..at + 8).and_then(|raw| raw.try_into().ok());
        raw.map_or(0, u64::from_le_bytes)
    };
    let [slots, extents, data, chunks, packed] = [56, 64, 72, 88, 96].map(|at| number(bytes, at));
    let start = slots
        .wrapping_add(1)
        .wrapping_mul(PAGE_SIZE as u64)
        .wrapping_add(packed);
    let length = extents
        .wrapping_mul(24)
        .wrapping_add(data.wrapping_mul(8))
        .wrapping_add(chunks.wrapping_mul(16));
    let range = usize::try_from(start)
        .ok()
        .zip(usize::try_from(start.wrapping_add(length)).ok());
    let index = range.and_then(|(start, end)| bytes.get(start..end));
    let sum = index.map(Checksum::of);
    if bytes.len() >= PAGE_SIZE {
        if let Some(sum) = sum {
            bytes[80..88].copy_from_slice(&sum.0.to_le_bytes());
        }
        let sum = Checksum::of(&bytes[..PAGE_SIZE - 8]);
        bytes[PAGE_SIZE - 8..PAGE_SIZE].copy_from_slice(&sum.0.to_le_bytes());
    }
}

fn read(bytes: &[u8]) -> Result<Vec<u8>, ImageError> {
    let layer = Arc::new(Layer::open(file_of(bytes))?);
    layer.holdings();
    let image = Image::new(Arc::clone(&layer), Some(&sample().parent))?;
    // Past a megabyte there is nothing that was not there before.
    match image.pages().0 <= 256 {
        true => read_all(&image),
        false => image
            .read(forkyard_types::PageNo(0), &mut vec![0; PAGE_SIZE * 256])
            .map(|()| Vec::new()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn fuzz_damage_is_found_or_does_no_harm(harms in prop::collection::vec(harm(), 1..6)) {
        let mut bytes = sample().bytes.clone();
        harms.into_iter().for_each(|harm| inflict(&mut bytes, harm));
        match read(&bytes) {
            Ok(read) => prop_assert!(read == sample().reads, "damage went unnoticed"),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    /// With all checksums right: an error or some image, but no panic, no
    /// endless loop and no memory that is not there.
    #[test]
    fn fuzz_forged_layer_is_an_image_or_an_error(harms in prop::collection::vec(harm(), 1..6)) {
        let mut bytes = sample().bytes.clone();
        harms.into_iter().for_each(|harm| inflict(&mut bytes, harm));
        mend(&mut bytes);
        if let Err(error) = read(&bytes) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
