use crate::{Broadcast, Selection, Subscription};
use forkyard_types::{
    Cursor, EventKind, EventSubject, EventVm, FamilyId, ForkOver, ForkPhase, ForkReached,
    HostEvent, Occurrence, Since, StreamId, VmId, VmSilence,
};
use futures::FutureExt;
use proptest::prelude::*;
use std::{num::NonZeroUsize, sync::Arc};

fn of(capacity: usize) -> Broadcast {
    Broadcast::new(NonZeroUsize::new(capacity).expect("not zero"))
}

fn all(events: &Broadcast, since: Option<Since>) -> Subscription {
    events.subscribe(Selection::default(), since)
}

fn vm(name: &str) -> EventVm {
    EventVm {
        id: VmId::random(),
        name: name.parse().expect("a name"),
        family: Some(FamilyId::random()),
    }
}

fn happen(events: &Broadcast, times: u64) {
    for _ in 0..times {
        let what = Occurrence::VmSilence(VmSilence { why: None });
        events.publish(EventSubject::default(), what);
    }
}

/// Numbers of the events that are there, and of those that a reader is told it missed.
fn read(reader: &mut Subscription) -> (Vec<u64>, Vec<Option<u64>>) {
    let (mut seqs, mut missed) = (Vec::new(), Vec::new());
    while let Some(event) = reader.try_next() {
        if let Occurrence::Lagged(lagged) = &event.what {
            missed.push(lagged.missed);
        } else {
            seqs.push(event.seq);
        }
    }
    (seqs, missed)
}

#[test]
fn each_reader_gets_each_event_once_and_in_order() {
    let events = of(8);
    let mut first = all(&events, None);
    happen(&events, 2);
    let mut second = all(&events, None);
    happen(&events, 2);
    assert_eq!(read(&mut first), (vec![1, 2, 3, 4], vec![]));
    assert_eq!(read(&mut second), (vec![3, 4], vec![]));
    assert_eq!(read(&mut second), (vec![], vec![]));
}

#[test]
fn a_reader_that_resumes_misses_nothing_and_gets_nothing_twice() {
    let events = of(8);
    happen(&events, 3);
    let mut reader = all(&events, Some(Since::Seq(0)));
    let read_before = [reader.try_next(), reader.try_next()];
    assert!(read_before.iter().all(Option::is_some));
    let at = reader.cursor();
    drop(reader);
    happen(&events, 2);
    for since in [Since::Cursor(at), Since::Seq(at.seq)] {
        let mut again = all(&events, Some(since));
        assert_eq!(read(&mut again), (vec![3, 4, 5], vec![]));
    }
}

#[test]
fn a_slow_reader_is_told_how_many_it_missed_and_goes_on() {
    let events = of(4);
    let mut reader = all(&events, None);
    happen(&events, 10);
    let lagged = reader.try_next().expect("an event");
    assert_eq!((lagged.seq, lagged.kind), (6, EventKind::Stream));
    // Resumed right behind that, it misses nothing more.
    let mut again = all(&events, Some(Since::Cursor(lagged.cursor())));
    assert_eq!(read(&mut again), (vec![7, 8, 9, 10], vec![]));
    assert_eq!(read(&mut reader), (vec![7, 8, 9, 10], vec![]));
    happen(&events, 5);
    assert_eq!(read(&mut reader), (vec![12, 13, 14, 15], vec![Some(1)]));
}

#[test]
fn a_position_of_another_stream_or_ahead_of_this_one_has_missed_an_unknown_number() {
    let events = of(4);
    happen(&events, 2);
    let stream = events.end().stream;
    let elsewhere = Cursor {
        stream: StreamId::random(),
        seq: 1,
    };
    let ahead = Cursor { stream, seq: 9 };
    let sinces = [
        Since::Cursor(elsewhere),
        Since::Cursor(ahead),
        Since::Seq(9),
    ];
    for since in sinces {
        let mut reader = all(&events, Some(since));
        assert_eq!(read(&mut reader), (vec![1, 2], vec![None]), "{since}");
    }
}

#[test]
fn a_filter_passes_what_is_asked_for_and_moves_the_position_over_the_rest() {
    let events = of(8);
    let (p, q) = (vm("p"), vm("q"));
    let fork = Occurrence::ForkReached(ForkReached {
        phase: ForkPhase::Starting,
    });
    let silence = Occurrence::VmSilence(VmSilence { why: None });
    for (vm, what) in [(&p, &fork), (&q, &fork), (&p, &silence)] {
        let subject = EventSubject {
            vm: Some(vm.clone()),
            ..EventSubject::default()
        };
        events.publish(subject, what.clone());
    }
    happen(&events, 1);
    let passed = |filter| {
        let mut reader = events.subscribe(filter, Some(Since::Seq(0)));
        let seqs = read(&mut reader).0;
        assert_eq!(reader.cursor(), events.end());
        seqs
    };
    let by_name = |name: &str| Selection {
        vm: Some(name.to_owned()),
        ..Selection::default()
    };
    assert_eq!(passed(by_name("p")), [1, 3]);
    assert_eq!(passed(by_name(q.id.as_str())), [2]);
    assert_eq!(passed(by_name("r")), [0; 0]);
    let of_family = Selection {
        family: q.family,
        ..Selection::default()
    };
    assert_eq!(passed(of_family), [2]);
    let forks_of_p = Selection {
        kinds: [EventKind::Fork].into(),
        ..by_name("p")
    };
    assert_eq!(passed(forks_of_p), [1]);
    assert_eq!(passed(Selection::default()), [1, 2, 3, 4]);
}

#[test]
fn a_reader_with_a_filter_is_told_what_it_missed_all_the_same() {
    let events = of(2);
    let filter = Selection {
        vm: Some("p".into()),
        ..Selection::default()
    };
    let mut reader = events.subscribe(filter, None);
    happen(&events, 5);
    assert_eq!(read(&mut reader), (vec![], vec![Some(3)]));
}

#[test]
fn texts_of_any_length_are_kept_short() {
    let events = of(2);
    let mut reader = all(&events, None);
    let over = ForkOver {
        ready: 0,
        failed: 100,
        why: vec!["é".repeat(10_000); 100],
    };
    events.publish(EventSubject::default(), Occurrence::ForkOver(over));
    let event = reader.try_next().expect("an event");
    let Occurrence::ForkOver(over) = &event.what else {
        panic!("{event:?}");
    };
    assert!(over.why.len() == 8 && over.why.iter().all(|why| why.len() < 600));
}

fn is_pending(reader: &mut Subscription) -> bool {
    reader.next().now_or_never().is_none()
}

fn at_once(reader: &mut Subscription) -> Option<Arc<HostEvent>> {
    reader.next().now_or_never().expect("at once")
}

#[test]
fn a_reader_waits_until_something_happens_and_ends_when_the_stream_is_closed() {
    let events = of(8);
    let mut reader = all(&events, None);
    assert!(is_pending(&mut reader));
    happen(&events, 2);
    // Dropped halfway again and again, it loses nothing.
    assert_eq!(at_once(&mut reader).map(|event| event.seq), Some(1));
    events.close();
    assert_eq!(at_once(&mut reader).map(|event| event.seq), Some(2));
    assert_eq!(at_once(&mut reader), None);
    assert_eq!(at_once(&mut all(&events, None)), None);
}

#[tokio::test]
async fn a_reader_that_waits_is_woken() {
    let events = of(8);
    let mut reader = all(&events, None);
    let waiting = tokio::spawn(async move { reader.next().await.map(|event| event.seq) });
    tokio::task::yield_now().await;
    happen(&events, 1);
    assert_eq!(waiting.await.expect("no panic"), Some(1));
}

/// Events that a reader knows of by this one.
fn worth(event: &HostEvent) -> u64 {
    if let Occurrence::Lagged(lagged) = &event.what {
        lagged.missed.expect("known")
    } else {
        1
    }
}

proptest! {
    #[test]
    fn whatever_a_reader_does_it_can_account_for_every_event(
        capacity in 1..6usize,
        steps in prop::collection::vec((0..8u64, 0..8usize, any::<bool>()), 1..60),
    ) {
        let events = of(capacity);
        let mut reader = all(&events, Some(Since::Seq(0)));
        let (mut happened, mut accounted) = (0, 0);
        for (new, reads, cut) in steps {
            happen(&events, new);
            happened += new;
            for _ in 0..reads {
                let Some(event) = reader.try_next() else { break };
                accounted += worth(&event);
                // No gap that was not told of, and nothing twice.
                prop_assert_eq!(event.seq, accounted);
            }
            if cut {
                reader = all(&events, Some(Since::Cursor(reader.cursor())));
            }
        }
        while let Some(event) = reader.try_next() {
            accounted += worth(&event);
        }
        prop_assert_eq!(accounted, happened);
    }
}
