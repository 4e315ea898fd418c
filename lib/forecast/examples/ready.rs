//! Prints what stocks of ready VMs would have done on generated traces of arrivals: the table in
//! docs/simulations.md.

use forkyard_forecast::{Millis, Stock, Times, replay, trace::TraceKind};

/// Days, seed, and the largest stock.
const DAYS: u64 = 7;
const SEED: u64 = 1;
const MOST: u16 = 32;
/// As of `tiny`, emulated, on two CPUs.
const TIMES: Times = Times {
    take: Millis(100),
    make: Millis(500),
    at_once: 2,
};

fn main() {
    println!("| arrivals | stock | hits, % | mean ready | wait, median, ms | wait, p99, ms |");
    println!("|---|---|---|---|---|---|");
    for kind in TraceKind::ALL {
        let arrivals = kind.generate(DAYS, SEED);
        let stocks = [
            Stock::None,
            Stock::Fixed(1),
            Stock::Fixed(4),
            Stock::Fixed(20),
        ];
        for stock in stocks.into_iter().chain([Stock::Forecast]) {
            let of = replay(&arrivals, stock, TIMES, MOST);
            let name = match stock {
                Stock::None => "none".to_owned(),
                Stock::Fixed(count) => format!("always {count}"),
                Stock::Forecast => "forecast".to_owned(),
            };
            println!(
                "| {}, {} | {name} | {:.1} | {:.2} | {} | {} |",
                kind.name(),
                of.asked,
                of.hit_rate() * 100.0,
                of.mean_ready,
                of.median.0,
                of.p99.0
            );
        }
    }
}
