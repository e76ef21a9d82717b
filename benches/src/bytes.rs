//! Measures the bytes per key in Redis for each algorithm. `examples/memory` measures them too.

use std::time::Duration;

use tidegate::{Quota, Rate};
use tokio::runtime::Runtime;

use crate::Failure;
use crate::server::Target;
use crate::subjects::tidegate_limiter;

const KEY: &str = "user:0123456789abcde";
const MINUTE: Duration = Duration::from_secs(60);

const QUOTAS: [(&str, Quota, usize); 7] = [
    ("token_bucket", Quota::token_bucket(1_000, Rate::per_minute(1_000)), 3),
    ("leaky_bucket", Quota::leaky_bucket(1_000, Rate::per_minute(1_000)), 3),
    ("fixed_window", Quota::fixed_window(1_000, MINUTE), 3),
    ("sliding_counter", Quota::sliding_counter(1_000, MINUTE), 3),
    ("sliding_log, 1 entry", Quota::sliding_log(1_000, MINUTE), 1),
    ("sliding_log, 100 entries", Quota::sliding_log(1_000, MINUTE), 100),
    ("sliding_log, 1,000 entries", Quota::sliding_log(1_000, MINUTE), 1_000),
];

/// Returns `MEMORY USAGE` of a 20-byte key after the number of checks given in `QUOTAS`.
pub(crate) fn run(runtime: &Runtime, target: &Target) -> Result<Vec<(&'static str, u64)>, Failure> {
    let limiter = tidegate_limiter(target.url())?;
    QUOTAS
        .iter()
        .map(|(title, quota, checks)| {
            let gate = limiter.gate("bytes", *quota);
            runtime.block_on(async {
                gate.reset(KEY).await?;
                // One check at a time, so that the level has a fraction, as in production.
                for _ in 0..*checks {
                    if !gate.check(KEY).await?.is_allowed() {
                        return Err("denied a check although the limit admits all".into());
                    }
                }
                let bytes = target.memory_usage(&gate.redis_key(KEY)?)?;
                gate.reset(KEY).await?;
                Ok((*title, bytes))
            })
        })
        .collect()
}
