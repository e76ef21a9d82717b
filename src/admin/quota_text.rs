//! Quotas as operators write them.

use std::time::Duration;

use crate::error::Error;
use crate::quota::algorithm::{Definition, Parameters};
use crate::quota::{Quota, Rate};

/// Returns the quota of an algorithm with these numbers.
///
/// # Errors
///
/// [`Error::is_config`] if the algorithm needs a number that is missing, or does not use one that is given, or if there
/// is no such quota.
pub fn quota_of(
    algorithm: &'static Definition,
    limit: u64,
    rate: Option<Rate>,
    window: Option<Duration>,
) -> Result<Quota, Error> {
    let needs = match (algorithm.parameters, rate, window) {
        (Parameters::Rate, Some(rate), None) => return Quota::with_rate(algorithm, limit, rate),
        (Parameters::Window, None, Some(window)) => return Quota::with_window(algorithm, limit, window),
        (Parameters::Count, None, None) => return Quota::with_count(algorithm, limit),
        (Parameters::Rate, ..) => "a rate, such as 5/s, and no window",
        (Parameters::Window, ..) => "a window, such as 60s, and no rate",
        (Parameters::Count, ..) => "neither a rate nor a window",
    };
    Err(Error::config(format!("the algorithm {} needs {needs}", algorithm.name)))
}
