//! The Lua scripts, composed from the files below `lua/` at compile time. The headers of these files document
//! KEYS, ARGV, replies and writes. [`all_scripts`](crate::quota::algorithm::all_scripts) lists the scripts.
//!
//! Not covered by semantic versioning: a minor version may change what is here.

use std::sync::OnceLock;

/// Reads a file below `lua/`.
macro_rules! lua {
    ($file:expr) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $file, ".lua"))
    };
}
pub(crate) use lua;

/// Composes a script that does nothing once all its callers have given it up.
macro_rules! with_bound {
    ($($rest:expr),+ $(,)?) => {
        concat!(lua!("now"), lua!("bound"), $($rest),+)
    };
}
pub(crate) use with_bound;

/// The first line of a script that frees memory or needs hardly any: it also runs while the memory of Redis is full.
///
/// With such a line, Redis checks before the script runs whether it may write: on a replica, or if persistence
/// fails, it rejects the whole script. So scripts that can have an effect without a write do not have it.
macro_rules! allow_oom {
    () => {
        "#!lua flags=allow-oom\n"
    };
}
pub(crate) use allow_oom;

/// A script for EVAL or EVALSHA. Redis identifies it by the digest of its text.
#[derive(Debug)]
pub struct Script {
    /// The verb, which is the name of a file below `lua/`. If each algorithm has its own script, the algorithm
    /// follows: `take:token_bucket`.
    pub name: &'static str,
    /// The Lua text.
    pub text: &'static str,
    /// Whether the last argument is the server's time from which on the script does nothing, in µs since 1970, or
    /// empty: `lua/bound.lua` follows `now`. Callers of the script append it.
    pub is_bounded: bool,
    digest: OnceLock<String>,
    in_span: OnceLock<Box<Self>>,
}

impl Script {
    pub(crate) const fn new(name: &'static str, text: &'static str) -> Self {
        Self::made(name, text, false)
    }

    /// Makes a script that [is bounded](Self::is_bounded): its text is made by `with_bound!`.
    pub(crate) const fn bounded(name: &'static str, text: &'static str) -> Self {
        Self::made(name, text, true)
    }

    const fn made(name: &'static str, text: &'static str, is_bounded: bool) -> Self {
        Self { name, text, is_bounded, digest: OnceLock::new(), in_span: OnceLock::new() }
    }

    /// Returns the SHA-1 digest that EVALSHA takes, in 40 lower-case hex digits.
    #[must_use]
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }

    /// Returns the script for calls with calendar windows, such as `take:fixed_window@span`: `lua/span.lua` follows
    /// `now`, or `bound`. Made once for each of the few scripts that such calls run.
    #[must_use]
    pub fn in_span(&self) -> &Self {
        self.in_span.get_or_init(|| {
            let before = if self.is_bounded { with_bound!("") } else { lua!("now") };
            let (first_line, rest) = self.text.split_once(before).unwrap_or_default();
            debug_assert!(!rest.is_empty(), "{} reads no time", self.name);
            let name = String::leak(format!("{}@span", self.name));
            let text = [first_line, before, lua!("span"), rest].concat();
            Box::new(Self::made(name, text.leak(), self.is_bounded))
        })
    }
}

/// Composes a script that needs the time, numbers or expiry: all but the takes, `reset` and `rights`.
macro_rules! with_prelude {
    ($($rest:expr),+ $(,)?) => {
        concat!(lua!("now"), lua!("prelude"), $($rest),+)
    };
}
pub(crate) use with_prelude;

/// The scripts of one algorithm. Each algorithm has its own: one script with all algorithms would make a take
/// 1.5 times as expensive.
#[derive(Debug)]
pub struct Scripts {
    /// Checks and charges keys of one quota: `lua/take/take.lua`, or `lua/in_flight/acquire.lua`.
    pub take: Script,
    /// Gives back units of a take: `lua/write/refund.lua`. `None` for in-flight limits.
    pub refund: Option<Script>,
    /// Charges units without a check: `lua/write/penalize.lua`. `None` for in-flight limits.
    pub penalize: Option<Script>,
    /// Charges units that were used, up to a bound: `lua/write/charge_used.lua`. `None` for in-flight limits.
    pub charge_used: Option<Script>,
    /// Denies all checks of a key for a time, or lifts the block: `lua/write/block.lua`.
    pub block: Script,
}

/// Composes the scripts of an algorithm from its name, the file of its fast path, and its other files. A take
/// is the fast path, then a function that creates the slow path. Only calls that need the slow path run that
/// function.
macro_rules! scripts {
    ($algorithm:literal, $fast_path:literal, $($file:literal),+) => {{
        use $crate::script::{Script, Scripts, allow_oom, lua, scripts, with_bound, with_prelude};

        static SCRIPTS: Scripts = Scripts {
            take: Script::bounded(
                concat!("take:", $algorithm),
                with_bound!(
                    lua!(concat!("take/", $fast_path)),
                    "local function slow_path(call, format, now, stamp)\n",
                    lua!("prelude"),
                    $(lua!(concat!("quota/", $file)),)+
                    "local algorithm = ",
                    $algorithm,
                    "\n",
                    lua!("take/slow_path"),
                    "end\n",
                    lua!("take/take")
                ),
            ),
            refund: Some(scripts!(@write "refund", $algorithm, allow_oom!(), $($file),+)),
            penalize: Some(scripts!(@write "penalize", $algorithm, "", $($file),+)),
            charge_used: Some(scripts!(@write "charge_used", $algorithm, "", $($file),+)),
            block: scripts!(@write "block", $algorithm, "", $($file),+),
        };
        &SCRIPTS
    }};
    (@write $verb:literal, $algorithm:literal, $first_line:expr, $($file:literal),+) => {
        Script::new(
            concat!($verb, ":", $algorithm),
            concat!(
                $first_line,
                with_prelude!($(lua!(concat!("quota/", $file)),)+ "local algorithm = ", $algorithm, "\n", lua!(concat!("write/", $verb)))
            ),
        )
    };
}
pub(crate) use scripts;

/// Opens, renews or ends the lease of a holder of in-flight limits: `lua/in_flight/permit_lease.lua`.
pub static PERMIT_LEASE: Script =
    Script::new("permit_lease", concat!(allow_oom!(), with_prelude!(lua!("in_flight/permit_lease"))));

/// Records and collects releases of permits that a process holds for its clients: `lua/in_flight/releases.lua`.
pub(crate) static RELEASES: Script =
    Script::new("releases", concat!(allow_oom!(), with_prelude!(lua!("in_flight/releases"))));

/// Changes the adaptive limit of a key: `lua/in_flight/adapt.lua`.
pub static ADAPT: Script = Script::new("adapt", with_prelude!(lua!("in_flight/adapt")));

/// Removes the state of keys: `lua/write/reset.lua`.
pub static RESET: Script = Script::new("reset", lua!("write/reset"));

/// Records that a process is alive, and counts the processes.
pub(crate) static HEARTBEAT: Script = Script::new("heartbeat", with_prelude!(lua!("local/heartbeat")));

/// Adds the figures of a process to those of the fleet.
pub(crate) static PUBLISH: Script = Script::new("publish", with_prelude!(lua!("observe/publish")));

/// Reads the overrides of the namespace.
pub(crate) static OVERRIDES: Script = Script::new("overrides", with_prelude!(lua!("local/overrides")));

/// Sets or ends an override.
pub(crate) static OVERRIDE: Script = Script::new("override", with_prelude!(lua!("local/override")));

/// Lists missing permissions. Only `health` calls it.
pub(crate) static RIGHTS: Script = Script::new("rights", lua!("observe/rights"));

/// Reads the holders of an in-flight limit. Only operators' tools call it.
#[cfg(feature = "admin")]
pub(crate) static INSPECT_HOLDERS: Script =
    Script::new("inspect_holders", with_prelude!(lua!("admin/inspect_holders")));
/// Reads the holds of a key. Only operators' tools call it.
#[cfg(feature = "admin")]
pub(crate) static INSPECT_HOLDS: Script =
    Script::new("inspect_holds", with_prelude!(lua!("admin/inspect_holds")));

/// Reads the figures of the fleet. Only operators' tools call it.
#[cfg(feature = "admin")]
pub(crate) static FIGURES: Script = Script::new("figures", with_prelude!(lua!("observe/figures")));

/// Reads the contents of keys. Only operators' tools call it.
#[cfg(feature = "admin")]
pub(crate) static INSPECT: Script = Script::new("inspect", with_prelude!(lua!("admin/inspect")));
