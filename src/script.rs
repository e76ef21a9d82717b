//! The Lua scripts, put together at compile time from `lua/`.

use std::sync::OnceLock;

use crate::quota::Kind;

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

/// One static for each algorithm, since a script that knew all five would cost
/// every call half as much again.
macro_rules! one_per_algorithm {
    ($visibility:vis $name:ident, $verb:literal) => {
        $visibility static $name: [Script; 5] = [
            Script::new(
                concat!($verb, ":token_bucket"),
                concat!(lua!("prelude"), lua!("text"), lua!("token_bucket"), "local algorithm = token_bucket\n", lua!($verb)),
            ),
            Script::new(
                concat!($verb, ":leaky_bucket"),
                concat!(
                    lua!("prelude"),
                    lua!("text"),
                    lua!("token_bucket"),
                    lua!("leaky_bucket"),
                    "local algorithm = leaky_bucket\n",
                    lua!($verb)
                ),
            ),
            Script::new(
                concat!($verb, ":fixed_window"),
                concat!(lua!("prelude"), lua!("text"), lua!("fixed_window"), "local algorithm = fixed_window\n", lua!($verb)),
            ),
            Script::new(
                concat!($verb, ":sliding_log"),
                concat!(lua!("prelude"), lua!("sliding_log"), "local algorithm = sliding_log\n", lua!($verb)),
            ),
            Script::new(
                concat!($verb, ":sliding_counter"),
                concat!(lua!("prelude"), lua!("text"), lua!("sliding_counter"), "local algorithm = sliding_counter\n", lua!($verb)),
            ),
        ];
    };
}

one_per_algorithm!(pub TAKE, "take");
one_per_algorithm!(pub REFUND, "refund");
one_per_algorithm!(pub PENALIZE, "penalize");
one_per_algorithm!(pub BLOCK, "block");

pub static GROUP: Script = Script::new(
    "group",
    concat!(
        lua!("prelude"),
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

pub static HEARTBEAT: Script = Script::new("heartbeat", concat!(lua!("prelude"), lua!("heartbeat")));

pub static ORDERS: Script = Script::new("orders", concat!(lua!("prelude"), lua!("orders")));

pub static ORDER: Script = Script::new("order", concat!(lua!("prelude"), lua!("order")));

/// What `health` asks, and nothing else.
pub static RIGHTS: Script = Script::new("rights", lua!("rights"));

/// All that read or write state.
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
        Kind::LeakyBucket(queue) => quota_args(&Kind::TokenBucket(queue.0)),
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
