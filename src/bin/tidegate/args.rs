//! What can be said on the command line.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::quota::QuotaArgs;
use crate::units;

/// How to end, for scripts.
const EXIT_CODES: &str = "\
Exit codes:
  0  done; allowed; found
  1  the answer is no: denied, nothing found, no rule met, mistakes in rules, not confirmed
  2  it cannot be done as it was said: see the message
  3  Redis cannot be reached, does not answer, or refuses
  4  a key holds what tidegate does not write

The URL may hold a password, which everyone on this machine sees if it is an argument: put it into
TIDEGATE_REDIS_URL, or into a file for --password-file.";

/// Look into rate limits that live in Redis, and change them.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) redis: Redis,
    /// Say it as one JSON object
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Which Redis, and how keys are called there.
#[derive(Args, Debug)]
#[command(next_help_heading = "Redis")]
pub(crate) struct Redis {
    /// redis://[user:password@]host[:port][/database]; again for each sentinel or node of a cluster
    /// [default: redis://127.0.0.1:6379] [env: TIDEGATE_REDIS_URL, several with spaces between]
    #[arg(long = "redis", value_name = "URL", global = true)]
    pub(crate) urls: Vec<String>,
    /// As this user of Redis, in the place of the URL's
    #[arg(long, value_name = "NAME", global = true, requires = "password_file")]
    pub(crate) user: Option<String>,
    /// Its password is what this file holds
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) password_file: Option<PathBuf>,
    /// The URLs are of sentinels, who know the Redis by this name
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) sentinel: Option<String>,
    /// The URLs are of nodes of a Redis Cluster
    #[cfg(feature = "cluster")]
    #[arg(long, global = true, conflicts_with = "sentinel")]
    pub(crate) cluster: bool,
    /// Who may vouch for a rediss:// server, in PEM [default: whom this system trusts]
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// What to show to a rediss:// server that wants to know who this is, in PEM
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", global = true, requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The key of that certificate, in PEM
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", global = true, requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
    /// The limiter's namespace
    #[arg(
        long,
        value_name = "NAME",
        global = true,
        env = "TIDEGATE_NAMESPACE",
        hide_env_values = true,
        default_value = "tidegate"
    )]
    pub(crate) namespace: String,
    /// Keys stand in Redis under the secret that this file holds (KeyMode::Hmac), byte for byte
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) hmac_secret_file: Option<PathBuf>,
    /// How long to wait for Redis
    #[arg(long, value_name = "TIME", global = true, default_value = "5s", value_parser = units::duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// May it pass? Charges it if so
    Check(Ask),
    /// What a check would say; charges nothing
    Peek(Ask),
    /// What is stored: of a key, of a gate, or of the namespace
    Inspect(Inspect),
    /// The most used keys, live
    Top(Top),
    /// Make a key of a gate as if it had never been asked for
    Reset(Reset),
    /// Deny all to a key of a gate, for a time
    Block(Block),
    /// Lift that
    Unblock(Reset),
    /// Remove all state of a key, of all gates
    Forget(Forget),
    /// Open, close or watch a gate, in the whole fleet at once
    Switch(Switch),
    /// Give a key of a gate another quota for a time, in the whole fleet at once
    Override(Override),
    /// The switches and overrides that are in force
    Orders,
    /// Rules in files
    #[command(subcommand)]
    Rules(Rules),
    /// What a shell needs to complete this program's arguments
    Completions {
        /// Whose
        shell: Shell,
    },
}

/// `check` and `peek`: a key of a gate, or what rules say of a request.
#[derive(Args, Debug)]
pub(crate) struct Ask {
    /// Whom it is for: any bytes
    #[arg(required_unless_present = "descriptor", conflicts_with = "descriptor")]
    pub(crate) key: Option<OsString>,
    /// The gate
    #[arg(long, required_unless_present = "descriptor", conflicts_with = "descriptor")]
    pub(crate) gate: Option<String>,
    #[command(flatten)]
    pub(crate) quota: QuotaArgs,
    #[command(flatten)]
    pub(crate) request: Request,
    /// How many units, or for a descriptor how many requests
    #[arg(long, value_name = "UNITS", default_value_t = 1, help_heading = "Options")]
    pub(crate) cost: u64,
}

/// A request as rules see it.
#[derive(Args, Debug)]
#[command(next_help_heading = "Request")]
pub(crate) struct Request {
    /// The domain of the rules
    #[arg(long, value_name = "NAME")]
    pub(crate) domain: Option<String>,
    /// In the place of a key: what a request says of itself, `auth_type=login,user=ada`; a comma in a
    /// value is `\,`. Again for each further one
    #[arg(long, short, value_name = "KEY=VALUE,…", requires = "domain")]
    pub(crate) descriptor: Vec<String>,
    /// Its tier, where rules have tiers
    #[arg(long, value_name = "NAME", requires = "descriptor")]
    pub(crate) tier: Option<String>,
}

/// A request of HTTP, of which the `rate_limits` of the domain's file make descriptors.
#[derive(Args, Debug)]
#[command(next_help_heading = "Request of HTTP")]
pub(crate) struct HttpRequest {
    /// Instead of a descriptor: `GET /login?next=%2F`
    #[arg(long, value_name = "METHOD TARGET", requires = "domain", conflicts_with = "descriptor")]
    pub(crate) request: Option<String>,
    /// One of its headers. Again for each further one
    #[arg(long, short = 'H', value_name = "NAME: VALUE", requires = "request")]
    pub(crate) header: Vec<String>,
    /// The client's address
    #[arg(long, value_name = "ADDRESS", requires = "request")]
    pub(crate) ip: Option<IpAddr>,
    /// What the service knows of it, such as the user, by the name that the file calls it. Again for each
    /// further one
    #[arg(long, value_name = "NAME=VALUE", requires = "request")]
    pub(crate) extension: Vec<String>,
}

/// How a key is named where it is looked for.
#[derive(Args, Debug)]
pub(crate) struct AsStored {
    /// The key is given as it is written in Redis: `%hmac=…`, `a%20b`
    #[arg(long)]
    pub(crate) stored: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Inspect {
    /// Whose state; without it that of all keys, the most used first
    pub(crate) key: Option<OsString>,
    /// Only of this gate
    #[arg(long)]
    pub(crate) gate: Option<String>,
    #[command(flatten)]
    pub(crate) as_stored: AsStored,
    /// How many lines at most
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) limit: u16,
}

#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Only of this gate
    #[arg(long)]
    pub(crate) gate: Option<String>,
    /// Look once, at all keys, and print it; so it is where there is no terminal
    #[arg(long)]
    pub(crate) once: bool,
    /// How many keys at most
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) limit: u16,
    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    pub(crate) every: Duration,
}

/// That it is meant.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Confirm {
    /// Do not ask; needed where there is no terminal to ask on
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Reset {
    /// Whose state
    pub(crate) key: OsString,
    /// Of which gate
    #[arg(long)]
    pub(crate) gate: String,
    #[command(flatten)]
    pub(crate) as_stored: AsStored,
    #[command(flatten)]
    pub(crate) confirm: Confirm,
}

#[derive(Args, Debug)]
pub(crate) struct Block {
    /// Whom
    pub(crate) key: OsString,
    /// At which gate
    #[arg(long)]
    pub(crate) gate: String,
    /// For how long
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    pub(crate) lasts: Duration,
    /// Without a quota, the one by which the gate's other keys are stored
    #[command(flatten)]
    pub(crate) quota: QuotaArgs,
    #[command(flatten)]
    pub(crate) as_stored: AsStored,
    #[command(flatten)]
    pub(crate) confirm: Confirm,
}

#[derive(Args, Debug)]
pub(crate) struct Forget {
    /// Whose state
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) as_stored: AsStored,
    #[command(flatten)]
    pub(crate) confirm: Confirm,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Rules {
    /// Say whether files of rules are right, and what is not
    Validate {
        /// A file or a folder
        path: PathBuf,
    },
    /// Say which rule a request meets, and why
    Explain {
        /// A file or a folder
        path: PathBuf,
        #[command(flatten)]
        request: Request,
        #[command(flatten)]
        http: HttpRequest,
    },
    /// Print a JSON Schema of files of rules, for editors
    Schema,
}

#[derive(Args, Debug)]
pub(crate) struct Switch {
    /// Which gate; it need not have been asked yet
    pub(crate) gate: String,
    /// What its asks get
    pub(crate) to: SwitchTo,
    /// For how long [default: until it is taken back]
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    pub(crate) lasts: Option<Duration>,
    #[command(flatten)]
    pub(crate) confirm: Confirm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SwitchTo {
    /// Everything passes, and is charged nothing
    Open,
    /// Nothing passes
    Closed,
    /// It is decided and charged as ever, and everything passes
    Shadow,
    /// What its quota says: takes a switch back
    Off,
}

#[derive(Args, Debug)]
pub(crate) struct Override {
    /// Whom
    pub(crate) key: OsString,
    /// At which gate
    #[arg(long)]
    pub(crate) gate: String,
    /// For how long
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration, required_unless_present = "end")]
    pub(crate) lasts: Option<Duration>,
    /// Give it the gate's own quota again
    #[arg(long, conflicts_with_all = ["lasts", "algorithm"])]
    pub(crate) end: bool,
    #[command(flatten)]
    pub(crate) quota: QuotaArgs,
    #[command(flatten)]
    pub(crate) confirm: Confirm,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn arguments_go_together() {
        super::Cli::command().debug_assert();
    }
}
