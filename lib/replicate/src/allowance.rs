//! Budget of a link to another host: bytes a second, and bytes or money a day.
//!
//! Holds up what nothing waits for. What a reader or a move waits for is counted and goes at once.
//!
//! Reads no clock: the caller passes the time since 1970; days are those of UTC.

use std::time::Duration;

const DAY: u64 = 24 * 60 * 60;
/// Billionths of a byte in a byte: what a nanosecond earns is a whole number.
const PARTS: u128 = 1_000_000_000;
/// Bytes that a price is for.
const GIGABYTE: f64 = 1e9;
/// Least bytes that gather while there is nothing to send.
const BURST: u64 = 64 << 10;

/// Budget of a link. Without any limit all is sent at once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allowance {
    /// Bytes a second.
    pub rate: Option<u64>,
    /// Bytes a day.
    pub daily: Option<u64>,
    /// Price of 10^9 bytes, and money for a day.
    pub money: Option<Money>,
}

/// Money that a day may cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Money {
    /// Price of 10^9 bytes.
    pub price: f64,
    /// Sum for a day, in the same currency.
    pub daily: f64,
}

/// Use of a link, against its budget.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Meter {
    allowance: Allowance,
    /// Bytes that may go now, in billionths.
    credit: u128,
    earned: Duration,
    /// Day that the use is of.
    day: u64,
    spent: u64,
}

impl Allowance {
    /// Bytes that may go in a day, by the stricter of both limits.
    pub fn bytes_a_day(self) -> Option<u64> {
        let bought = self.money.map(Money::bytes);
        match (self.daily, bought) {
            (Some(daily), Some(bought)) => Some(daily.min(bought)),
            (daily, bought) => daily.or(bought),
        }
    }
}

impl Money {
    /// True if these are sums of money.
    pub fn is_sound(self) -> bool {
        self.price > 0.0 && self.price.is_finite() && self.daily >= 0.0 && self.daily.is_finite()
    }

    /// Bytes that it pays for.
    fn bytes(self) -> u64 {
        let bytes = self.daily / self.price * GIGABYTE;
        // More than fits is no limit.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let bytes = bytes as u64;
        bytes
    }
}

impl Meter {
    /// Meter of a link that has sent so much on a day.
    pub fn new(allowance: Allowance, (day, spent): (u64, u64)) -> Self {
        Self {
            allowance,
            day,
            spent,
            ..Self::default()
        }
    }

    /// Budget.
    pub fn allowance(&self) -> Allowance {
        self.allowance
    }

    /// Changes the budget, from now on. What was sent today counts.
    pub fn tune(&mut self, allowance: Allowance) {
        self.allowance = allowance;
        self.credit = 0;
    }

    /// Day, counted from 1970, and bytes sent on it.
    pub fn spent(&mut self, now: Duration) -> (u64, u64) {
        let day = now.as_secs() / DAY;
        // A clock that is set back does not give the day's budget once more.
        if day > self.day {
            (self.day, self.spent) = (day, 0);
        }
        (self.day, self.spent)
    }

    /// Counts bytes that go whatever the budget says.
    pub fn spend(&mut self, now: Duration, bytes: u64) {
        self.spent(now);
        self.spent = self.spent.saturating_add(bytes);
    }

    /// Time until the day's budget is there again, if it is used up.
    pub fn used_up(&mut self, now: Duration) -> Option<Duration> {
        let (day, spent) = self.spent(now);
        let most = self.allowance.bytes_a_day()?;
        let tomorrow = Duration::from_secs((day + 1) * DAY);
        (spent >= most).then(|| tomorrow.saturating_sub(now))
    }

    /// Takes bytes that nothing waits for, as many as may go now. If there are none: the time after
    /// which there may be some.
    pub fn take(&mut self, now: Duration, wanted: u64) -> Result<u64, Duration> {
        if let Some(wait) = self.used_up(now) {
            return Err(wait);
        }
        let most = self.allowance.bytes_a_day();
        let mut may = wanted.min(most.map_or(u64::MAX, |most| most - self.spent));
        if let Some(rate) = self.allowance.rate.map(|it| it.max(1)) {
            let burst = u128::from(BURST.max(rate / 4)) * PARTS;
            let passed = now.saturating_sub(self.earned).as_nanos();
            self.credit = (self.credit + passed.saturating_mul(rate.into())).min(burst);
            self.earned = now;
            // Not byte by byte: a tenth of a second's, or all that is wanted.
            let least = u128::from(may.min((rate / 10).max(1))) * PARTS;
            if self.credit < least {
                let missing = (least - self.credit).div_ceil(rate.into());
                let nanos = u64::try_from(missing).unwrap_or(u64::MAX);
                return Err(Duration::from_nanos(nanos));
            }
            let there = u64::try_from(self.credit / PARTS).unwrap_or(u64::MAX);
            may = may.min(there);
            self.credit -= u128::from(may) * PARTS;
        }
        self.spend(now, may);
        Ok(may)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn money_buys_bytes_and_the_stricter_limit_holds() {
        let money = Money {
            price: 0.05,
            daily: 2.0,
        };
        let bought = Allowance {
            money: Some(money),
            ..Allowance::default()
        };
        assert_eq!(bought.bytes_a_day(), Some(40_000_000_000));
        let daily = Some(10 << 30);
        assert_eq!(Allowance { daily, ..bought }.bytes_a_day(), daily);
        assert_eq!(Allowance::default().bytes_a_day(), None);
        for (price, daily) in [(0.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (f64::NAN, 1.0)] {
            assert!(!Money { price, daily }.is_sound());
        }
    }

    #[test]
    fn what_is_waited_for_goes_and_counts_and_the_rest_goes_on_the_next_day() {
        let allowance = Allowance {
            daily: Some(1000),
            ..Allowance::default()
        };
        let noon = Duration::from_secs(20_000 * DAY + DAY / 2);
        let mut meter = Meter::new(allowance, (20_000, 300));
        assert_eq!(meter.take(noon, 500), Ok(500));
        meter.spend(noon, 900);
        assert_eq!(meter.take(noon, 1), Err(Duration::from_secs(DAY / 2)));
        assert_eq!(meter.spent(noon), (20_000, 1700));
        let tomorrow = noon + Duration::from_secs(DAY / 2);
        assert_eq!(meter.take(tomorrow, 2000), Ok(1000));
        // A clock that goes back does not fill the purse.
        assert!(meter.take(noon, 1).is_err());
    }

    proptest! {
        #[test]
        fn no_more_goes_than_the_rate_and_the_day_allow_and_all_goes_in_the_end(
            rate in 1_000..10_000_000u64, daily in 1..100_000_000u64,
            wants in proptest::collection::vec((1..300_000u64, 0..400u64), 1..60),
        ) {
            let start = Duration::from_secs(30_000 * DAY);
            let allowance = Allowance { rate: Some(rate), daily: Some(daily), money: None };
            let mut meter = Meter::new(allowance, (0, 0));
            // What gathered before is no part of it.
            let _ = meter.take(start, 0);
            meter.credit = 0;
            let (mut now, mut sent) = (start, 0);
            for (want, pause) in wants {
                now += Duration::from_millis(pause);
                match meter.take(now, want) {
                    Ok(may) => {
                        prop_assert!(may <= want && may > 0);
                        sent += may;
                    }
                    Err(wait) => {
                        prop_assert!(!wait.is_zero());
                        // After that time there is something.
                        let again = meter.take(now + wait, want);
                        prop_assert!(again.is_ok(), "{again:?}");
                        if wait < Duration::from_secs(1) {
                            sent += again.unwrap_or(0);
                            now += wait;
                        } else {
                            return Ok(());
                        }
                    }
                }
                let passed = (now - start).as_secs_f64();
                #[allow(clippy::cast_precision_loss)]
                let most = rate as f64 * passed + BURST.max(rate / 4) as f64;
                #[allow(clippy::cast_precision_loss)]
                let fine = sent as f64 <= most;
                prop_assert!(fine, "{sent} in {passed} s");
                prop_assert!(sent <= daily);
            }
        }
    }
}
