//! The number of checks that the definition of an algorithm permits.

use tidegate::Quota;
use tidegate::internals::{Item, Record, take};

/// Returns the maximum number of checks that could have been admitted for one key, given the instants of the
/// server's clock at which it was checked. At each instant the reference admits as many as it can. The
/// reference shares no code with the scripts.
pub(crate) fn ceiling(quota: &Quota, mut instants: Vec<u64>) -> u64 {
    instants.sort_unstable();
    instants.dedup();
    let mut record = Record::default();
    let admit = |now| {
        let item = Item { quota, record: &mut record, cost: 1, max_delay: None };
        take(&mut [item], quota.limit(), now).0
    };
    instants.into_iter().map(admit).sum()
}
