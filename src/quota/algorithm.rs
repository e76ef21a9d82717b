//! The algorithms: the numbers of a quota ([`Kind`]), the state of a key ([`State`]), and the arithmetic
//! between them ([`Algorithm`]). The scripts in `lua/` do the same on the server; tests compare the two.
//!
//! A service uses [`Quota`](crate::Quota) instead. This module is for tools that read configuration files or
//! the state in Redis, and for tests. [`reference`](crate::quota::reference) decides checks with it.
//!
//! Not covered by semantic versioning: a minor version may change what is here.

// Everything that depends on the algorithm is in its file. `definition.rs` lists the parts of an algorithm.

mod definition;
mod fixed_window;
mod in_flight;
mod leaky_bucket;
mod log;
mod sliding_counter;
mod sliding_log;
mod token_bucket;

pub use self::definition::*;
pub use self::in_flight::{Holding, Holdings, REPORT};
pub(crate) use self::in_flight::{QUARTER_US, written_at};
pub use self::log::{Log, LogEntry};
use crate::error::Error;
use crate::quota::Calendar;
use crate::quota::reference::{Answer, Item, Record, Taken};
use crate::script::{
    ADAPT, HEARTBEAT, OVERRIDE, OVERRIDES, PERMIT_LEASE, PUBLISH, RELEASES, RESET, Script, Scripts,
    allow_oom, lua, with_bound,
};

/// Lists the algorithms, in the order of their scripts and of the CLI: those of rate limits, then those of
/// in-flight limits, whose units are held by processes and not charged.
macro_rules! algorithms {
    (
        rate: $($(#[$doc:meta])* $module:ident::$name:ident),+;
        in_flight: $($(#[$held_doc:meta])* $held_module:ident::$held:ident),+;
    ) => {
        $(pub use self::$module::$name;)+
        $(pub use self::$held_module::$held;)+

        /// An algorithm with its numbers. [`Quota::kind`](crate::Quota::kind) returns one with valid numbers;
        /// with other numbers the methods may panic.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(tag = "algorithm", rename_all = "snake_case"))]
        pub enum Kind {
            $($(#[$doc])* $name($name),)+
            $($(#[$held_doc])* $held($held),)+
        }

        impl Kind {
            /// Returns the arithmetic of this quota.
            #[must_use]
            pub fn algorithm(&self) -> &dyn Algorithm {
                match self {
                    $(Self::$name(kind) => kind,)+
                    $(Self::$held(kind) => kind,)+
                }
            }

            /// Returns the properties of the algorithm.
            #[must_use]
            pub const fn definition(&self) -> &'static Definition {
                match self {
                    $(Self::$name(_) => &self::$module::DEFINITION,)+
                    $(Self::$held(_) => &self::$held_module::DEFINITION,)+
                }
            }

            /// Makes a quota of this algorithm from the numbers that [`args`](Self::args) returns.
            pub(crate) fn of_args(algorithm: &Definition, args: [u64; 4]) -> Result<Self, Error> {
                $(if algorithm.name == self::$module::DEFINITION.name {
                    return $name::of_args(args).map(Self::$name);
                })+
                $(if algorithm.name == self::$held_module::DEFINITION.name {
                    return $held::of_args(args).map(Self::$held);
                })+
                Err(Error::config("no such algorithm"))
            }

            /// Returns the quota of one of `instances`, at least 1: see `Quota::share`.
            pub(crate) fn share(&self, instances: u64) -> Self {
                match self {
                    $(Self::$name(kind) => Self::$name(kind.share(instances)),)+
                    $(Self::$held(kind) => Self::$held(kind.share(instances)),)+
                }
            }

            /// Returns the quota as the four numbers that the scripts take. The first is the limit, in units.
            /// The header of the Lua file defines the others. Of calendar windows, see [`args_at`](Self::args_at).
            #[must_use]
            pub const fn args(&self) -> [u64; 4] {
                match self {
                    $(Self::$name(kind) => kind.args(),)+
                    $(Self::$held(kind) => kind.args(),)+
                }
            }

            // Every check calls these: static dispatch inlines them.

            /// See [`Algorithm::counts_denied`].
            pub(crate) fn counts_denied(&self) -> bool {
                match self {
                    $(Self::$name(kind) => kind.counts_denied(),)+
                    $(Self::$held(kind) => kind.counts_denied(),)+
                }
            }

            /// See [`Item`].
            #[inline]
            pub(crate) fn read(&self, item: &mut Item<'_>, n: u64, now: u64) -> u64 {
                match self {
                    $(Self::$name(kind) => item.read_by(kind, n, now),)+
                    $(Self::$held(kind) => item.read_by(kind, n, now),)+
                }
            }

            /// See [`Record`].
            #[inline]
            pub(crate) fn write(&self, record: &mut Record, raw: RawState, units: u64, now: u64) {
                match self {
                    $(Self::$name(kind) => record.write_by(kind, raw, units, now),)+
                    $(Self::$held(kind) => record.write_by(kind, raw, units, now),)+
                }
            }

            /// See [`Taken::answer`].
            #[inline]
            pub(crate) fn answer(&self, taken: &Taken<'_>, index: u64) -> Answer {
                match self {
                    $(Self::$name(kind) => taken.answer_by(kind, index),)+
                    $(Self::$held(kind) => taken.answer_by(kind, index),)+
                }
            }

            /// See [`Algorithm::predicts`].
            pub(crate) fn predicts(&self) -> bool {
                match self {
                    $(Self::$name(kind) => kind.predicts(),)+
                    $(Self::$held(kind) => kind.predicts(),)+
                }
            }
        }

        /// Lists all algorithms, in the order of the CLI.
        pub static ALGORITHMS: [&Definition; NAMES.len()] =
            [$(&self::$module::DEFINITION,)+ $(&self::$held_module::DEFINITION,)+];

        /// Lists the [names](Definition::name) of all algorithms, in the order of [`ALGORITHMS`].
        pub const NAMES: [&str; [$(stringify!($module),)+ $(stringify!($held_module),)+].len()] =
            [$(self::$module::DEFINITION.name,)+ $(self::$held_module::DEFINITION.name,)+];

        /// Checks groups of keys of any quotas: `lua/take/group.lua`. A group admits and charges all its keys or
        /// none.
        pub static GROUP: Script = algorithms!(@mixed bounded[with_bound!(lua!("prelude"))], "group", [$($module),+], "take/group");

        /// Checks groups of keys that include keys of in-flight limits: `lua/in_flight/acquire_all.lua`.
        pub static ACQUIRE_ALL: Script =
            algorithms!(@mixed bounded[with_bound!(lua!("prelude"))], "acquire_all", [$($module,)+ $($held_module),+], "in_flight/acquire_all");

        /// Checks groups of which at least one key has holds: reservations, and takes of gates that end their
        /// holds: `lua/reserve/reserve.lua`.
        pub static RESERVE: Script = algorithms!(@mixed bounded[with_bound!(lua!("prelude"))], "reserve", [$($module),+], "reserve/holds", "reserve/reserve");

        /// Checks groups of which at least one key is of a gate with a ban: `lua/take/ban.lua`.
        pub static BAN: Script = algorithms!(@mixed bounded[with_bound!(lua!("prelude"))], "ban", [$($module),+], "take/ban");

        /// Commits and cancels holds by their ids: `lua/reserve/settle.lua`.
        pub static SETTLE: Script = algorithms!(@mixed new[allow_oom!(), lua!("now"), lua!("prelude")], "settle", [$($module),+], "reserve/holds", "reserve/settle");
    };
    // A script that decides on keys of any quotas: these files, before and after all algorithms.
    (@mixed $new:ident[$($first:expr),+], $name:literal, [$($module:ident),+], $($file:literal),+) => {
        Script::$new(
            $name,
            concat!(
                $($first,)+
                lua!("quota/hash_state"),
                $(lua!(concat!("quota/", stringify!($module))),)+
                "local algorithms = {",
                $(concat!(" ", stringify!($module), " = ", stringify!($module), ","),)+
                " }\n",
                $(lua!($file)),+
            ),
        )
    };
}

algorithms! {
    rate:
    /// See [`Quota::token_bucket`](crate::Quota::token_bucket).
    token_bucket::TokenBucket,
    /// See [`Quota::leaky_bucket`](crate::Quota::leaky_bucket).
    leaky_bucket::LeakyBucket,
    /// See [`Quota::fixed_window`](crate::Quota::fixed_window).
    fixed_window::FixedWindow,
    /// See [`Quota::sliding_log`](crate::Quota::sliding_log).
    sliding_log::SlidingLog,
    /// See [`Quota::sliding_counter`](crate::Quota::sliding_counter).
    sliding_counter::SlidingCounter;
    in_flight:
    /// See [`Quota::in_flight`](crate::Quota::in_flight).
    in_flight::InFlight;
}

impl Kind {
    /// Returns the [numbers](Self::args) of a call to the scripts for which the server's clock shows `now_us`, in µs
    /// since 1970. Only those of calendar windows depend on it: they are valid while the server's clock shows a time
    /// in the same window, from the last number on, for as many µs as the second.
    #[must_use]
    pub fn args_at(&self, now_us: u64) -> [u64; 4] {
        match self {
            Self::FixedWindow(fixed) => fixed.args_at(now_us),
            _ => self.args(),
        }
    }

    /// Returns the calendar of a calendar window.
    pub(crate) const fn calendar(&self) -> Option<Calendar> {
        match self {
            Self::FixedWindow(fixed) => fixed.calendar,
            _ => None,
        }
    }

    /// Returns how many numbers of a [`RawState`] the scripts report for this quota: at most
    /// [`Definition::fields`].
    #[must_use]
    pub const fn fields(&self) -> usize {
        self.definition().fields
    }
}

impl Definition {
    /// Returns the algorithm with this [`name`](Self::name), such as `token_bucket`.
    #[must_use]
    pub fn of_name(name: &str) -> Option<&'static Self> {
        ALGORITHMS.into_iter().find(|definition| definition.name == name)
    }
}

/// Returns every script that a limiter runs to read or write state, for example to load them with SCRIPT LOAD
/// in advance. Excludes the scripts for [`Limiter::health`](crate::Limiter::health) and for operators' tools.
pub fn all_scripts() -> impl Iterator<Item = &'static Script> {
    let of_each = |script: fn(&'static Scripts) -> Option<&'static Script>| {
        ALGORITHMS.into_iter().filter_map(move |definition| script(definition.scripts))
    };
    of_each(|scripts| Some(&scripts.take))
        .chain(of_each(|scripts| scripts.refund.as_ref()))
        .chain(of_each(|scripts| scripts.penalize.as_ref()))
        .chain(of_each(|scripts| scripts.charge_used.as_ref()))
        .chain(of_each(|scripts| Some(&scripts.block)))
        .chain([
            &REPORT,
            &GROUP,
            &ACQUIRE_ALL,
            &PERMIT_LEASE,
            &RELEASES,
            &ADAPT,
            &RESERVE,
            &SETTLE,
            &BAN,
            &RESET,
            &HEARTBEAT,
        ])
        .chain([&PUBLISH, &OVERRIDES, &OVERRIDE])
        .chain(scripts_in_span())
}

/// Returns the scripts of calls with calendar windows, which need the feature `calendar`.
fn scripts_in_span() -> impl Iterator<Item = &'static Script> {
    let Scripts { take, refund, penalize, charge_used, block } = fixed_window::DEFINITION.scripts;
    let of_windows = [Some(take), refund.as_ref(), penalize.as_ref(), charge_used.as_ref(), Some(block)];
    let of_windows = of_windows.into_iter().flatten();
    let scripts = of_windows.chain([&GROUP, &ACQUIRE_ALL, &RESERVE, &SETTLE, &BAN]);
    scripts.filter(|_| cfg!(feature = "calendar")).map(Script::in_span)
}
