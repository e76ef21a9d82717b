//! The reasons why numbers do not form a valid quota. Available in `const` contexts too.

use crate::error::Error;

/// The text says what is valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Invalid(pub(crate) &'static str);

impl Invalid {
    pub(crate) const fn panic(self) -> ! {
        panic!("{}", self.0)
    }

    pub(crate) fn into_error(self) -> Error {
        Error::config(self.0)
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
