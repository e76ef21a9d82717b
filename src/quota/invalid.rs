//! The reasons why numbers do not form a valid quota. Available in `const` contexts too.

use crate::error::Error;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Invalid {
    RateUnits,
    Period,
    Capacity,
    TooSlow,
    Limit,
    Window,
    CounterRange,
    NotFixedWindow,
    NotSlidingLog,
    Offset,
}

impl Invalid {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::RateUnits => {
                "a rate needs 1 to 2^48 units; to refuse everything use OnFailure or a block, not a rate of 0"
            }
            Self::Period => "a rate's period must be whole microseconds, from 1 us to 10 years",
            Self::Capacity => "a capacity must be 1 to 2^48 units",
            Self::TooSlow => {
                "this rate needs more than 2^48 us (8.9 years) to fill the capacity: raise the rate or lower the capacity"
            }
            Self::Limit => "a limit must be 1 to 2^48 units",
            Self::Window => "a window must be whole microseconds, from 1 ms to 10 years",
            Self::CounterRange => {
                "a sliding counter's limit times its window in microseconds must be at most 2^52: shorten the window or use another algorithm"
            }
            Self::NotFixedWindow => {
                "only a fixed window can be aligned to the clock (a sliding counter always is)"
            }
            Self::NotSlidingLog => "only a sliding log can count denied requests",
            Self::Offset => "an offset must be whole microseconds and shorter than the window",
        }
    }

    pub(crate) const fn panic(self) -> ! {
        panic!("{}", self.text())
    }

    pub(crate) fn into_error(self) -> Error {
        Error::config(self.text())
    }
}

/// Each of these items compiles:
///
/// ```
/// # use std::time::Duration;
/// # use tidegate::{Quota, Rate};
/// const MINUTE: Duration = Duration::from_secs(60);
/// const _: Rate = Rate::new(1, MINUTE);
/// const _: Quota = Quota::token_bucket(1, Rate::per_minute(5));
/// const _: Quota = Quota::leaky_bucket(1, Rate::per_minute(5));
/// const _: Quota = Quota::fixed_window(1, MINUTE);
/// const _: Quota = Quota::sliding_log(1, MINUTE);
/// const _: Quota = Quota::sliding_counter(1, MINUTE);
/// const _: Quota = Quota::fixed_window(1, MINUTE).aligned_to_clock();
/// const _: Quota = Quota::fixed_window(1, MINUTE).aligned_to_clock_at(Duration::from_secs(59));
/// const _: Quota = Quota::sliding_log(1, MINUTE).count_denied();
/// ```
///
/// None of these items compiles:
///
/// ```compile_fail,E0080
/// # use std::time::Duration;
/// # use tidegate::{Quota, Rate};
/// # const MINUTE: Duration = Duration::from_secs(60);
/// const _: Rate = Rate::new(0, MINUTE);
/// ```
///
/// ```compile_fail,E0080
/// # use std::time::Duration;
/// # use tidegate::{Quota, Rate};
/// # const MINUTE: Duration = Duration::from_secs(60);
/// const _: Quota = Quota::token_bucket(0, Rate::per_minute(5));
/// ```
///
/// ```compile_fail,E0080
/// # use std::time::Duration;
/// # use tidegate::{Quota, Rate};
/// # const MINUTE: Duration = Duration::from_secs(60);
/// const _: Quota = Quota::leaky_bucket(0, Rate::per_minute(5));
/// ```
///
/// ```compile_fail,E0080
/// # use std::time::Duration;
/// # use tidegate::{Quota, Rate};
/// # const MINUTE: Duration = Duration::from_secs(60);
/// const _: Quota = Quota::fixed_window(0, MINUTE);
/// ```
///
/// ```compile_fail,E0080
/// # use std::time::Duration;
/// # use tidegate::{Quota, Rate};
/// # const MINUTE: Duration = Duration::from_secs(60);
/// const _: Quota = Quota::sliding_log(0, MINUTE);
/// ```
///
/// ```compile_fail,E0080
/// # use std::time::Duration;
/// # use tidegate::{Quota, Rate};
/// # const MINUTE: Duration = Duration::from_secs(60);
/// const _: Quota = Quota::sliding_counter(0, MINUTE);
/// ```
///
/// ```compile_fail,E0080
/// # use std::time::Duration;
/// # use tidegate::{Quota, Rate};
/// # const MINUTE: Duration = Duration::from_secs(60);
/// const _: Quota = Quota::sliding_counter(1, MINUTE).aligned_to_clock();
/// ```
///
/// ```compile_fail,E0080
/// # use std::time::Duration;
/// # use tidegate::{Quota, Rate};
/// # const MINUTE: Duration = Duration::from_secs(60);
/// const _: Quota = Quota::fixed_window(1, MINUTE).aligned_to_clock_at(MINUTE);
/// ```
///
/// ```compile_fail,E0080
/// # use std::time::Duration;
/// # use tidegate::{Quota, Rate};
/// # const MINUTE: Duration = Duration::from_secs(60);
/// const _: Quota = Quota::fixed_window(1, MINUTE).count_denied();
/// ```
#[cfg(doctest)]
mod in_a_const {}
