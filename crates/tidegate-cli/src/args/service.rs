//! The arguments of `serve` for its configuration, and those that envoyproxy/ratelimit has as environment variables.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use http::HeaderName;

/// Where the settings of `serve` come from. These are no settings themselves.
#[derive(Args, Debug)]
#[command(next_help_heading = "Configuration")]
pub(crate) struct Configuration {
    /// Read settings from this YAML file. A flag precedes the environment, which precedes the file
    /// [env: TIDEGATE_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Also read the environment variables of envoyproxy/ratelimit, after the file
    #[arg(long)]
    pub(crate) from_env: bool,
    /// Check the settings and the files that they name, print each setting with its origin, and exit
    #[arg(long)]
    pub(crate) check: bool,
}

/// How requests are decided, beside the rules.
#[derive(Args, Debug)]
#[command(next_help_heading = "Decisions")]
pub(crate) struct Decisions {
    /// What a request charges if one of its rules denies it, in documents without `charge`
    #[arg(long, value_name = "CHARGE", default_value = "all")]
    pub(crate) charge: Charge,
    /// Charge denied requests to fixed windows, as envoyproxy/ratelimit does: a second call to Redis for each denial
    #[arg(long)]
    pub(crate) charge_denied: bool,
    /// Allow several documents to define rules of one domain
    #[arg(long)]
    pub(crate) merge_domains: bool,
    /// Decide and charge every request, but deny none
    #[arg(long)]
    pub(crate) shadow: bool,
    /// The name of the limit's header, with `--headers ratelimit`
    #[arg(long, value_name = "NAME", default_value = "RateLimit-Limit")]
    pub(crate) limit_header: HeaderName,
    /// The name of the header of the remaining units, with `--headers ratelimit`
    #[arg(long, value_name = "NAME", default_value = "RateLimit-Remaining")]
    pub(crate) remaining_header: HeaderName,
    /// The name of the header of the reset time, with `--headers ratelimit`
    #[arg(long, value_name = "NAME", default_value = "RateLimit-Reset")]
    pub(crate) reset_header: HeaderName,
    /// Be ready only while Redis decides; always so with `--on-failure error`
    #[arg(long)]
    pub(crate) ready_needs_redis: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Charge {
    /// All rules of the request, or none
    All,
    /// Each rule that admits, even if another one denies
    Each,
}
