//! How much the definition of an algorithm permits.

use tidegate::Quota;
use tidegate::internals::{Item, Record, take};

/// The most that could have been admitted for one key that was asked for at
/// these instants of the server's clock: the reference, which shares no code
/// with the scripts, admits as many as it can at each of them.
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
