//! The promise of reservations, without an oracle: the units admitted in any window obey the definition,
//! regardless of the settles, their times, their senders and their number.
//!
//! The ledger knows the replies only. An admitted charge counts at its time with the units that were not
//! refunded. Debts, which no check admitted, do not count.

use tidegate::Quota;
use tidegate::algorithm::{Kind, LeakyBucket};

/// The admitted charges on one key, while the clock moves forward.
#[derive(Debug)]
pub struct Ledger {
    quota: Quota,
    charges: Vec<Charge>,
}

#[derive(Clone, Debug)]
pub struct Charge {
    pub at_us: u64,
    pub units: u64,
    /// The end of the window as the reply reported it. Only fixed windows have one.
    pub window_end_ms: u64,
    /// The id of the reservation. Empty for a check.
    pub id: String,
}

impl Ledger {
    pub const fn new(quota: Quota) -> Self {
        Self { quota, charges: Vec::new() }
    }

    /// Adds a charge.
    ///
    /// # Errors
    ///
    /// The charge does not obey the definition.
    pub fn admit(&mut self, charge: Charge) -> Result<(), String> {
        self.charges.push(charge);
        self.check().map_err(|error| format!("{error}: {:?}", self.charges))
    }

    /// Ends the name of a reservation: another one with the same id follows.
    pub fn forget(&mut self, id: &str) {
        for charge in self.charges.iter_mut().filter(|charge| charge.id == id) {
            charge.id.clear();
        }
    }

    /// Lowers the units of a reservation: `actual` were used. Units beyond those reserved are a debt.
    pub fn settle(&mut self, id: &str, actual: u64) {
        for charge in self.charges.iter_mut().filter(|charge| charge.id == id) {
            charge.units = charge.units.min(actual);
        }
    }

    /// Checks each window that ends with the newest charge.
    fn check(&self) -> Result<(), String> {
        let Some(newest) = self.charges.last() else { return Ok(()) };
        let now = newest.at_us;
        let limit = self.quota.limit();
        let sum = |is_in: &dyn Fn(&Charge) -> bool| -> u64 {
            self.charges.iter().filter(|charge| is_in(charge)).map(|charge| charge.units).sum()
        };
        match self.quota.kind() {
            Kind::TokenBucket(bucket) | Kind::LeakyBucket(LeakyBucket(bucket)) => {
                let mut ticks = 0;
                for first in self.charges.iter().rev() {
                    ticks += u128::from(first.units) * u128::from(bucket.per);
                    let most = u128::from(bucket.capacity) * u128::from(bucket.per)
                        + u128::from(now - first.at_us) * u128::from(bucket.rate);
                    if ticks > most {
                        return Err(format!("{ticks} ticks since {}, above {most}", first.at_us));
                    }
                }
            }
            Kind::FixedWindow(_) => {
                let used = sum(&|charge| charge.window_end_ms == newest.window_end_ms);
                if used > limit {
                    return Err(format!("{used} units in the window until {}", newest.window_end_ms));
                }
            }
            Kind::SlidingLog(log) => {
                let used = sum(&|charge| now - charge.at_us < log.window_us);
                if used > limit {
                    return Err(format!("{used} units in the window before {now}"));
                }
            }
            Kind::SlidingCounter(counter) => {
                let window = |at: u64| at / counter.window_us;
                let current = sum(&|charge| window(charge.at_us) == window(now));
                let previous = sum(&|charge| window(charge.at_us) + 1 == window(now));
                let rest = u128::from(counter.window_us - now % counter.window_us);
                let overlap = u128::from(previous) * rest / u128::from(counter.window_us);
                if u128::from(current) + overlap > u128::from(limit) {
                    return Err(format!("{current} units, and {overlap} of the previous window, at {now}"));
                }
            }
            Kind::InFlight(_) => return Err("an in-flight limit has no window".to_owned()),
        }
        Ok(())
    }
}
