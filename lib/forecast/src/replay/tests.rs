use super::*;
use crate::trace::TraceKind;

const TIMES: Times = Times {
    take: Millis(100),
    make: Millis(1000),
    at_once: 2,
};

#[test]
fn a_stock_serves_as_many_as_it_has_and_the_others_wait_for_makers() {
    let at = [Millis::secs(60); 4];
    let none = replay(&at, Stock::None, TIMES, 8);
    assert_eq!((none.asked, none.hits), (4, 0));
    assert_eq!((none.median, none.p99), (Millis(2000), Millis(2000)));
    let two = replay(&at, Stock::Fixed(2), TIMES, 8);
    // Makers that have begun to fill it up again end that first.
    assert_eq!((two.hits, two.p99), (2, Millis(2000)));
    assert!((1.7..2.0).contains(&two.mean_ready), "{}", two.mean_ready);
    let bounded = replay(&at, Stock::Fixed(9), TIMES, 3);
    assert_eq!(bounded.hits, 3);
    assert!(bounded.mean_ready < 3.0);
}

/// Days that are simulated, the bound of the stock, and both as in docs/simulations.md.
const DAYS: u64 = 3;
const MOST: u16 = 32;

fn of(kind: TraceKind, stock: Stock) -> ForecastOutcome {
    replay(&kind.generate(DAYS, 1), stock, TIMES, MOST)
}

#[test]
fn a_forecast_hits_about_as_often_as_a_fixed_stock_of_the_largest_burst_and_spends_less() {
    for (kind, size, hits, part) in [
        (TraceKind::Bursts, 20, 0.9, 1.1),
        (TraceKind::Daily, 8, 0.98, 0.5),
        (TraceKind::Hourly, 16, 0.9, 0.5),
    ] {
        let (fixed, forecast) = (of(kind, Stock::Fixed(size)), of(kind, Stock::Forecast));
        let name = kind.name();
        assert!(forecast.hit_rate() > hits, "{name}: {forecast:?} {fixed:?}");
        let spent = forecast.mean_ready / fixed.mean_ready;
        assert!(spent < part, "{name}: {forecast:?} {fixed:?}");
        assert!(forecast.p99 <= of(kind, Stock::None).p99, "{name}");
    }
}

#[test]
fn a_forecast_of_single_ones_holds_few_of_them() {
    let steady = of(TraceKind::Steady, Stock::Forecast);
    assert!(
        steady.hit_rate() > 0.8 && steady.mean_ready < 2.0,
        "{steady:?}"
    );
}
