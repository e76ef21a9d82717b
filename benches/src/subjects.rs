//! All that is asked for decisions, one file each.

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

/// Who asks Redis, as its own documentation recommends.
pub(crate) trait Subject: Sized + Send + Sync + 'static {
    const INFO: Info;

    /// For one case: what differs between cases is the limit.
    fn open(url: &str, case: Case) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// A key that has this number among those of the case. The subject's name is in it where the
    /// crate has no prefix of its own, since all share the server.
    fn key(case: Case, number: usize) -> String {
        format!("{}:{}:{}:user:{number}", *RUN, Self::INFO.name, case.family())
    }

    /// May one pass?
    fn check(&self, key: &str) -> impl Future<Output = Result<bool, Failure>> + Send;
}

/// Who mostly decides in this process, on the caller's thread.
pub(crate) trait Local: Sized + Send + Sync + 'static {
    const INFO: Info;

    type Key: Send + Sync;

    /// How often each key is asked for to warm it up.
    const OFTEN: usize = 1;

    fn open(url: &str, case: Case, runtime: &Handle) -> Result<Self, Failure>;

    /// Made once: what a key is made of is the caller's affair.
    fn key(name: &str) -> Result<Self::Key, Failure>;

    fn check(&self, key: &Self::Key) -> Result<Verdict, Failure>;
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Verdict {
    pub(crate) allowed: bool,
    /// Redis had to be asked, and was waited for.
    pub(crate) fell_back: bool,
}

/// What a row says of its subject.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Info {
    /// As the JSON calls it.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What it decides otherwise than a token bucket by Redis's clock.
    pub(crate) note: &'static str,
    pub(crate) kind: Kind,
    /// The largest capacity that it knows.
    pub(crate) most: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    ByHand,
    Peer,
}

/// Who takes part in a case.
#[derive(Default)]
pub(crate) struct Field {
    pub(crate) present: Vec<Box<dyn Runs>>,
    /// Who cannot, and why.
    pub(crate) absent: Vec<(Info, String)>,
}

/// On this server: all that can on the first, and on another one those that need it, with ours and a
/// baseline beside them, where a ratio to the best peer is wanted.
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
        // Beside the peers that count windows.
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

/// What every key of this run begins with, so that those on somebody's server are found again.
pub(crate) static RUN: LazyLock<String> = LazyLock::new(|| format!("ben-{:04x}", fastrand::u16(..)));

/// What people write when they write it themselves: a bucket in a hash, in floating point.
static FLAT: LazyLock<redis::Script> =
    LazyLock::new(|| redis::Script::new(include_str!("subjects/token_bucket.lua")));

/// Its arguments for a limit.
fn flat_args(case: Case) -> (u64, f64) {
    let limit = case.limit();
    (limit.capacity, 1.0 / limit.refill_s as f64)
}

/// Longer than any answer takes even on a busy machine: a deadline is set, as it should be, and never
/// decides.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(5);
