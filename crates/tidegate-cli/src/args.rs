//! The arguments of the command line.

mod service;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use self::service::{AdminPort, Charge, Connections, FailurePolicy, Peer, ResponseHeaders, Serve};
use crate::quota::{InRules, QuotaArgs, ShownGate};
use crate::redis_url::{Password, RedisUrl};
use crate::{gate_names, units};

const EXIT_CODES: &str = "\
Exit codes:
  0  done; allowed; found
  1  negative result: denied, nothing found, no rule matched, errors in rules, nothing changed
  2  usage error
  3  Redis is unreachable, does not answer, or rejects the command
  4  corrupt state: a key holds data that tidegate did not write

Every user of this machine can see a password in an argument. Put it into a file for --password-file
or into TIDEGATE_REDIS_PASSWORD, or the whole URL into TIDEGATE_REDIS_URL.";

/// Inspect and change the rate limits in a Redis
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) redis: Redis,
    /// Print one JSON object
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// The Redis server, the credentials, and the format of its keys.
// Values of files with secrets may begin with a hyphen: a user may give the secret in the place of its file, and clap's
// error about an unknown option would show it.
#[derive(Args, Debug)]
#[command(next_help_heading = "Redis")]
pub(crate) struct Redis {
    /// redis://[user:password@]host[:port][/database]; repeat for each sentinel or cluster node
    /// [default: redis://127.0.0.1:6379] [env: TIDEGATE_REDIS_URL, separated by spaces]
    #[arg(long = "redis", value_name = "URL", global = true)]
    pub(crate) urls: Vec<RedisUrl>,
    /// The URLs are not from the command line, which every user of the machine can read.
    #[arg(skip)]
    pub(crate) urls_are_hidden: bool,
    /// The password that other settings contain. `--password-file` and the environment replace it.
    #[arg(skip)]
    pub(crate) password: Option<Password>,
    /// The Redis user of the password [default: default]
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) user: Option<String>,
    /// Read the password from this file; it replaces the URL's user and password
    /// [env: TIDEGATE_REDIS_PASSWORD, the password itself; unused if the URL of --redis has a login]
    #[arg(long, value_name = "FILE", global = true, allow_hyphen_values = true)]
    pub(crate) password_file: Option<PathBuf>,
    /// The URLs are of sentinels, which know the Redis under this name
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) sentinel: Option<String>,
    /// The URLs are of Redis Cluster nodes
    #[arg(long, global = true, conflicts_with = "sentinel")]
    pub(crate) cluster: bool,
    /// The trusted CA certificates for a rediss:// server, in PEM [default: the system's]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// The client certificate for a rediss:// server, in PEM
    #[arg(long, value_name = "FILE", global = true, allow_hyphen_values = true, requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The private key of the client certificate, in PEM
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        allow_hyphen_values = true,
        requires = "tls_certificate"
    )]
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
    /// The file with the limiters' HMAC secret (KeyMode::Hmac), byte for byte
    #[arg(long, value_name = "FILE", global = true, allow_hyphen_values = true)]
    pub(crate) hmac_secret_file: Option<PathBuf>,
    /// The timeout of one call to Redis, and of reading a file
    #[arg(long, value_name = "TIME", global = true, default_value = "5s", value_parser = units::duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check a key or a request, and charge it if it is allowed
    Check(Check),
    /// Show the decision of a check without charging
    Peek(Check),
    /// Show the stored state of a key, a gate or the namespace
    Inspect(Inspect),
    /// Show the most used keys, live
    Top(Top),
    /// Remove the state of a key at a gate
    Reset(Reset),
    /// Deny every check of a key at a gate, for a time
    Block(Block),
    /// Lift the block of a key at a gate
    Unblock(Reset),
    /// Remove the state of a key at all gates, and its overrides
    Forget(Forget),
    /// Open or close a gate, or set it to shadow mode, in the whole fleet
    Switch(Switch),
    /// Give a key of a gate another quota for a time, in the whole fleet
    Override(Override),
    /// List the active switches and overrides
    Overrides,
    /// Show the regions that share limits: when each was heard of, and how far it is behind
    Regions,
    /// List the gates of the rules and of Redis, with their quotas
    Gates(InRules),
    /// Validate and explain rule files
    #[command(subcommand)]
    Rules(Rules),
    /// Run the rate-limit service: Envoy's protocol over gRPC, and JSON over HTTP
    Serve(Box<Serve>),
    /// Print completions for a shell, also of gates of the rules
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the man pages
    Man {
        /// An existing folder
        folder: PathBuf,
    },
}

/// The arguments of `check` and `peek`: a key of a gate, or the descriptors of a request.
#[derive(Args, Debug)]
pub(crate) struct Check {
    /// The key: any bytes
    #[arg(required_unless_present = "descriptor", conflicts_with = "descriptor")]
    pub(crate) key: Option<OsString>,
    /// The gate
    #[arg(long, required_unless_present = "descriptor", conflicts_with = "descriptor", add = gate_names::completer())]
    pub(crate) gate: Option<String>,
    #[command(flatten)]
    pub(crate) quota: QuotaArgs,
    #[command(flatten)]
    pub(crate) request: Request,
    /// The units to charge; with descriptors, the number of requests
    #[arg(long, value_name = "UNITS", default_value_t = 1, help_heading = "Options", value_parser = units::whole,
        allow_hyphen_values = true)]
    pub(crate) cost: u64,
}

/// A request, as descriptors for rules.
#[derive(Args, Debug)]
#[command(next_help_heading = "Request")]
pub(crate) struct Request {
    /// The domain of the rules
    #[arg(long, value_name = "NAME")]
    pub(crate) domain: Option<String>,
    /// A descriptor of the request, instead of a key: `auth_type=login,user=ada`; a comma in a value is
    /// `\,`. Repeat for each further descriptor
    #[arg(long, short, value_name = "KEY=VALUE,…", requires = "domain")]
    pub(crate) descriptor: Vec<String>,
    /// The tier of the request, if the rules have tiers
    #[arg(long, value_name = "NAME", requires = "descriptor")]
    pub(crate) tier: Option<String>,
}

/// An HTTP request. The `rate_limits` of the domain's file derive its descriptors.
#[derive(Args, Debug)]
#[command(next_help_heading = "HTTP request")]
pub(crate) struct HttpRequest {
    /// The request line, instead of a descriptor: `GET /login?next=%2F`
    #[arg(long, value_name = "METHOD TARGET", requires = "domain", conflicts_with = "descriptor")]
    pub(crate) request: Option<String>,
    /// A header of the request. Repeat for each further header
    #[arg(long, short = 'H', value_name = "NAME: VALUE", requires = "request")]
    pub(crate) header: Vec<String>,
    /// The client's address
    #[arg(long, value_name = "ADDRESS", requires = "request")]
    pub(crate) ip: Option<IpAddr>,
    /// A value that the service adds, such as the user, under the name that the file uses. Repeat for each
    /// further value
    #[arg(long, value_name = "NAME=VALUE", requires = "request")]
    pub(crate) extension: Vec<String>,
}

/// The format of the given key.
#[derive(Args, Debug, Default)]
pub(crate) struct AsStored {
    /// The key is in its stored form, as in Redis: `%hmac=…`, `a%20b`
    #[arg(long)]
    pub(crate) stored: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Inspect {
    /// The key; without it, all gates are listed
    pub(crate) key: Option<OsString>,
    #[command(flatten)]
    pub(crate) gate: ShownGate,
    #[command(flatten)]
    pub(crate) as_stored: AsStored,
    /// The maximum number of lines
    #[arg(long, value_name = "N", default_value_t = 20,
        value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) limit: u16,
}

#[derive(Args, Debug)]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) gate: ShownGate,
    /// Read all keys once and print the result; the default without a terminal
    #[arg(long)]
    pub(crate) once: bool,
    /// The maximum number of keys
    #[arg(long, value_name = "N", default_value_t = 20,
        value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) limit: u16,
    /// The refresh interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    pub(crate) every: Duration,
}

/// What each command that changes something has. It affects other clients, so it needs a confirmation.
#[derive(Args, Debug)]
pub(crate) struct Changing {
    /// Confirm in advance; required without a terminal
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    /// The operator, for the audit log [default: the name of the login, or cli]
    #[arg(long, value_name = "NAME")]
    pub(crate) author: Option<String>,
    /// The maximum time of the search for the key and the gate
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pub(crate) max_search: Duration,
}

/// The permission to change what seems to be a mistake.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Force {
    /// Write it also for a gate without state, without a live instance, or if there is nothing to end
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Reset {
    /// The key
    pub(crate) key: OsString,
    /// The gate
    #[arg(long, add = gate_names::completer())]
    pub(crate) gate: String,
    #[command(flatten)]
    pub(crate) rules: InRules,
    #[command(flatten)]
    pub(crate) as_stored: AsStored,
    #[command(flatten)]
    pub(crate) changing: Changing,
}

#[derive(Args, Debug)]
pub(crate) struct Block {
    /// The key
    pub(crate) key: OsString,
    /// The gate
    #[arg(long, add = gate_names::completer())]
    pub(crate) gate: String,
    /// The duration of the block
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    pub(crate) duration: Duration,
    /// Without a quota, the form of the key's state or of the gate's other keys applies.
    #[command(flatten)]
    pub(crate) quota: QuotaArgs,
    #[command(flatten)]
    pub(crate) as_stored: AsStored,
    #[command(flatten)]
    pub(crate) force: Force,
    #[command(flatten)]
    pub(crate) changing: Changing,
}

#[derive(Args, Debug)]
pub(crate) struct Forget {
    /// The key
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) as_stored: AsStored,
    #[command(flatten)]
    pub(crate) changing: Changing,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Rules {
    /// Report errors in rule files
    Validate {
        #[command(flatten)]
        files: RuleFiles,
    },
    /// Show which rule matches a request, and why
    Explain {
        #[command(flatten)]
        files: RuleFiles,
        #[command(flatten)]
        request: Request,
        #[command(flatten)]
        http: HttpRequest,
    },
    /// Print the limits of a domain for the users of an API
    Document {
        #[command(flatten)]
        files: RuleFiles,
        /// The domain of the rules
        #[arg(long, value_name = "NAME")]
        domain: String,
        /// The format of the document
        #[arg(long, default_value = "markdown")]
        format: DocumentFormat,
    },
    /// Print a JSON Schema of rule files, for editors
    Schema,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DocumentFormat {
    /// A page with a table
    Markdown,
    /// The extension `x-rate-limits` of an OpenAPI document
    Openapi,
}

/// Rule files, and how they are read.
#[derive(Args, Debug)]
pub(crate) struct RuleFiles {
    /// A file or a folder; with --from-env, by default the folder that the service reads
    #[arg(required_unless_present = "from_env")]
    pub(crate) path: Option<PathBuf>,
    /// Read the files as `serve --from-env` does with these environment variables
    #[arg(long)]
    pub(crate) from_env: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Switch {
    /// The gate; with --rules, also the name or path of a rule
    #[arg(add = gate_names::completer())]
    pub(crate) gate: String,
    /// The mode of the gate
    pub(crate) to: SwitchTo,
    /// The duration of the switch [default: until `clear`]
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    pub(crate) duration: Option<Duration>,
    #[command(flatten)]
    pub(crate) rules: InRules,
    #[command(flatten)]
    pub(crate) force: Force,
    #[command(flatten)]
    pub(crate) changing: Changing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SwitchTo {
    /// Allow every check, and charge nothing
    Open,
    /// Deny every check
    Closed,
    /// Decide and charge as usual, but allow every check
    Shadow,
    /// End the switch: the gate follows its own quota again
    Clear,
    /// The former name of `clear`, which reads as its opposite. Reported as an error.
    #[value(hide = true)]
    Off,
}

#[derive(Args, Debug)]
pub(crate) struct Override {
    /// The key
    pub(crate) key: OsString,
    /// The gate
    #[arg(long, add = gate_names::completer())]
    pub(crate) gate: String,
    /// The duration of the override
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration, required_unless_present = "end")]
    pub(crate) duration: Option<Duration>,
    /// End the override: the gate's own quota applies again
    #[arg(long, conflicts_with_all = ["duration", "algorithm"])]
    pub(crate) end: bool,
    #[command(flatten)]
    pub(crate) quota: QuotaArgs,
    #[command(flatten)]
    pub(crate) force: Force,
    #[command(flatten)]
    pub(crate) changing: Changing,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    #[test]
    fn debug_output_of_the_arguments_contains_no_password() {
        for url in ["redis://:quagga@h", "unix:///s?pass=quagga", ":quagga@h"] {
            let cli = super::Cli::parse_from(["tidegate", "inspect", "--redis", url]);
            assert!(!format!("{cli:?}").contains("quagga"), "{cli:?}");
        }
    }

    #[test]
    fn argument_definitions_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
