//! The number of checks that the definition of an algorithm permits.

use tidegate::Quota;
use tidegate::reference::{Item, Record, take};

/// Returns the maximum number of checks that could have been admitted for one key, given the instants of the
/// server's clock at which it was checked. At each instant the reference admits as many as it can. The
/// reference shares no code with the scripts.
pub(crate) fn ceiling(quota: &Quota, mut instants: Vec<u64>) -> u64 {
    instants.sort_unstable();
    instants.dedup();
    let mut record = Record::default();
    let admit = |now| take(&mut [Item::new(quota, &mut record, 1, None)], quota.limit(), now);
    instants.into_iter().map(admit).sum()
}
