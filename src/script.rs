//! The Lua scripts, composed from the files in `lua/` at compile time.

use std::sync::OnceLock;

use crate::quota::{Kind, LeakyBucket};

/// A script. Redis identifies it by the digest of its text.
#[derive(Debug)]
pub struct Script {
    /// The verb as in `lua/`, followed by the algorithm if each algorithm has its own script:
    /// `take:token_bucket`.
    pub name: &'static str,
    pub text: &'static str,
    digest: OnceLock<String>,
}

impl Script {
    const fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text, digest: OnceLock::new() }
    }

    /// Returns the SHA-1 digest that EVALSHA takes.
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }
}

macro_rules! lua {
    ($file:literal) => {
        include_str!(concat!("../lua/", $file, ".lua"))
    };
}

/// Composes a script that needs the time, numbers or expiry: all but the takes, `reset` and `rights`.
macro_rules! with_prelude {
    ($($rest:expr),+ $(,)?) => {
        concat!(lua!("now"), lua!("prelude"), $($rest),+)
    };
}

/// Composes a take: the fast path, then a function that creates the slow path. Only calls that need the slow
/// path run that function.
macro_rules! take {
    ($algorithm:literal, $fast_path:expr, $slow_path:expr) => {
        Script::new(
            concat!("take:", $algorithm),
            concat!(
                lua!("now"),
                $fast_path,
                "local function slow_path(call, format, now, stamp)\n",
                lua!("prelude"),
                $slow_path,
                "local algorithm = ",
                $algorithm,
                "\n",
                lua!("slow_path"),
                "end\n",
                lua!("take")
            ),
        )
    };
}

/// Checks and charges keys of one quota. Each algorithm has its own script, because a script with all five
/// would cost every call half as much again.
pub static TAKE: [Script; 5] = [
    take!("token_bucket", lua!("fast_token_bucket"), concat!(lua!("hash_state"), lua!("token_bucket"))),
    take!(
        "leaky_bucket",
        lua!("fast_token_bucket"),
        concat!(lua!("hash_state"), lua!("token_bucket"), lua!("leaky_bucket"))
    ),
    take!("fixed_window", lua!("fast_fixed_window"), concat!(lua!("hash_state"), lua!("fixed_window"))),
    take!("sliding_log", lua!("fast_nothing"), lua!("sliding_log")),
    take!(
        "sliding_counter",
        lua!("fast_sliding_counter"),
        concat!(lua!("hash_state"), lua!("sliding_counter"))
    ),
];

/// Composes a verb for each algorithm, in the order of [`TAKE`].
macro_rules! one_per_algorithm {
    ($visibility:vis $name:ident, $verb:literal) => {
        $visibility static $name: [Script; 5] = [
            one_per_algorithm!($verb, "token_bucket", lua!("hash_state"), lua!("token_bucket")),
            one_per_algorithm!(
                $verb,
                "leaky_bucket",
                lua!("hash_state"),
                lua!("token_bucket"),
                lua!("leaky_bucket")
            ),
            one_per_algorithm!($verb, "fixed_window", lua!("hash_state"), lua!("fixed_window")),
            one_per_algorithm!($verb, "sliding_log", lua!("sliding_log")),
            one_per_algorithm!($verb, "sliding_counter", lua!("hash_state"), lua!("sliding_counter")),
        ];
    };
    ($verb:literal, $algorithm:literal, $($file:expr),+) => {
        Script::new(
            concat!($verb, ":", $algorithm),
            with_prelude!($($file),+, "local algorithm = ", $algorithm, "\n", lua!($verb)),
        )
    };
}

one_per_algorithm!(pub REFUND, "refund");
one_per_algorithm!(pub PENALIZE, "penalize");
one_per_algorithm!(pub BLOCK, "block");

pub static GROUP: Script = Script::new(
    "group",
    with_prelude!(
        lua!("hash_state"),
        lua!("token_bucket"),
        lua!("leaky_bucket"),
        lua!("fixed_window"),
        lua!("sliding_log"),
        lua!("sliding_counter"),
        lua!("group")
    ),
);

pub static RESET: Script = Script::new("reset", lua!("reset"));

pub static HEARTBEAT: Script = Script::new("heartbeat", with_prelude!(lua!("heartbeat")));

pub static OVERRIDES: Script = Script::new("overrides", with_prelude!(lua!("overrides")));

pub static OVERRIDE: Script = Script::new("override", with_prelude!(lua!("override")));

/// Lists missing permissions. Only `health` calls it.
pub static RIGHTS: Script = Script::new("rights", lua!("rights"));

/// Reads the contents of keys. Only the command line calls it.
#[cfg(feature = "cli")]
pub static INSPECT: Script = Script::new("inspect", with_prelude!(lua!("inspect")));

/// Returns every script with which a limiter reads or writes state.
pub fn all() -> impl Iterator<Item = &'static Script> {
    TAKE.iter()
        .chain(&REFUND)
        .chain(&PENALIZE)
        .chain(&BLOCK)
        .chain([&GROUP, &RESET, &HEARTBEAT, &OVERRIDES, &OVERRIDE])
}

/// Returns the script of `scripts` (such as [`TAKE`]) for a quota's algorithm.
pub fn of(scripts: &'static [Script; 5], kind: &Kind) -> &'static Script {
    &scripts[match kind {
        Kind::TokenBucket(_) => 0,
        Kind::LeakyBucket(_) => 1,
        Kind::FixedWindow(_) => 2,
        Kind::SlidingLog(_) => 3,
        Kind::SlidingCounter(_) => 4,
    }]
}

/// Returns whether a block is stored as a separate member of the key, instead of in the text of the state.
pub fn is_block_a_member(kind: &Kind) -> bool {
    matches!(kind, Kind::SlidingLog(_))
}

/// Returns a quota as the four numbers that the scripts take. The header of the algorithm's Lua file defines
/// them.
pub fn quota_args(kind: &Kind) -> [u64; 4] {
    match *kind {
        Kind::TokenBucket(bucket) => [bucket.capacity, bucket.rate, bucket.per, 0],
        Kind::LeakyBucket(LeakyBucket(queue)) => [queue.capacity, queue.rate, queue.per, 1],
        Kind::FixedWindow(fixed) => [
            fixed.limit,
            fixed.window_us,
            u64::from(fixed.aligned_us.is_some()),
            fixed.aligned_us.unwrap_or(0),
        ],
        Kind::SlidingLog(log) => [log.limit, log.window_us, u64::from(log.count_denied), 0],
        Kind::SlidingCounter(counter) => [counter.limit, counter.window_us, 0, 0],
    }
}
