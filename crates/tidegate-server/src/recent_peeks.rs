//! Finds charges that come after their units were used, and that a rule denies without charging.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate::{Limiter, RepeatedWarning};
use tidegate_rules::Rule;
use tokio::time::Instant;

use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;

/// The number of peeks that are remembered, 32 KiB. A peek replaces an earlier one of its slot.
const SLOTS: usize = 1 << 12;
/// How long a peek is remembered.
const LIFETIME_S: u64 = 60;

/// The descriptors that peeks have admitted in the last minute, as hashes.
#[derive(Debug)]
pub(crate) struct RecentPeeks {
    hasher: RandomState,
    began: Instant,
    /// Each slot has the upper half of the hash of a descriptor, and the second of its peek, from 1.
    slots: Box<[AtomicU64]>,
    has_warned: AtomicBool,
}

impl RecentPeeks {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            began: Instant::now(),
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            has_warned: AtomicBool::new(false),
        }
    }

    pub(crate) fn has_warned(&self) -> bool {
        self.has_warned.load(Ordering::Relaxed)
    }

    /// Records that a peek admitted this descriptor.
    pub(crate) fn note(&self, domain: &str, descriptor: &RateLimitDescriptor) {
        let (slot, hash) = self.slot(domain, descriptor);
        slot.store(hash | self.second(), Ordering::Relaxed);
    }

    /// Warns once if a peek has admitted this descriptor, whose charge the rule has denied.
    pub(crate) fn warn_of_denied_charge(
        &self,
        domain: &str,
        descriptor: &RateLimitDescriptor,
        rule: &Rule,
        limiter: &Limiter,
    ) {
        let (slot, hash) = self.slot(domain, descriptor);
        let noted = slot.load(Ordering::Relaxed);
        let (noted_hash, noted_second) = (noted & !u64::from(u32::MAX), noted & u64::from(u32::MAX));
        let is_recent = noted_second > 0 && self.second().saturating_sub(noted_second) < LIFETIME_S;
        if noted_hash == hash && is_recent && !self.has_warned.swap(true, Ordering::Relaxed) {
            limiter.warn(&RepeatedWarning::new("charge-after-peek-denied"), || {
                let (file, line) = rule.origin();
                format!(
                    "{file}:{line}: the rule `{}` admitted a request with 0 hits, and then denied its charge, so it \
                     charged nothing: if the units were used before their charge, as with `apply_on_stream_done` of \
                     Envoy, set `charge_used: true` beside its `rate_limit`",
                    rule.path()
                )
            });
        }
    }

    /// Returns the slot of a descriptor, and the upper half of its hash.
    fn slot(&self, domain: &str, descriptor: &RateLimitDescriptor) -> (&AtomicU64, u64) {
        let mut hasher = self.hasher.build_hasher();
        domain.hash(&mut hasher);
        for entry in &descriptor.entries {
            (&entry.key, &entry.value).hash(&mut hasher);
        }
        let hash = hasher.finish();
        (&self.slots[hash as usize % SLOTS], hash & !u64::from(u32::MAX))
    }

    /// Returns the seconds since the service began, from 1.
    fn second(&self) -> u64 {
        (self.began.elapsed().as_secs() + 1).min(u32::MAX.into())
    }
}
