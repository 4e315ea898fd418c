//! Tests of the times at which pages are asked for.

use super::*;

fn wanted(pages: &[u64]) -> (Asks, Instant) {
    let mut asks = Asks::default();
    for page in pages {
        assert!(asks.want(PageNo(*page), Urgency::Ahead));
    }
    (asks, Instant::now())
}

fn collect(asks: &mut Asks, now: Instant) -> (Vec<PageRequest>, Collected) {
    asks.collect(|_| PartSet::ALL, now)
}

fn runs(asks: &[PageRequest]) -> Vec<(u64, u64, Urgency, u8)> {
    let of = |ask: &PageRequest| (ask.run.first.0, ask.run.pages.0, ask.urgency, ask.before);
    asks.iter().map(of).collect()
}

#[test]
fn pages_in_a_row_are_one_ask_and_those_waited_for_go_first() {
    let (mut asks, now) = wanted(&[3, 4, 5, 9, 10]);
    assert!(asks.want(PageNo(9), Urgency::Waited));
    assert!(!asks.want(PageNo(9), Urgency::Ahead));
    let (found, collected) = collect(&mut asks, now);
    let want = [
        (9, 1, Urgency::Waited, 0),
        (3, 3, Urgency::Ahead, 0),
        (10, 1, Urgency::Ahead, 0),
    ];
    assert_eq!(runs(&found), want);
    assert_eq!((collected.pages, collected.again), (5, 0));
    assert_eq!((asks.ahead(), asks.waited()), (4, vec![PageNo(9)]));
}

#[test]
fn unanswered_page_is_asked_for_again_ever_later() {
    let (mut asks, mut now) = wanted(&[1]);
    collect(&mut asks, now);
    let mut waits = Vec::new();
    for before in 1..=4 {
        let due = asks.next_due(now).expect("is in flight");
        assert_eq!(collect(&mut asks, due - Duration::from_micros(1)).0, []);
        waits.push(due - now);
        now = due;
        let (found, collected) = collect(&mut asks, now);
        assert_eq!(runs(&found), [(1, 1, Urgency::Ahead, before)]);
        assert_eq!(collected.stuck.is_some(), before > 1);
    }
    assert!(
        waits.windows(2).all(|pair| pair[0] * 2 == pair[1]),
        "{waits:?}"
    );
}

#[test]
fn page_that_others_have_overtaken_is_asked_for_before_its_time() {
    let (mut asks, now) = wanted(&(0..40).collect::<Vec<_>>());
    collect(&mut asks, now);
    let then = now + Duration::from_millis(2);
    (1..=16).for_each(|page| assert!(asks.came(PageNo(page), then).is_some()));
    let soon = then + Duration::from_millis(1);
    let (found, collected) = collect(&mut asks, soon);
    assert_eq!(runs(&found), [(0, 1, Urgency::Ahead, 1)]);
    assert_eq!(collected.again, 1);
}

#[test]
fn page_waited_for_is_asked_for_early_if_a_packet_is_missing() {
    let (mut asks, now) = wanted(&[]);
    for page in [1, 2] {
        asks.want(PageNo(page), Urgency::Waited);
    }
    collect(&mut asks, now);
    let then = now + Duration::from_millis(2);
    assert!(asks.came(PageNo(1), then).is_some());
    let at_leisure = asks.next_due(then).expect("in flight");
    asks.missed(then);
    let soon = asks.next_due(then).expect("in flight");
    assert!(soon > then && soon < then + Duration::from_millis(1) && soon < at_leisure);
    // That it was early is no reason to wait longer the next time.
    assert_eq!(
        runs(&collect(&mut asks, soon).0),
        [(2, 1, Urgency::Waited, 1)]
    );
    let patience = asks.next_due(soon).expect("in flight") - soon;
    assert_eq!(patience, asks.waited.trip.patience(0));
    // One that was just asked for cannot be there yet.
    asks.missed(soon);
    let due = asks.next_due(soon).expect("in flight");
    assert!(due >= soon + Duration::from_millis(2), "{:?}", due - soon);
}

#[test]
fn what_was_withdrawn_or_came_is_not_asked_for() {
    let (mut asks, now) = wanted(&[1, 2, 3]);
    assert_eq!(asks.withdraw(PageNo(1)), Some(false));
    assert_eq!(asks.came(PageNo(2), now), Some(Urgency::Ahead));
    assert_eq!(
        runs(&collect(&mut asks, now).0),
        [(3, 1, Urgency::Ahead, 0)]
    );
    assert_eq!(asks.withdraw(PageNo(3)), Some(true));
    assert_eq!(asks.withdraw(PageNo(3)), None);
    assert_eq!((asks.ahead(), asks.next_due(now)), (0, None));
}

#[test]
fn all_is_asked_for_again_of_a_server_that_forgot() {
    let (mut asks, now) = wanted(&[1, 2]);
    asks.want(PageNo(7), Urgency::Waited);
    collect(&mut asks, now);
    asks.start_over();
    assert_eq!(collect(&mut asks, now).1.pages, 3);
}
