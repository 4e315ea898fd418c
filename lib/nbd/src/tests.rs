//! Conversations, byte by byte, and what hostile clients make of them.

use crate::{
    Agreed, Broken, ByteRange, Cookie, DecodeOutcome, Durability, Export, ExportAccess,
    ExportDenied, Exports, Extent, Extents, Fragments, Handshake, HandshakeStep, MAX_OPTION,
    MAX_PAYLOAD, NbdCommand, NbdError, Replies, Request, Sharing, Transmission, Zeroing,
};
use proptest::prelude::*;

const SIZE: u64 = 1 << 20;

struct One {
    opened: u32,
}

impl One {
    fn export() -> Export {
        Export {
            size: SIZE,
            access: ExportAccess::ReadWrite,
            sharing: Sharing::Many,
        }
    }
}

impl Exports for One {
    fn names(&mut self) -> Vec<String> {
        vec!["d".into()]
    }
    fn describe(&mut self, name: &str) -> Result<Export, ExportDenied> {
        match name {
            "d" => Ok(Self::export()),
            "busy" => Err(ExportDenied::Policy("open elsewhere".into())),
            _ => Err(ExportDenied::Unknown("no such volume".into())),
        }
    }
    fn open(&mut self, name: &str) -> Result<Export, ExportDenied> {
        let found = self.describe(name)?;
        self.opened += 1;
        Ok(found)
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).expect("short").to_be_bytes());
    bytes.extend(data);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len())
        .expect("short")
        .to_be_bytes()
        .to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

fn go(number: u32, name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = text(name);
    data.extend(u16::try_from(infos.len()).expect("few").to_be_bytes());
    for info in infos {
        data.extend(info.to_be_bytes());
    }
    option(number, &data)
}

fn contexts(number: u32, name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = text(name);
    data.extend(u32::try_from(queries.len()).expect("few").to_be_bytes());
    for query in queries {
        data.extend(text(query));
    }
    option(number, &data)
}

/// Replies to options: type and data.
fn replies(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four"));
        let end = 20 + word(16) as usize;
        found.push((word(12), bytes[20..end].to_vec()));
        bytes = &bytes[end..];
    }
    found
}

/// Speaks all of the input, `at_once` bytes arriving at a time.
fn speak(input: &[u8], at_once: usize) -> (Vec<u8>, Result<Option<Agreed>, Broken>, u32) {
    let (mut handshake, _) = Handshake::begin();
    let mut exports = One { opened: 0 };
    let (mut start, mut end, mut sent) = (0, 0, Vec::new());
    let outcome = loop {
        match handshake.step(&input[start..end], &mut exports) {
            Err(broken) => break Err(broken),
            Ok(HandshakeStep::Need(least)) => {
                assert!(least > end - start, "asked for what was there");
                assert!(least <= 16 + MAX_OPTION as usize, "asked for too much");
                if end == input.len() {
                    break Ok(None);
                }
                end = (end + at_once).min(input.len());
            }
            Ok(HandshakeStep::Send { used, bytes }) => {
                assert!(used > 0 && start + used <= end);
                sent.extend(bytes);
                start += used;
            }
            Ok(HandshakeStep::Opened {
                used,
                bytes,
                agreed,
            }) => {
                assert!(start + used <= end);
                sent.extend(bytes);
                break Ok(Some(agreed));
            }
            Ok(HandshakeStep::Ended { bytes }) => {
                sent.extend(bytes);
                break Ok(None);
            }
        }
    };
    (sent, outcome, exports.opened)
}

fn usual() -> Vec<u8> {
    let mut input = 3u32.to_be_bytes().to_vec();
    input.extend(option(8, &[]));
    input.extend(option(3, &[]));
    input.extend(contexts(9, "d", &[]));
    input.extend(contexts(10, "d", &["base:allocation", "qemu:x"]));
    input.extend(go(6, "d", &[]));
    input.extend(go(7, "d", &[1, 3]));
    input
}

#[test]
fn greeting_is_fixed_newstyle() {
    let (_, greeting) = Handshake::begin();
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn everything_is_agreed_on_however_the_bytes_arrive() {
    let input = usual();
    let (sent, outcome, opened) = speak(&input, usize::MAX / 2);
    let agreed = outcome.expect("speaks well").expect("opened");
    assert_eq!(agreed.replies, Replies::WithBlockStatus);
    assert_eq!(opened, 1);
    let kinds: Vec<_> = replies(&sent).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [1, 2, 1, 4, 1, 4, 1, 3, 1, 3, 3, 3, 1]);
    let info = &replies(&sent)[7].1;
    assert_eq!(info[..10], [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0]);
    let flags = u16::from_be_bytes([info[10], info[11]]);
    assert_eq!(flags, 0b1101_1110_1101);
    for at_once in [1, 2, 7, 19] {
        let again = speak(&input, at_once);
        assert_eq!(again.0, sent, "{at_once} bytes at a time");
    }
}

#[test]
fn old_option_opens_with_zeroes_unless_they_are_waived() {
    for (flags, length) in [(1u32, 134), (3, 10)] {
        let mut input = flags.to_be_bytes().to_vec();
        input.extend(option(1, b"d"));
        let (sent, outcome, _) = speak(&input, 1000);
        assert_eq!(sent.len(), length);
        let agreed = outcome.expect("speaks well").expect("opened");
        assert_eq!(agreed.replies, Replies::Simple);
    }
    let mut input = 3u32.to_be_bytes().to_vec();
    input.extend(option(1, b"nothing"));
    assert_eq!(speak(&input, 1000).1, Err(Broken::NoSuchExport));
}

#[test]
fn refusals_say_why_and_the_conversation_goes_on() {
    let long = vec![0; MAX_OPTION as usize + 1];
    let cases = [
        (option(5, &[]), 0x8000_0001),
        (option(11, &[]), 0x8000_0001),
        (option(77, b"x"), 0x8000_0001),
        (option(3, b"x"), 0x8000_0003),
        (option(8, b"x"), 0x8000_0003),
        (go(7, "other", &[]), 0x8000_0006),
        (go(7, "busy", &[]), 0x8000_0002),
        (option(7, &[0, 0, 0, 9, b'd', 0, 0]), 0x8000_0003),
        (option(7, &[0xff; 6]), 0x8000_0003),
        (contexts(10, "d", &["base:allocation"]), 0x8000_0003),
        (option(3, &long), 0x8000_0009),
    ];
    for (bytes, kind) in cases {
        let mut input = 3u32.to_be_bytes().to_vec();
        input.extend(&bytes);
        input.extend(option(2, &[]));
        let (sent, outcome, opened) = speak(&input, 1 << 20);
        assert_eq!((outcome, opened), (Ok(None), 0));
        let kinds: Vec<_> = replies(&sent).into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [kind, 1], "{:?}", &bytes[..bytes.len().min(40)]);
    }
}

#[test]
fn selected_context_holds_for_its_export_alone() {
    let mut input = 3u32.to_be_bytes().to_vec();
    input.extend(option(8, &[]));
    input.extend(contexts(10, "d", &["base:allocation"]));
    input.extend(contexts(10, "d", &["base:"]));
    input.extend(go(7, "d", &[]));
    let agreed = speak(&input, 1000).1.expect("speaks well").expect("opened");
    assert_eq!(
        agreed.replies,
        Replies::Structured,
        "a prefix selects nothing"
    );
}

#[test]
fn clients_out_of_bounds_are_cut_off() {
    let flags = |bits: u32| speak(&bits.to_be_bytes(), 10).1;
    assert_eq!(flags(4), Err(Broken::ClientFlags(4)));
    let mut input = 3u32.to_be_bytes().to_vec();
    input.extend(b"IHAVEOPT\0\0\0\x03");
    input.extend(u32::MAX.to_be_bytes());
    assert_eq!(speak(&input, 100).1, Err(Broken::OptionTooLong(u32::MAX)));
    let mut input = 3u32.to_be_bytes().to_vec();
    for _ in 0..2000 {
        input.extend(option(3, &[]));
    }
    assert_eq!(speak(&input, 1 << 20).1, Err(Broken::TooManyOptions(1001)));
}

fn opened(access: ExportAccess, replies: Replies) -> Transmission {
    let export = Export {
        access,
        ..One::export()
    };
    Transmission::new(Agreed { export, replies })
}

fn request(flags: u16, kind: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(7u64.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

#[test]
fn requests_are_understood() {
    let side = opened(ExportAccess::ReadWrite, Replies::WithBlockStatus);
    let range = ByteRange {
        offset: 4096,
        length: 3,
    };
    let mut write = request(1, 1, 4096, 3);
    write.extend(b"abcREST");
    let durability = Durability::Cached;
    let cases = [
        (
            request(4, 0, 4096, 3),
            NbdCommand::Read {
                range,
                fragments: Fragments::Forbidden,
            },
        ),
        (
            write,
            NbdCommand::Write {
                offset: 4096,
                data: b"abc",
                durability: Durability::Durable,
            },
        ),
        (request(0, 3, 0, 0), NbdCommand::Flush),
        (
            request(0, 4, 4096, 3),
            NbdCommand::Trim { range, durability },
        ),
        (request(0, 5, 4096, 3), NbdCommand::Cache(range)),
        (
            request(0x12, 6, 4096, 3),
            NbdCommand::WriteZeroes {
                range,
                durability,
                zeroing: Zeroing {
                    keep_room: true,
                    fast: true,
                },
            },
        ),
        (
            request(8, 7, 4096, 3),
            NbdCommand::BlockStatus {
                range,
                extents: Extents::One,
            },
        ),
    ];
    for (bytes, command) in cases {
        let used = bytes.len().min(if bytes.len() > 28 { 31 } else { 28 });
        let request = Request {
            cookie: Cookie(7),
            command,
        };
        assert_eq!(
            side.step(&bytes),
            Ok(DecodeOutcome::Request { used, request })
        );
        let cut = side.step(&bytes[..used - 1]);
        assert!(matches!(cut, Ok(DecodeOutcome::Need(least)) if least <= used && least >= 28));
    }
    assert_eq!(side.step(&request(0, 2, 0, 0)), Ok(DecodeOutcome::Ended));
}

#[test]
fn requests_that_cannot_be_are_refused_with_their_reason() {
    let writer = opened(ExportAccess::ReadWrite, Replies::Simple);
    let reader = opened(ExportAccess::ReadOnly, Replies::Structured);
    let refused = |side: &Transmission, bytes: &[u8]| match side.step(bytes) {
        Ok(DecodeOutcome::Refused { used, error, .. }) => {
            assert_eq!(used, bytes.len(), "the payload is passed over");
            error
        }
        other => panic!("{other:?}"),
    };
    use NbdError::{Invalid, NoSpace, Overflow, Permission};
    let cases = [
        (request(0, 0, SIZE - 1, 2), Invalid),
        (request(0, 0, u64::MAX, 2), Invalid),
        (request(0x80, 0, 0, 2), Invalid),
        (request(4, 0, 0, 2), Invalid),
        (request(0, 6, SIZE, 1), NoSpace),
        (request(0, 7, 0, 1), Invalid),
        (request(0, 8, 0, 1), Invalid),
        (request(0, 99, 0, 1), Invalid),
        ([request(0, 1, SIZE, 1), vec![1]].concat(), NoSpace),
    ];
    for (bytes, error) in cases {
        assert_eq!(refused(&writer, &bytes), error);
    }
    for kind in [4, 6] {
        assert_eq!(refused(&reader, &request(0, kind, 0, 9)), Permission);
    }
    let write = [request(0, 1, 0, 1), vec![1]].concat();
    assert_eq!(refused(&reader, &write), Permission);
    let big = Export {
        size: u64::MAX,
        ..One::export()
    };
    let big = Transmission::new(Agreed {
        export: big,
        replies: Replies::Simple,
    });
    assert_eq!(refused(&big, &request(0, 0, 0, MAX_PAYLOAD + 1)), Overflow);
    let long = request(0, 1, 0, MAX_PAYLOAD + 1);
    assert_eq!(
        big.step(&long),
        Err(Broken::PayloadTooLong(MAX_PAYLOAD + 1))
    );
    assert_eq!(big.step(&[0; 28]), Err(Broken::Magic));
}

#[test]
fn replies_are_as_the_protocol_has_them() {
    let (mut simple, mut chunk) = (Vec::new(), Vec::new());
    let plain = opened(ExportAccess::ReadOnly, Replies::Simple).reply();
    let structured = opened(ExportAccess::ReadOnly, Replies::Structured).reply();
    let range = ByteRange {
        offset: 5,
        length: 2,
    };
    plain.data(&mut simple, Cookie(1), range);
    assert_eq!(simple, b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x01");
    structured.data(&mut chunk, Cookie(1), range);
    let golden: &[u8] =
        b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x01\0\0\0\x0a\0\0\0\0\0\0\0\x05";
    assert_eq!(chunk, golden);
    chunk.clear();
    assert!(structured.hole(&mut chunk, Cookie(1), range));
    let golden: &[u8] =
        b"\x66\x8e\x33\xef\0\x01\0\x02\0\0\0\0\0\0\0\x01\0\0\0\x0c\0\0\0\0\0\0\0\x05\0\0\0\x02";
    assert_eq!(chunk, golden);
    chunk.clear();
    structured.failed(&mut chunk, Cookie(1), NbdError::NoSpace);
    let golden: &[u8] = b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x01\0\0\0\x06\0\0\0\x1c\0\0";
    assert_eq!(chunk, golden);
    chunk.clear();
    let extent = Extent {
        length: 9,
        hole: true,
    };
    structured.status(&mut chunk, Cookie(1), &[extent]);
    let golden: &[u8] =
        b"\x66\x8e\x33\xef\0\x01\0\x05\0\0\0\0\0\0\0\x01\0\0\0\x0c\0\0\0\x01\0\0\0\x09\0\0\0\x03";
    assert_eq!(chunk, golden);
    assert!(!plain.hole(&mut simple, Cookie(1), range));
    assert_eq!(simple.len(), 16, "nothing was appended");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_negotiations_end_and_open_once_at_most(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        at_once in 1usize..50,
    ) {
        let mut input = usual();
        for (at, value) in changes {
            let at = at.index(input.len());
            input[at] = value;
        }
        input.truncate(cut.index(input.len() + 1));
        let (sent, outcome, opened) = speak(&input, at_once);
        prop_assert!(opened <= 1);
        prop_assert!(sent.len() <= 4 * input.len() + 4096);
        let whole = speak(&input, usize::MAX / 2);
        prop_assert_eq!((sent, outcome, opened), whole);
    }

    #[test]
    fn whatever_is_sent_is_a_request_a_refusal_or_the_end(
        flags in any::<u16>(), kind in 0u16..10, offset in any::<u64>(), length in any::<u32>(),
        small in any::<bool>(), tail in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let (offset, length) = if small { (offset % SIZE, length % 64) } else { (offset, length) };
        let input = [request(flags, kind, offset, length), tail].concat();
        for replies in [Replies::Simple, Replies::WithBlockStatus] {
            match opened(ExportAccess::ReadWrite, replies).step(&input) {
                Ok(DecodeOutcome::Need(least)) => {
                    prop_assert!(least > input.len() && least <= 28 + MAX_PAYLOAD as usize);
                }
                Ok(DecodeOutcome::Request { used, request: Request { command, .. } }) => {
                    prop_assert!(used <= input.len());
                    if let NbdCommand::Read { range, .. } | NbdCommand::Trim { range, .. } = command {
                        prop_assert!(range.offset + u64::from(range.length) <= SIZE);
                    }
                }
                Ok(DecodeOutcome::Refused { used, .. }) => prop_assert!(used <= input.len()),
                Ok(DecodeOutcome::Ended) => prop_assert_eq!(kind, 2),
                Err(broken) => prop_assert_eq!(broken, Broken::PayloadTooLong(length)),
            }
        }
    }
}
