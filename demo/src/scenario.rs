//! The load of the instances: the same keys, with one gate per algorithm.

use std::time::Duration;

use tidegate::{Quota, Rate};

/// Few keys, so that all instances compete for each of them.
pub(crate) const KEYS: [&str; 4] = ["user:1", "user:2", "user:3", "user:4"];

/// Concurrent tasks per instance.
pub(crate) const TASKS: usize = 8;

/// Low enough that the checks of a small machine exceed it several times.
pub(crate) const LIMIT: u64 = 400;
/// Does not divide a second, so that few runs end together with a window.
pub(crate) const WINDOW: Duration = Duration::from_millis(800);

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    /// The name in the JSON and of the gate.
    pub(crate) name: &'static str,
    /// The title in the table.
    pub(crate) title: &'static str,
    pub(crate) quota: Quota,
    /// The redis-cli command that shows a key, and its arguments after the key.
    pub(crate) look: (&'static str, &'static [&'static str]),
}

const HASH: (&str, &[&str]) = ("HGETALL", &[]);
const COUNT: (&str, &[&str]) = ("GET", &[]);

pub(crate) const SCENARIOS: [Scenario; 6] = [
    Scenario {
        name: "token_bucket",
        title: "token bucket",
        quota: Quota::token_bucket(LIMIT, Rate::new(LIMIT, WINDOW)),
        look: HASH,
    },
    Scenario {
        name: "leaky_bucket",
        title: "leaky bucket",
        quota: Quota::leaky_bucket(LIMIT, Rate::new(LIMIT, WINDOW)),
        look: HASH,
    },
    Scenario {
        name: "fixed_window",
        title: "fixed window, from first hit",
        quota: Quota::fixed_window(LIMIT, WINDOW),
        look: COUNT,
    },
    Scenario {
        name: "fixed_window_by_clock",
        title: "fixed window, by the clock",
        quota: Quota::fixed_window(LIMIT, WINDOW).aligned_to_clock(),
        look: COUNT,
    },
    Scenario {
        name: "sliding_log",
        title: "sliding log",
        quota: Quota::sliding_log(LIMIT, WINDOW),
        // The newest two of several hundred entries.
        look: ("ZREVRANGE", &["0", "1", "WITHSCORES"]),
    },
    Scenario {
        name: "sliding_counter",
        title: "sliding counter",
        quota: Quota::sliding_counter(LIMIT, WINDOW),
        look: HASH,
    },
];
