use super::*;
use crate::{CHUNK, CallId, Session, Stream, ToGuest, ToHost};
use forkyard_types::ExitStatus;
use proptest::prelude::*;

fn output(data: Vec<u8>) -> ToHost {
    output_of(Session(7), data)
}

fn output_of(session: Session, data: Vec<u8>) -> ToHost {
    ToHost::ExecOutput {
        session,
        stream: Stream::Err,
        data,
    }
}

fn drain(decoder: &mut Decoder) -> Vec<Result<ToHost, FrameError>> {
    std::iter::from_fn(|| decoder.next_message()).collect()
}

proptest! {
    #[test]
    fn messages_survive_any_cut_of_the_stream(
        datas in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..5),
        cuts in prop::collection::vec(1..200usize, 1..20),
    ) {
        let messages: Vec<_> = datas.into_iter().map(output).collect();
        let stream: Vec<u8> = messages.iter().flat_map(|m| encode(m).expect("fits")).collect();
        let (mut decoder, mut seen, mut rest) = (Decoder::default(), Vec::new(), &stream[..]);
        for cut in cuts.into_iter().cycle() {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            decoder.feed(now);
            seen.extend(drain(&mut decoder));
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        let wanted: Vec<_> = messages.into_iter().map(Ok).collect();
        prop_assert_eq!(seen, wanted);
        prop_assert_eq!(decoder.skipped(), 0);
        prop_assert!(!decoder.is_midway());
    }

    #[test]
    fn frame_after_the_tail_of_another_is_found(
        data in prop::collection::vec(any::<u8>(), 0..300),
        lost in 1..300usize,
    ) {
        let cut = encode(&output(data)).expect("fits");
        let tail = &cut[lost.min(cut.len())..];
        let whole = output(b"whole".to_vec());
        let mut decoder = Decoder::default();
        decoder.feed(tail);
        decoder.feed(&encode(&whole).expect("fits"));
        prop_assert_eq!(drain(&mut decoder), vec![Ok(whole)]);
        prop_assert_eq!(decoder.skipped(), tail.len() as u64);
    }

    #[test]
    fn garbage_gives_no_message_and_little_is_kept(garbage in prop::collection::vec(any::<u8>(), 0..5000)) {
        let mut decoder = Decoder::default();
        decoder.feed(&garbage);
        prop_assert_eq!(drain(&mut decoder), vec![]);
    }

    #[test]
    fn flipped_bit_never_gives_another_message(bit in 0..8usize, at in any::<prop::sample::Index>()) {
        let message = output(b"some bytes".to_vec());
        let mut frame = encode(&message).expect("fits");
        let at = at.index(frame.len());
        frame[at] ^= 1 << bit;
        let mut decoder = Decoder::default();
        decoder.feed(&frame);
        prop_assert_eq!(drain(&mut decoder), vec![]);
    }

    #[test]
    fn truncated_frame_gives_nothing(cut in any::<prop::sample::Index>()) {
        let frame = encode(&output(b"some bytes".to_vec())).expect("fits");
        let mut decoder = Decoder::default();
        decoder.feed(&frame[..cut.index(frame.len())]);
        prop_assert_eq!(drain(&mut decoder), vec![]);
    }
}

#[test]
fn frame_is_these_bytes() {
    let frame = encode(&ToHost::ExecEnd {
        session: Session(300),
        outcome: Ok(ExitStatus::Signal(9)),
    });
    let golden = [
        b'F', b'y', b'L', b'3', 0xaa, 0xff, 0x3e, 0x64, // magic, checksum
        6, 0, 0, 0, 6, 0, 0, 0, // length, of which covered
        6, 0xac, 0x02, 0, 1, 9, // ExecEnd, session, Ok, Signal, 9
        0xaa, 0xff, 0x3e, 0x64, // checksum
    ];
    assert_eq!(frame, Ok(golden.to_vec()));
}

#[test]
fn longest_payload_passes_and_one_byte_more_does_not() {
    let around = HEADER + TRAILER;
    let overhead = encode(&vec![0u8; 1 << 14]).expect("fits").len() - around - (1 << 14);
    assert_eq!(overhead, 3, "a varint of the length");
    let longest = MAX_PAYLOAD - overhead;
    let mut decoder = Decoder::default();
    decoder.feed(&encode(&vec![1u8; longest]).expect("fits"));
    assert_eq!(decoder.next_message(), Some(Ok(vec![1u8; longest])));
    let error = encode(&vec![1u8; longest + 1]);
    assert_eq!(
        error,
        Err(EncodeError::TooLong {
            bytes: MAX_PAYLOAD + 1
        })
    );
}

#[test]
fn length_beyond_the_longest_is_noise_at_once() {
    let mut frame = encode(&output(vec![0; 100])).expect("fits");
    frame[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut decoder = Decoder::default();
    decoder.feed(&frame);
    assert_eq!(drain(&mut decoder), vec![]);
    assert_eq!(decoder.skipped(), frame.len() as u64);
}

#[test]
fn message_of_another_type_and_one_with_more_behind_it_are_malformed() {
    let mut decoder = Decoder::default();
    decoder.feed(&encode(&200u32).expect("fits"));
    decoder.feed(&encode(&(ToHost::Started, 1u8)).expect("fits"));
    decoder.feed(&encode(&ToHost::Started).expect("fits"));
    let bad = || Err(FrameError::Malformed);
    assert_eq!(drain(&mut decoder), vec![bad(), bad(), Ok(ToHost::Started)]);
}

#[test]
fn peer_that_sends_only_noise_is_found_out() {
    let mut decoder = Decoder::default();
    let mut found = false;
    for _ in 0..=MAX_NOISE / 4096 {
        decoder.feed(&[0; 4096]);
        found |= drain(&mut decoder)
            .iter()
            .any(|seen| matches!(seen, Err(FrameError::Noise { .. })));
    }
    assert!(found);
}

#[test]
fn false_headers_cost_their_sender_more_than_they_cost_us() {
    let mut header = [0; HEADER];
    // With an end that is as the header says: that is the beginning of another.
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&4096u32.to_le_bytes());
    header[12..].copy_from_slice(&4096u32.to_le_bytes());
    let mut decoder = Decoder::default();
    let sent: Vec<u8> = header.iter().copied().cycle().take(64 << 10).collect();
    decoder.feed(&sent);
    let first = decoder.next_message::<ToHost>();
    assert!(matches!(first, Some(Err(FrameError::Noise { bytes })) if bytes < 1 << 10));
}

#[test]
fn after_a_half_frame_is_given_up_what_it_swallowed_is_found() {
    let message = ToGuest::ExecInput {
        session: Session(1),
        data: vec![5; 1000],
    };
    let next = ToGuest::Reply {
        call: CallId(1),
        outcome: Ok(crate::Answer::Killed),
    };
    let mut decoder = Decoder::default();
    decoder.feed(&encode(&message).expect("fits")[..500]);
    decoder.feed(&encode(&next).expect("fits"));
    assert_eq!(decoder.next_message::<ToGuest>(), None);
    assert!(decoder.is_midway());
    decoder.abandon();
    assert_eq!(decoder.next_message(), Some(Ok(next)));
    assert_eq!(decoder.skipped(), 500);
}

#[test]
fn giving_up_between_frames_loses_nothing() {
    let mut decoder = Decoder::default();
    for _ in 0..2 {
        decoder.abandon();
        decoder.feed(&encode(&ToHost::Started).expect("fits"));
        assert_eq!(decoder.next_message(), Some(Ok(ToHost::Started)));
    }
    assert_eq!(decoder.skipped(), 0);
}

#[test]
fn data_is_passed_on_as_it_is_and_is_not_covered() {
    let data = vec![0xff; CHUNK];
    let message = output_of(Session(u32::MAX), data.clone());
    let frame = encode_with_data(&message, CHUNK).expect("fits");
    let empty = output_of(Session(u32::MAX), Vec::new());
    let Around { before, after } = around(&empty, CHUNK).expect("fits");
    assert_eq!([&before[..], &data, &after].concat(), frame);
    let mut decoder = Decoder::default();
    decoder.feed(&frame);
    assert_eq!(drain(&mut decoder), vec![Ok(message)]);
}

#[test]
fn zeros_of_a_frames_length_end_one_that_breaks_off() {
    let longest = MAX_PAYLOAD - 16;
    let cut = encode_with_data(&output(vec![7; longest]), longest).expect("fits");
    let mut decoder = Decoder::default();
    decoder.feed(&cut[..100]);
    decoder.feed(&vec![0; MAX_PAYLOAD + OVERHEAD]);
    decoder.feed(&encode(&ToHost::Started).expect("fits"));
    assert_eq!(drain(&mut decoder), vec![Ok(ToHost::Started)]);
}

#[test]
fn data_that_breaks_off_swallows_no_frame_that_follows() {
    let cut = encode_with_data(&output(vec![7; 3000]), 3000).expect("fits");
    let next = encode_with_data(&output(vec![8; 3000]), 3000).expect("fits");
    for length in [17, 100, 2000, 3020] {
        let mut decoder = Decoder::default();
        decoder.feed(&cut[..length]);
        decoder.feed(&encode(&ToHost::Started).expect("fits"));
        for _ in 0..3 {
            decoder.feed(&next);
        }
        let mut seen = drain(&mut decoder);
        assert_eq!(seen.remove(0), Ok(ToHost::Started), "cut after {length}");
        assert_eq!(seen, vec![Ok(output(vec![8; 3000])); 3]);
    }
}
