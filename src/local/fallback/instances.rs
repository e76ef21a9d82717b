//! The number of instances that share the quotas: configured, or counted by their heartbeats in the store.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Instances {
    /// 1 before the first count.
    pub(super) known: AtomicU64,
    /// The key in the store, and this instance's name there; `None` if the number is configured.
    pub(super) counted_at: Option<(String, String)>,
}

impl Instances {
    pub(crate) fn given(instances: u64) -> Self {
        Self { known: AtomicU64::new(instances.max(1)), counted_at: None }
    }

    /// Counts the instances at this key of the store.
    pub(crate) fn counted(key: String) -> Self {
        let name = format!("{:032x}", fastrand::u128(..));
        Self { counted_at: Some((key, name)), ..Self::given(1) }
    }

    pub(super) fn known(&self) -> u64 {
        self.known.load(Ordering::Relaxed)
    }
}
