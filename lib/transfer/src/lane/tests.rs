use super::*;
use crate::flow::RateBounds;
use crate::pages::PageSet;
use crate::push::Push;
use forkyard_types::PageCount;
use std::sync::Arc;

/// A page that does not pack, with all that is around it.
const BYTES: usize = 4400;
const REPORT: Duration = Duration::from_millis(10);

fn lane(now: Instant) -> Lane {
    let size = PageCount(1 << 20);
    let pusher = Pusher::new(Push::Nothing, &[], size, Arc::new(PageSet::new(size)));
    let law = FlowLaw::Delivery(RateBounds::default());
    Lane::new(law, Window::default(), pusher, now)
}

/// Sends pages for so long, each so long after the one before it was sent; a link carries
/// so many bytes a second. Reports as a client does.
fn send(lane: &mut Lane, now: &mut Instant, lasts: Duration, thinks: Duration, carries: u64) {
    let (until, mut reported, mut bytes) = (*now + lasts, *now, 0);
    while *now < until {
        *now += thinks;
        while let Some(later) = lane.ready(*now) {
            *now = later;
        }
        lane.spend(BYTES);
        bytes += BYTES as u64;
        let passed = now.saturating_duration_since(reported);
        if passed >= REPORT {
            // No test lasts long enough for this to overflow.
            let came = bytes * 1_000_000 / u64::try_from(passed.as_micros()).expect("short");
            lane.report(Rate(came.min(carries)), (bytes / 1100, 0), thinks, *now);
            (reported, bytes) = (*now, 0);
        }
    }
}

/// A lane whose link was slow when it began, as one is whose receiver has no processor.
fn slow_at_first(now: &mut Instant) -> Lane {
    const SLOW: u64 = 5 << 20;
    let mut lane = lane(*now);
    send(&mut lane, now, Duration::from_secs(1), Duration::ZERO, SLOW);
    let Rate(rate) = lane.rate(*now);
    assert!(rate < 2 * SLOW, "{rate}");
    lane
}

#[test]
fn who_asks_for_one_page_after_the_other_is_not_held_up_by_what_a_slow_start_left() {
    let mut now = Instant::now();
    let mut lane = slow_at_first(&mut now);
    // 44 MB/s, if it is let.
    let trip = Duration::from_micros(100);
    send(&mut lane, &mut now, Duration::from_secs(4), trip, u64::MAX);
    let Rate(rate) = lane.rate(now);
    assert!(rate > 30_000_000, "{rate}");
}

#[test]
fn a_rate_that_is_not_used_stays() {
    let mut now = Instant::now();
    let mut lane = slow_at_first(&mut now);
    let Rate(before) = lane.rate(now);
    let pause = Duration::from_millis(20);
    send(&mut lane, &mut now, Duration::from_secs(4), pause, u64::MAX);
    let Rate(after) = lane.rate(now);
    assert!(
        (before / 2..2 * before).contains(&after),
        "{before} {after}"
    );
}
