//! The compared rate limiters, one file each.

mod actix_extensible_rate_limit;
mod actix_limitation;
mod governor;
#[cfg(feature = "limitador")]
mod limitador;
mod multiplexed;
mod pool;
mod throttle_kit;
mod tidegate;
#[cfg(feature = "lease")]
mod tidegate_lease;
mod tidegate_local;
mod tidegate_memory;
mod tidegate_window;
mod tower_rate_limit_redis;
mod tower_redis_cell;
mod trypema;
mod trypema_hybrid;

use std::future::Future;
use std::sync::{Arc, LazyLock};

use tokio::runtime::Handle;

use crate::Failure;
use crate::case::Case;
use crate::entrant::{Entrant, LocalEntrant, Runs};
use crate::server::Target;

pub(crate) use self::multiplexed::Multiplexed;
pub(crate) use self::tidegate::{Tidegate, limiter as tidegate_limiter, quota as tidegate_quota};

/// A subject that decides in Redis, used as its own documentation recommends.
pub(crate) trait Subject: Sized + Send + Sync + 'static {
    const INFO: Info;

    /// Connects and configures the subject for one case. Cases differ by their limit.
    fn open(url: &str, case: Case) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// Returns the key with this number in a case. All subjects share the server, so the key contains the
    /// subject's name if the crate adds no prefix of its own.
    fn key(case: Case, number: usize) -> String {
        format!("{}:{}:{}:user:{number}", *RUN, Self::INFO.name, case.family())
    }

    /// Checks a key at cost 1. Returns whether it is allowed.
    fn check(&self, key: &str) -> impl Future<Output = Result<bool, Failure>> + Send;
}

/// A subject that mostly decides in process, on the caller's thread.
pub(crate) trait Local: Sized + Send + Sync + 'static {
    const INFO: Info;

    type Key: Send + Sync;

    /// Number of checks per key that warm it up.
    const WARMUP_CHECKS_PER_KEY: usize = 1;

    fn open(url: &str, case: Case, runtime: &Handle) -> Result<Self, Failure>;

    /// Builds a key, once per key: the measured time does not include it.
    fn key(name: &str) -> Result<Self::Key, Failure>;

    fn check(&self, key: &Self::Key) -> Result<LocalDecision, Failure>;
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalDecision {
    pub(crate) allowed: bool,
    /// The check waited for Redis.
    pub(crate) fell_back: bool,
}

/// The description of a subject in its row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Info {
    /// The name in the JSON.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The difference from a token bucket by Redis's clock.
    pub(crate) note: &'static str,
    pub(crate) kind: Kind,
    /// The largest capacity that the subject supports.
    pub(crate) max_capacity: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    ByHand,
    Peer,
}

/// The subjects of a case.
#[derive(Default)]
pub(crate) struct Field {
    pub(crate) present: Vec<Box<dyn Runs>>,
    /// The subjects that cannot run, with the reason.
    pub(crate) absent: Vec<(Info, String)>,
}

/// Returns the subjects for a case on this server. The first server runs all subjects that it supports.
/// Another server runs those that need it, with tidegate and a baseline for the ratio to the best peer.
pub(crate) fn of(case: Case, target: &Arc<Target>, is_main: bool) -> Field {
    let Field { mut present, mut absent } = Field::default();
    if matches!(case, Case::Lease100k | Case::LeaseOne) {
        #[cfg(feature = "lease")]
        if is_main {
            present.push(LocalEntrant::<tidegate_lease::Leased>::boxed(case, target));
        }
        if is_main {
            present.push(LocalEntrant::<governor::Keyed>::boxed(case, target));
        }
        if target.is_7_2 {
            present.push(LocalEntrant::<trypema_hybrid::Hybrid>::boxed(case, target));
        } else {
            absent.push((trypema_hybrid::Hybrid::INFO, trypema::NEEDS.to_owned()));
        }
        return Field { present, absent };
    }

    if case.is_in_memory() {
        if is_main {
            present.push(LocalEntrant::<tidegate_memory::Memory>::boxed(case, target));
            present.push(LocalEntrant::<governor::Keyed>::boxed(case, target));
        }
        return Field { present, absent };
    }

    if case == Case::BreakerOpen {
        if is_main {
            present.push(Entrant::<tidegate_local::Local>::boxed(case, target));
        }
        return Field { present, absent };
    }

    if !is_main && !matches!(case, Case::Unlike | Case::Hot) {
        return Field { present, absent };
    }
    present.push(Entrant::<Tidegate>::boxed(case, target));
    present.push(Entrant::<Multiplexed>::boxed(case, target));
    if is_main {
        present.push(Entrant::<pool::Pooled>::boxed(case, target));
    }
    if matches!(case, Case::Zipf | Case::Alone) {
        return Field { present, absent };
    }
    if is_main {
        // For comparison with the peers that count windows.
        if case == Case::Unlike {
            present.push(Entrant::<tidegate_window::Window>::boxed(case, target));
        }
        present.push(Entrant::<tower_rate_limit_redis::TowerRateLimitRedis>::boxed(case, target));
        present.push(Entrant::<throttle_kit::ThrottleKit>::boxed(case, target));
        present.push(Entrant::<actix_extensible_rate_limit::ActixExtensible>::boxed(case, target));
        present.push(Entrant::<actix_limitation::ActixLimitation>::boxed(case, target));
        #[cfg(feature = "limitador")]
        present.push(Entrant::<limitador::Limitador>::boxed(case, target));
        if target.has_cell {
            present.push(Entrant::<tower_redis_cell::TowerRedisCell>::boxed(case, target));
        } else {
            absent.push((tower_redis_cell::TowerRedisCell::INFO, tower_redis_cell::NEEDS.to_owned()));
        }
    }
    if target.is_7_2 {
        present.push(Entrant::<trypema::Trypema>::boxed(case, target));
    } else {
        absent.push((trypema::Trypema::INFO, trypema::NEEDS.to_owned()));
    }
    Field { present, absent }
}

/// The prefix of every key of this run, so that they can be found and removed on a shared server.
pub(crate) static RUN: LazyLock<String> = LazyLock::new(|| format!("ben-{:04x}", fastrand::u16(..)));

/// A typical script written by hand: a bucket in a hash, in floating point.
static FLAT: LazyLock<redis::Script> =
    LazyLock::new(|| redis::Script::new(include_str!("subjects/token_bucket.lua")));

/// Returns the arguments of `FLAT` for a case's limit.
fn flat_args(case: Case) -> (u64, f64) {
    let limit = case.limit();
    (limit.capacity, 1.0 / limit.refill_s as f64)
}

/// A deadline that never expires, even on a busy machine. It is set because production code should set one.
pub(crate) const DEADLINE: std::time::Duration = std::time::Duration::from_secs(5);
