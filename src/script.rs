//! The Lua scripts, composed from the files in `lua/` at compile time. The headers of these files document
//! KEYS, ARGV, replies and writes. [`all_scripts`](crate::algorithm::all_scripts) lists the scripts.

use std::sync::OnceLock;

/// Reads a file in `lua/`.
macro_rules! lua {
    ($file:expr) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $file, ".lua"))
    };
}
pub(crate) use lua;

/// A script for EVAL or EVALSHA. Redis identifies it by the digest of its text.
#[derive(Debug)]
pub struct Script {
    /// The verb, which is the name of a file in `lua/`. If each algorithm has its own script, the algorithm
    /// follows: `take:token_bucket`.
    pub name: &'static str,
    /// The Lua text.
    pub text: &'static str,
    digest: OnceLock<String>,
    in_span: OnceLock<Box<Self>>,
}

impl Script {
    pub(crate) const fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text, digest: OnceLock::new(), in_span: OnceLock::new() }
    }

    /// Returns the SHA-1 digest that EVALSHA takes, in 40 lower-case hex digits.
    #[must_use]
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }

    /// Returns the script for calls with calendar windows, such as `take:fixed_window@span`: `lua/span.lua` follows
    /// `now`. Made once for each of the few scripts that such calls run.
    #[must_use]
    pub fn in_span(&self) -> &Self {
        self.in_span.get_or_init(|| {
            debug_assert!(self.text.starts_with(lua!("now")), "{} reads no time", self.name);
            let name = String::leak(format!("{}@span", self.name));
            let text = self.text.replacen(lua!("now"), concat!(lua!("now"), lua!("span")), 1);
            Box::new(Self::new(name, text.leak()))
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
    /// Checks and charges keys of one quota: `lua/take.lua`, or `lua/acquire.lua`.
    pub take: Script,
    /// Gives back units of a take: `lua/refund.lua`. `None` for in-flight limits.
    pub refund: Option<Script>,
    /// Charges units without a check: `lua/penalize.lua`. `None` for in-flight limits.
    pub penalize: Option<Script>,
    /// Charges units that were used, up to a bound: `lua/charge_used.lua`. `None` for in-flight limits.
    pub charge_used: Option<Script>,
    /// Denies all checks of a key for a time, or lifts the block: `lua/block.lua`.
    pub block: Script,
}

/// Composes the scripts of an algorithm from its name, the file of its fast path, and its other files. A take
/// is the fast path, then a function that creates the slow path. Only calls that need the slow path run that
/// function.
macro_rules! scripts {
    ($algorithm:literal, $fast_path:literal, $($file:literal),+) => {{
        use $crate::script::{Script, Scripts, lua, scripts, with_prelude};

        static SCRIPTS: Scripts = Scripts {
            take: Script::new(
                concat!("take:", $algorithm),
                concat!(
                    lua!("now"),
                    lua!($fast_path),
                    "local function slow_path(call, format, now, stamp)\n",
                    lua!("prelude"),
                    $(lua!($file),)+
                    "local algorithm = ",
                    $algorithm,
                    "\n",
                    lua!("slow_path"),
                    "end\n",
                    lua!("take")
                ),
            ),
            refund: Some(scripts!(@write "refund", $algorithm, $($file),+)),
            penalize: Some(scripts!(@write "penalize", $algorithm, $($file),+)),
            charge_used: Some(scripts!(@write "charge_used", $algorithm, $($file),+)),
            block: scripts!(@write "block", $algorithm, $($file),+),
        };
        &SCRIPTS
    }};
    (@write $verb:literal, $algorithm:literal, $($file:literal),+) => {
        Script::new(
            concat!($verb, ":", $algorithm),
            with_prelude!($(lua!($file),)+ "local algorithm = ", $algorithm, "\n", lua!($verb)),
        )
    };
}
pub(crate) use scripts;

/// Opens, renews or ends the lease of a holder of in-flight limits: `lua/permit_lease.lua`.
pub static PERMIT_LEASE: Script = Script::new("permit_lease", with_prelude!(lua!("permit_lease")));

/// Changes the adaptive limit of a key: `lua/adapt.lua`.
pub static ADAPT: Script = Script::new("adapt", with_prelude!(lua!("adapt")));

/// Removes the state of keys: `lua/reset.lua`.
pub static RESET: Script = Script::new("reset", lua!("reset"));

/// Records that a process is alive, and counts the processes.
pub(crate) static HEARTBEAT: Script = Script::new("heartbeat", with_prelude!(lua!("heartbeat")));

/// Adds the figures of a process to those of the fleet.
pub(crate) static PUBLISH: Script = Script::new("publish", with_prelude!(lua!("publish")));

/// Reads the overrides of the namespace.
pub(crate) static OVERRIDES: Script = Script::new("overrides", with_prelude!(lua!("overrides")));

/// Sets or ends an override.
pub(crate) static OVERRIDE: Script = Script::new("override", with_prelude!(lua!("override")));

/// Lists missing permissions. Only `health` calls it.
pub(crate) static RIGHTS: Script = Script::new("rights", lua!("rights"));

/// Reads the holders of an in-flight limit. Only the command line calls it.
#[cfg(feature = "admin")]
pub(crate) static INSPECT_HOLDERS: Script =
    Script::new("inspect_holders", with_prelude!(lua!("inspect_holders")));
/// Reads the holds of a key. Only the command line calls it.
#[cfg(feature = "admin")]
pub(crate) static INSPECT_HOLDS: Script = Script::new("inspect_holds", with_prelude!(lua!("inspect_holds")));

/// Reads the figures of the fleet. Only operators' tools call it.
#[cfg(feature = "admin")]
pub(crate) static FIGURES: Script = Script::new("figures", with_prelude!(lua!("figures")));

/// Reads the contents of keys. Only the command line calls it.
#[cfg(feature = "admin")]
pub(crate) static INSPECT: Script = Script::new("inspect", with_prelude!(lua!("inspect")));
