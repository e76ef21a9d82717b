//! The algorithms: the numbers of a quota ([`Kind`]), the state of a key ([`State`]), and the arithmetic
//! between them ([`Algorithm`]). The scripts in `lua/` do the same on the server; tests compare the two.
//!
//! A service uses [`Quota`](crate::Quota) instead. This module is for tools that read configuration files or
//! the state in Redis, and for tests. [`reference`](crate::reference) decides checks with it.

// Everything that depends on the algorithm is in its file. `definition.rs` lists the parts of an algorithm.

mod definition;
mod fixed_window;
mod leaky_bucket;
mod log;
mod sliding_counter;
mod sliding_log;
mod token_bucket;

pub use self::definition::*;
pub use self::log::{Log, LogEntry};
use crate::error::Error;
use crate::script::{HEARTBEAT, OVERRIDE, OVERRIDES, RESET, Script, Scripts, lua, with_prelude};

/// Lists the algorithms, in the order of their scripts and of the CLI.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $module:ident::$name:ident),+ $(,)?) => {
        $(pub use self::$module::$name;)+

        /// An algorithm with its numbers. [`Quota::kind`](crate::Quota::kind) returns one with valid numbers;
        /// with other numbers the methods may panic.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(tag = "algorithm", rename_all = "snake_case"))]
        pub enum Kind {
            $($(#[$doc])* $name($name)),+
        }

        impl Kind {
            /// Returns the arithmetic of this quota.
            #[must_use]
            pub fn algorithm(&self) -> &dyn Algorithm {
                match self { $(Self::$name(kind) => kind),+ }
            }

            /// Returns the properties of the algorithm.
            #[must_use]
            pub const fn definition(&self) -> &'static Definition {
                match self { $(Self::$name(_) => &self::$module::DEFINITION),+ }
            }

            /// Makes a quota of this algorithm from the numbers that [`args`](Self::args) returns.
            pub(crate) fn of_args(algorithm: &Definition, args: [u64; 4]) -> Result<Self, Error> {
                $(if algorithm.name == self::$module::DEFINITION.name {
                    return $name::of_args(args).map(Self::$name);
                })+
                Err(Error::config("no such algorithm"))
            }

            /// Returns the quota of one of `instances`, at least 1: see `Quota::share`.
            pub(crate) fn share(&self, instances: u64) -> Self {
                match self { $(Self::$name(kind) => Self::$name(kind.share(instances))),+ }
            }

            /// Returns the quota as the four numbers that the scripts take. The first is the limit, in units.
            /// The header of the Lua file defines the others.
            #[must_use]
            pub const fn args(&self) -> [u64; 4] {
                match self { $(Self::$name(kind) => kind.args()),+ }
            }

            // Every check calls these two: static dispatch inlines them.

            /// See [`Algorithm::counts_denied`].
            pub(crate) fn counts_denied(&self) -> bool {
                match self { $(Self::$name(kind) => kind.counts_denied()),+ }
            }

            /// See [`Algorithm::predicts`].
            pub(crate) fn predicts(&self) -> bool {
                match self { $(Self::$name(kind) => kind.predicts()),+ }
            }
        }

        /// Lists all algorithms, in the order of the CLI.
        pub static ALGORITHMS: [&Definition; NAMES.len()] = [$(&self::$module::DEFINITION),+];

        /// Lists the [names](Definition::name) of all algorithms, in the order of [`ALGORITHMS`].
        pub const NAMES: [&str; [$(stringify!($module)),+].len()] = [$(self::$module::DEFINITION.name),+];

        /// Checks groups of keys of any quotas: `lua/group.lua`. A group admits and charges all its keys or
        /// none.
        pub static GROUP: Script = Script::new(
            "group",
            with_prelude!(
                lua!("hash_state"),
                $(lua!(stringify!($module)),)+
                "local algorithms = {",
                $(concat!(" ", stringify!($module), " = ", stringify!($module), ","),)+
                " }\n",
                lua!("group")
            ),
        );
    };
}

algorithms! {
    /// See [`Quota::token_bucket`](crate::Quota::token_bucket).
    token_bucket::TokenBucket,
    /// See [`Quota::leaky_bucket`](crate::Quota::leaky_bucket).
    leaky_bucket::LeakyBucket,
    /// See [`Quota::fixed_window`](crate::Quota::fixed_window).
    fixed_window::FixedWindow,
    /// See [`Quota::sliding_log`](crate::Quota::sliding_log).
    sliding_log::SlidingLog,
    /// See [`Quota::sliding_counter`](crate::Quota::sliding_counter).
    sliding_counter::SlidingCounter,
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
    let of_each = |script: fn(&'static Scripts) -> &'static Script| {
        ALGORITHMS.into_iter().map(move |definition| script(definition.scripts))
    };
    of_each(|scripts| &scripts.take)
        .chain(of_each(|scripts| &scripts.refund))
        .chain(of_each(|scripts| &scripts.penalize))
        .chain(of_each(|scripts| &scripts.block))
        .chain([&GROUP, &RESET, &HEARTBEAT, &OVERRIDES, &OVERRIDE])
}
