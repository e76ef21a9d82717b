//! The Lua scripts, put together at compile time from `lua/`.

use std::sync::OnceLock;

use crate::quota::{Kind, LeakyBucket};

/// One script, known to Redis by the digest of its text.
#[derive(Debug)]
pub struct Script {
    /// As in `lua/`, with the algorithm where there is one script for each.
    pub name: &'static str,
    pub text: &'static str,
    digest: OnceLock<String>,
}

impl Script {
    const fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text, digest: OnceLock::new() }
    }

    /// The SHA-1 that EVALSHA takes.
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }
}

macro_rules! lua {
    ($file:literal) => {
        include_str!(concat!("../lua/", $file, ".lua"))
    };
}

/// What stands before every script that is more than a loop.
macro_rules! begun {
    ($($rest:expr),+ $(,)?) => {
        concat!(lua!("clock"), lua!("prelude"), $($rest),+)
    };
}

/// The takes: what is usual first, and all else made only by a call that needs it.
macro_rules! take {
    ($algorithm:literal, $usual:expr, $in_full:expr) => {
        Script::new(
            concat!("take:", $algorithm),
            concat!(
                lua!("clock"),
                $usual,
                "local function in_full(call, format, now, stamp)\n",
                lua!("prelude"),
                $in_full,
                "local algorithm = ",
                $algorithm,
                "\n",
                lua!("in_full"),
                "end\n",
                lua!("take")
            ),
        )
    };
}

/// One for each algorithm, since a script that knew all five would cost every call half as
/// much again.
pub static TAKE: [Script; 5] = [
    take!("token_bucket", lua!("usual_token_bucket"), concat!(lua!("text"), lua!("token_bucket"))),
    take!(
        "leaky_bucket",
        lua!("usual_token_bucket"),
        concat!(lua!("text"), lua!("token_bucket"), lua!("leaky_bucket"))
    ),
    take!("fixed_window", lua!("usual_fixed_window"), concat!(lua!("text"), lua!("fixed_window"))),
    take!("sliding_log", lua!("usual_nothing"), lua!("sliding_log")),
    take!("sliding_counter", lua!("usual_sliding_counter"), concat!(lua!("text"), lua!("sliding_counter"))),
];

/// One for each algorithm, as the takes.
macro_rules! one_per_algorithm {
    ($visibility:vis $name:ident, $verb:literal) => {
        $visibility static $name: [Script; 5] = [
            one_per_algorithm!($verb, "token_bucket", lua!("text"), lua!("token_bucket")),
            one_per_algorithm!($verb, "leaky_bucket", lua!("text"), lua!("token_bucket"), lua!("leaky_bucket")),
            one_per_algorithm!($verb, "fixed_window", lua!("text"), lua!("fixed_window")),
            one_per_algorithm!($verb, "sliding_log", lua!("sliding_log")),
            one_per_algorithm!($verb, "sliding_counter", lua!("text"), lua!("sliding_counter")),
        ];
    };
    ($verb:literal, $algorithm:literal, $($file:expr),+) => {
        Script::new(
            concat!($verb, ":", $algorithm),
            begun!($($file),+, "local algorithm = ", $algorithm, "\n", lua!($verb)),
        )
    };
}

one_per_algorithm!(pub REFUND, "refund");
one_per_algorithm!(pub PENALIZE, "penalize");
one_per_algorithm!(pub BLOCK, "block");

pub static GROUP: Script = Script::new(
    "group",
    begun!(
        lua!("text"),
        lua!("token_bucket"),
        lua!("leaky_bucket"),
        lua!("fixed_window"),
        lua!("sliding_log"),
        lua!("sliding_counter"),
        lua!("group")
    ),
);

pub static RESET: Script = Script::new("reset", lua!("reset"));

pub static HEARTBEAT: Script = Script::new("heartbeat", begun!(lua!("heartbeat")));

pub static ORDERS: Script = Script::new("orders", begun!(lua!("orders")));

pub static ORDER: Script = Script::new("order", begun!(lua!("order")));

/// What `health` asks, and nothing else.
pub static RIGHTS: Script = Script::new("rights", lua!("rights"));

/// What the command line asks.
#[cfg(feature = "cli")]
pub static INSPECT: Script = Script::new("inspect", begun!(lua!("inspect")));

/// All that a limiter reads or writes state by.
pub fn all() -> impl Iterator<Item = &'static Script> {
    TAKE.iter()
        .chain(&REFUND)
        .chain(&PENALIZE)
        .chain(&BLOCK)
        .chain([&GROUP, &RESET, &HEARTBEAT, &ORDERS, &ORDER])
}

/// The script of `scripts` (such as [`TAKE`]) for a quota's algorithm.
pub fn of(scripts: &'static [Script; 5], kind: &Kind) -> &'static Script {
    &scripts[match kind {
        Kind::TokenBucket(_) => 0,
        Kind::LeakyBucket(_) => 1,
        Kind::FixedWindow(_) => 2,
        Kind::SlidingLog(_) => 3,
        Kind::SlidingCounter(_) => 4,
    }]
}

/// Whether a block is a member of its own, and not a part of the state's text.
pub fn is_block_a_member(kind: &Kind) -> bool {
    matches!(kind, Kind::SlidingLog(_))
}

/// A quota as the scripts take it: four numbers, whose meaning stands in the
/// header of the algorithm's file.
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
