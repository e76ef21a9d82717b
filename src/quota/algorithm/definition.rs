//! The parts of an algorithm. A new one, `NAME` with the Rust type `Name`, supplies:
//!
//! - `src/quota/algorithm/NAME.rs`, with `mod NAME;` and a line in `algorithms!` in `src/quota/algorithm.rs`:
//!   - `pub struct Name`: the validated numbers. Derives `Clone`, `Copy`, `Debug`, `PartialEq`, `Eq`, `Hash`;
//!     with feature `serde` also `Serialize`, and `deserialize!` for `Deserialize`.
//!   - `pub(super) static DEFINITION: Definition`, whose scripts `scripts!` composes.
//!   - `pub(super) const fn args(&self) -> [u64; 4]`: the numbers for the scripts. The first is the limit. If they
//!     depend on the time, as those of calendar windows do: `args_at`.
//!   - `pub(super) fn of_args(args: [u64; 4]) -> Result<Self, Error>`: the inverse of `args`; validates. Also
//!     takes `[capacity, units, period_us, 0]` for [`Parameters::Rate`], or `[limit, window_us, 0, 0]` for
//!     [`Parameters::Window`].
//!   - `pub(super) fn share(&self, instances: u64) -> Self`: the share of one of `instances` processes. The
//!     limit is divided by `instances`, which is at least 1, and rounded up.
//!   - `impl Algorithm for Name`. Required: `is_possible`, `settle`, `is_ahead`, `afford`, `charge`,
//!     `give_back`, `after`, `remaining`, `room`, `retry_after`, `reset_after`. With a window also `window`, else
//!     `window_us`, and `rate` with [`Parameters::Rate`]. Without [`Storage::Log`] also `parse`. Override each other method whose
//!     default is wrong for the algorithm; `stamp`, `stamp_at`, `leased_until` and `is_stamp_the_end` go together.
//! - `lua/quota/NAME.lua`: a function `NAME` that does the same on the server. `lua/prelude.lua` has its contract.
//! - Unless a stamp is the time of the charge, which counts for the window: `stamp_of` and `life` in
//!   `lua/reserve/holds.lua`, which are `stamp_at` and `counts_for` in Rust.
//! - `lua/take/fast_NAME.lua`, the fast path of a take. Without one, pass `fast_nothing` to `scripts!`.
//! - A variant of [`State`], if none fits.
//! - Constructors `Quota::NAME` and `Quota::try_NAME` in `src/quota.rs`.
//! - Another kind of state: a variant of [`Storage`], and its reading in `src/admin.rs`, `src/admin/usage.rs` and
//!   `lua/admin/inspect.lua`. Other parameters: a variant of [`Parameters`], and its uses in `src/quota.rs`,
//!   `src/admin/name.rs`, `crates/tidegate-cli/src/quota.rs` and `crates/tidegate-rules/src/limit_reader.rs`.
//! - If a better lower bound than `retry_after` is known for the waits behind others:
//!   `crates/tidegate-http/src/wait_queue/estimate.rs`.
//! - Its words in `lua/show.lua`, and its rows in the tables of `README.md`, `lua/README.md`,
//!   `docs/operate/cli.md`, `docs/reference/semantics.md` and `crates/tidegate-rules/src/format.md`.
//! - In tests, which do not compile without it: in `tests/support/src` its definition (`oracle.rs`), its state
//!   (`script.rs`), its quotas (`holds/plan.rs`), and what its holds promise (`holds/oracle.rs`, `holds/ledger.rs`); its
//!   excess in `tests/expiry.rs`.
//! - In tests, which fail without it: its quotas in `fixture.rs` and `plan.rs` (`Family`, `for_each_family`) of
//!   `tests/support/src`; its digests, quotas and invalid texts in `tests/scripts.rs`; its properties in
//!   `tests/behaviour/algorithms.rs`.
//! - Where nothing fails without it: the grammar and the tests of `src/quota/text.rs`; its
//!   bound in `src/local/lease/lease_options.rs` and `docs/guide/leases.md`; its size in `docs/operate/deploy.md`
//!   and `benches/src/bytes.rs`; its texts in `docs/guide/inspecting.md`.
//!
//! An algorithm that wraps another, as the leaky bucket does, follows it in `algorithms!` and in the files of
//! `scripts!`.
//!
//! An algorithm whose units are held and not charged, as those of the in-flight limit are, is in the second list of
//! `algorithms!`, and composes its scripts itself: it is no part of `GROUP`, and has no refund and no penalty. Its
//! decisions are in `src/quota/reference/in_flight.rs`, and the parts of its calls in `src/store/redis/acquire.rs`.

use super::in_flight::Holdings;
use super::log::Log;
use crate::quota::{Rate, Window};
use crate::script::Scripts;

/// Implements `Deserialize` from these fields and no others, by a constructor.
macro_rules! deserialize {
    ($name:ident { $($(#[$attribute:meta])? $field:ident: $type:ty),+ } $built:expr) => {
        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Data {
                    $($(#[$attribute])? $field: $type),+
                }
                let Data { $($field),+ } = Data::deserialize(deserializer)?;
                $built.map_err(|invalid| serde::de::Error::custom(invalid.0))
            }
        }
    };
}
pub(super) use deserialize;

/// The properties of an algorithm that are the same for all its quotas.
#[derive(Debug)]
pub struct Definition {
    /// The name in Redis keys, scripts, rules, metrics and serialized quotas, such as `token_bucket`.
    pub name: &'static str,
    /// The scripts that read and write a state of this algorithm.
    pub scripts: &'static Scripts,
    /// How Redis stores a state of this algorithm.
    pub storage: Storage,
    /// How many numbers of a [`RawState`] the scripts report at most, from 1 to 3. The others are 0.
    pub fields: usize,
    /// The measured cost of one key in Redis, relative to the other algorithms: see `MAX_WORK`.
    pub(crate) work: u32,
    /// The code in tokens of reservations, below 32: it never changes its meaning, and 5 is that of calendar windows.
    /// `None` for in-flight limits, which have no tokens.
    pub(crate) token_code: Option<u8>,
    /// The parameters of a quota besides its limit.
    pub parameters: Parameters,
    /// The words that name it in the text of a quota, such as `sliding log` in `20/h sliding log`: before the capacity with
    /// [`Parameters::Rate`], else at the end. Empty for a fixed window.
    pub words: &'static str,
    /// The placeholder of the limit in the help of the CLI, such as `CAPACITY`.
    pub limit_name: &'static str,
    /// The help text of the CLI option that sets the limit.
    pub help: &'static str,
}

/// The parameters of an algorithm besides its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameters {
    /// A rate; the limit is a capacity, which rules call `burst`.
    Rate,
    /// A window, to which the limit applies.
    Window,
    /// None: the limit is the number of units that may be held at the same time.
    Count,
}

/// How Redis stores a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// A hash, whose field `used` holds a text.
    Text,
    /// A string: a count, or a text while the key is blocked.
    Count,
    /// A sorted set of charges. A block is one of its members.
    Log,
    /// A hash, with a text in the field `held`, and a field for each holder.
    Holders,
}

/// The state that a store keeps for one key, except blocks. It holds used units and their time, never
/// remaining units, so a changed limit takes effect at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The key is unused: the store has no state.
    #[default]
    Untouched,
    /// The level of a token bucket or leaky bucket.
    Level {
        /// The used ticks at `at_us`, from 0 to 2^49.
        ticks: u64,
        /// Capacity in units, ticks that drain per µs, and ticks per unit, of the quota that wrote the level.
        by: [u64; 3],
        /// The time of the level, in µs since 1970.
        at_us: u64,
    },
    /// The count of a fixed window.
    Window {
        /// The used units in the window.
        used: u64,
        /// The end of the window, in ms since 1970.
        end_ms: u64,
    },
    /// The charges of a sliding log, with their times.
    Log(Log),
    /// The counts of a sliding counter.
    Counter {
        /// The used units in the window that begins at `start_us`.
        current: u64,
        /// The used units in the window before it.
        previous: u64,
        /// The start of the current window at the last write, in µs since 1970.
        start_us: u64,
    },
    /// The units of an in-flight limit, with their holders.
    InFlight(Holdings),
}

/// The maximum units of one penalty or refund, and the maximum µs of a block: larger numbers would not be
/// exact in the scripts. A limiter reduces larger ones to this.
pub const MAX_DEBT: u64 = 1 << 49;

/// The maximum number that a script stores or reports. Every integer up to it is exact in a double.
pub(crate) const EXACT: u64 = 1 << 53;

/// The usage of a key at one time, as a script reports it: one to three numbers, the others 0. The type of
/// each quota, such as [`TokenBucket`](super::TokenBucket), documents the numbers.
pub type RawState = [u64; 3];

/// The arithmetic of one quota, on the state of one key: see [`Kind::algorithm`](super::Kind::algorithm).
///
/// `now` and other points in time are in µs since 1970, durations in µs. `raw` is [settled](Self::settle) to
/// `now` and [possible](Self::is_possible). `cost` is 1 to the limit. `max_delay` is the longest accepted
/// delay in µs; `None` accepts any.
///
/// Limits, costs, charges and [`remaining`](Self::remaining) count the same units: a check of cost c charges c,
/// and an unused key admits any cost up to the limit. The fallback restores a state by a charge of the limit
/// less the remaining units.
///
/// Blocks are not part of a [`State`]: the [reference](crate::quota::reference) adds them.
// The methods are grouped by the modules that call them.
pub trait Algorithm {
    // Decisions.

    /// Returns whether the scripts can have reported this usage at `now`. The other methods rely on these
    /// bounds, and may panic outside of them.
    fn is_possible(&self, raw: RawState, now: u64) -> bool;

    /// Returns the usage at `now`.
    fn settle(&self, state: &State, now: u64) -> RawState;

    /// Returns whether the state is dated in the future, because the server's clock was stepped back.
    fn is_ahead(&self, state: &State, now: u64) -> bool;

    /// Returns how many of `n` checks of `cost` units each can be admitted.
    fn afford(&self, raw: RawState, n: u64, cost: u64, now: u64, max_delay: Option<u64>) -> u64;

    /// Adds `units` to the state, whose usage is `raw`, and dates it `now`. 0 units only change the date.
    fn charge(&self, state: &mut State, raw: RawState, units: u64, now: u64);

    /// Returns the units that a denial of `denied` checks adds to the state; 0 unless
    /// [`counts_denied`](Self::counts_denied).
    fn charge_of_denied(&self, _denied: u64, _cost: u64) -> u64 {
        0
    }

    /// Returns the stamp of a take, which its refunds pass to [`give_back`](Self::give_back). The stamp is
    /// the time of the take, or the end of its window: refunds depend on when their units were charged.
    fn stamp(&self, _raw: RawState, now: u64) -> u64 {
        now
    }

    /// Subtracts those of the `units` that still count. `stamp` is that of the take that charged them; `None`
    /// treats them as charged at `now`. Returns whether the state changed.
    fn give_back(&self, state: &mut State, units: u64, stamp: Option<u64>, now: u64) -> bool;

    /// Returns the stamp of a charge made at `charged_us`, for [`give_back`](Self::give_back). `state` is the
    /// state now.
    fn stamp_at(&self, _state: &State, charged_us: u64, _now: u64) -> u64 {
        charged_us
    }

    /// Returns for how long the units of a charge at `now` can count, in µs.
    fn counts_for(&self, _now: u64) -> u64 {
        self.window_us()
    }

    /// Returns the usage after a charge of `units`.
    fn after(&self, raw: RawState, units: u64, now: u64) -> RawState;

    /// Adds to `raw`, the usage before a take, the parts that depend on the `state` after it.
    fn complete(&self, raw: RawState, _state: &State, _cost: u64, _now: u64) -> RawState {
        raw
    }

    /// Returns the whole units left, from 0 to the limit.
    fn remaining(&self, raw: RawState, now: u64) -> u64;

    /// Returns how many whole units can be charged until `most` units are used, or until the state holds no more.
    fn room(&self, most: u64, raw: RawState, now: u64) -> u64;

    /// Returns the time until a check of `cost` can be admitted, in µs; 0 if it can be now. Above 0 for every
    /// check that [`afford`](Self::afford) denies, since callers wait that long.
    fn retry_after(&self, raw: RawState, cost: u64, max_delay: Option<u64>, now: u64) -> u64;

    /// Returns the time until the key is unused, in µs; 0 if it is now.
    fn reset_after(&self, raw: RawState, now: u64) -> u64;

    /// Returns when a key with this usage expires, in µs since 1970: when its state no longer matters, or
    /// slightly later if expiries then change less often.
    fn kept_until(&self, raw: RawState, now: u64) -> u64 {
        now + self.reset_after(raw, now)
    }

    /// Returns [`kept_until`](Self::kept_until) at the time when this same quota wrote the state; `None` if
    /// another quota wrote it, or if the algorithm does not compare expiries.
    fn was_kept_until(&self, _state: &State) -> Option<u64> {
        None
    }

    /// Returns how long the next admitted check waits for its turn, in µs.
    fn delay(&self, _raw: RawState) -> u64 {
        0
    }

    /// Returns whether quotas that need different lifetimes share a key, so that a denial may find an expiry
    /// that is too early.
    fn lengthens(&self) -> bool {
        false
    }

    // Redis keys, texts and headers.

    /// Returns the window, if the quota has one. The Redis keys of its states contain it.
    fn window(&self) -> Option<Window> {
        None
    }

    /// Returns the rate as it was given, if the quota has one.
    fn rate(&self) -> Option<Rate> {
        None
    }

    /// Returns the window that HTTP headers report, in µs. The window of a bucket is the time in which it
    /// fills, that of a calendar the mean length of its windows.
    fn window_us(&self) -> u64 {
        self.window().map_or(0, |window| window.us)
    }

    // Batches and the deny cache.

    /// Returns whether denied checks are charged too.
    fn counts_denied(&self) -> bool {
        false
    }

    /// Returns the usage at `now` of a key whose usage was `raw` at the earlier time `at`, and which was not
    /// changed since.
    fn later(&self, raw: RawState, at: u64, now: u64) -> RawState {
        let mut state = State::default();
        self.charge(&mut state, raw, 0, at);
        self.settle(&state, now)
    }

    /// Returns whether the usage at one time determines the usage at later times without checks, and the
    /// answers to checks of any cost.
    fn predicts(&self) -> bool {
        true
    }

    // Delays and leases.

    /// Returns whether admitted checks can have a [`delay`](Self::delay).
    fn has_queue(&self) -> bool {
        false
    }

    /// Returns the reason why units of this quota cannot be [leased](crate::Lease); `None` if they can.
    fn unleasable(&self) -> Option<&'static str> {
        None
    }

    /// Returns when the window of a take with this stamp ends, in µs since 1970, if leased units must not be
    /// spent later.
    fn leased_until(&self, _stamp: u64) -> Option<u64> {
        None
    }

    /// Returns whether the stamp is the time at which the key resets, instead of the time of the take.
    fn is_stamp_the_end(&self) -> bool {
        false
    }

    // The command line.

    /// Returns the used units, with the fraction of a level.
    fn used(&self, [used, ..]: RawState, _now: u64) -> f64 {
        used as f64
    }

    /// Parses the stored text without its block. Returns the state, and the
    /// [arguments](super::Kind::args) of the quota that wrote it if the text contains them. Returns `None` if
    /// tidegate never writes this text, and for a state that is not stored as text.
    fn parse(&self, _text: &str) -> Option<(State, Option<[u64; 4]>)> {
        None
    }
}

/// Parses a number that a script has written.
pub(crate) fn exact_number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number <= EXACT)
}
