//! Reads the keys and the figures of a limiter in memory.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::fleet::starts;
use super::{
    CountedDenials, FigureBucket, FleetFigures, Found, Inspector, Instance, Name, StoreAccess, Usage,
};
use crate::error::Error;
use crate::limiter::Limiter;
use crate::observe::figures::{BUCKET, KEPT};
use crate::store::{Group, GroupItem, MemoryStore, Target};

/// # In memory
impl Inspector {
    /// Makes an inspector for the keys of a limiter in memory, and for its [figures](Self::figures) if it has
    /// [`publish_figures(true)`](crate::Builder::publish_figures). `None` if the limiter has another store.
    ///
    /// It scans, reads states and counted denials, and finds keys. What else is in Redis is an error
    /// [of the configuration](Error::is_config).
    #[must_use]
    pub fn in_memory(limiter: &Limiter) -> Option<Self> {
        let access = StoreAccess { pipeline: limiter.pipeline.clone() };
        access.memory()?;
        access.pipeline.record_figures();
        Some(Self(access))
    }

    pub(super) fn read_in_memory(&self, memory: &MemoryStore, names: &[Name]) -> Result<Vec<Found>, Error> {
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            let target = |quota| {
                let gate = Arc::new(self.0.pipeline.gate_info(&name.gate, quota)?);
                Ok::<_, Error>(Target::of_redis_key(&gate, name.redis_key.clone(), name.hash_tag))
            };
            let known = memory.quota_of(&target(name.shape.quota(1)?)?);
            let Some((quota, expires_ms)) = known else { continue };
            let peek = Group { items: SmallVec::from_buf([GroupItem::new(target(quota)?, 1)]), n: 0 };
            for outcome in memory.take(&[peek]) {
                let outcome = outcome?;
                let usage = Usage::of_log(&quota, &outcome.before[0], outcome.now_us);
                let expires_us = expires_ms.saturating_mul(1_000).saturating_sub(outcome.now_us);
                found.push(Found {
                    name: name.clone(),
                    usage: Ok(Usage { quota: Some(quota), ..usage }),
                    expires_in: Some(Duration::from_micros(expires_us)),
                });
            }
        }
        Ok(found)
    }

    pub(super) fn figures_in_memory(
        &self,
        memory: &MemoryStore,
        span: Duration,
    ) -> Result<FleetFigures, Error> {
        let none = || Error::config("the limiter in memory keeps no figures: enable `publish_figures`");
        let figures = self.0.pipeline.figures().ok_or_else(none)?;
        let now_us = memory.clock().now_us();
        figures.record(now_us);
        let now_unix_s = now_us / 1_000_000;
        let from_s = starts(now_unix_s, BUCKET, span.min(KEPT)).first().copied().unwrap_or(now_unix_s);
        let buckets = figures.recorded(from_s);
        let this_process = Instance {
            id: std::process::id().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            store_errors: figures.errors(),
            ..Instance::default()
        };
        let buckets = buckets.iter().map(|(start_s, fields)| FigureBucket::of_fields(*start_s, fields));
        let (buckets, instances) = (buckets.collect(), vec![this_process]);
        Ok(FleetFigures { now_unix_s, bucket: BUCKET, buckets, instances })
    }
}

impl CountedDenials {
    pub(super) fn in_memory(memory: &MemoryStore, name: &Name) -> Option<Self> {
        let denials = memory.denials(&name.denials_key())?;
        let ends_us = denials.ends_ms.saturating_mul(1_000).saturating_sub(memory.clock().now_us());
        Some(Self { count: denials.count, ends_in: Duration::from_micros(ends_us) })
    }
}
