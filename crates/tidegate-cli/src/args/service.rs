//! The arguments of `serve`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use http::HeaderName;
use tidegate_rules::ChargedDenials;

use crate::redis_url::RedisUrl;
use crate::units;

/// The rate-limit service. Each argument is also a setting of the file and of the environment: see `serve::arguments`.
/// `docs/operate/serve.md` lists them all.
#[derive(Args, Debug)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) configuration: Configuration,
    /// The rule file or folder; a change takes effect within a second
    #[arg(long, value_name = "PATH")]
    pub(crate) rules: Option<PathBuf>,
    /// Serve example rules with limits in memory, without Redis
    #[arg(long, conflicts_with = "rules")]
    pub(crate) demo: bool,
    /// The address of the gRPC port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081", value_parser = address)]
    pub(crate) grpc_addr: SocketAddr,
    /// The address of the HTTP port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = address)]
    pub(crate) http_addr: SocketAddr,
    /// The longest time that a decision may take
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = units::duration)]
    pub(crate) deadline: Duration,
    /// What decides while Redis does not answer, unless a rule has its own policy
    #[arg(long, value_name = "POLICY", default_value = "local")]
    pub(crate) on_failure: FailurePolicy,
    /// The headers that the proxy adds to its responses
    #[arg(long, value_name = "HEADERS", default_value = "none")]
    pub(crate) headers: ResponseHeaders,
    /// The body of the proxy's response to a denied request
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) denied_body: String,
    /// The maximum size of a request in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10, value_parser = units::bytes)]
    pub(crate) max_message: usize,
    /// The maximum memory in bytes of all requests that have not arrived entirely; further ones fail
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20, value_parser = units::bytes)]
    pub(crate) max_unfinished: usize,
    #[command(flatten)]
    pub(crate) decisions: Decisions,
    #[command(flatten)]
    pub(crate) connections: Connections,
    #[command(flatten)]
    pub(crate) admin: AdminPort,
    #[command(flatten)]
    pub(crate) regions: Regions,
}

/// The regions that share the limits of rules with `regions: gossip`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Regions")]
pub(crate) struct Regions {
    /// The name of this region
    #[arg(long, value_name = "NAME", requires = "peer")]
    pub(crate) region: Option<String>,
    /// Another region and its Redis, such as us=rediss://redis.us.example:6379. Repeat for each further region. A URL with a
    /// password is better a setting of the file or of the environment
    #[arg(long, value_name = "NAME=URL", requires = "region", value_parser = Peer::parse)]
    pub(crate) peer: Vec<Peer>,
}

/// Another region. Displays without the login of its URL.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) url: RedisUrl,
}

impl Peer {
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let (name, url) =
            text.split_once('=').ok_or("write NAME=URL, such as us=rediss://redis.us.example:6379")?;
        Ok(Self { name: name.trim().to_owned(), url: url.into() })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.url)
    }
}

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
    /// Which denied requests are charged to the fixed windows that deny them, in a second call to Redis: uncached are those
    /// that Redis decided
    #[arg(long, value_name = "DENIALS", default_value = "none", value_parser = charged_denials())]
    pub(crate) charge_denied: ChargedDenials,
    /// Admit descriptors with 0 hits at exactly their limit, as envoyproxy/ratelimit does
    #[arg(long)]
    pub(crate) peeks_pass_at_limit: bool,
    /// Return the domain, the descriptors and the hits of a request as dynamic metadata, as envoyproxy/ratelimit can
    #[arg(long)]
    pub(crate) request_metadata: bool,
    /// The most debt of a key that units used may leave, in limits: see `charge_used` of rules
    #[arg(long, value_name = "LIMITS", default_value_t = 10)]
    pub(crate) debt_cap: u64,
    /// Sign the tokens of reservations with the secret in this file, byte for byte, and settle no others. Repeat for each
    /// older secret whose tokens are still settled
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) reservation_secret_file: Vec<PathBuf>,
    /// Allow several documents to define rules of one domain
    #[arg(long)]
    pub(crate) merge_domains: bool,
    /// Decide and charge every request, but deny none
    #[arg(long)]
    pub(crate) shadow: bool,
    /// The name of the limit's header, with `--headers ratelimit`
    #[arg(long, value_name = "NAME", default_value = "RateLimit-Limit", value_parser = header_name)]
    pub(crate) limit_header: HeaderName,
    /// The name of the header of the remaining units, with `--headers ratelimit`
    #[arg(long, value_name = "NAME", default_value = "RateLimit-Remaining", value_parser = header_name)]
    pub(crate) remaining_header: HeaderName,
    /// The name of the header of the reset time, with `--headers ratelimit`
    #[arg(long, value_name = "NAME", default_value = "RateLimit-Reset", value_parser = header_name)]
    pub(crate) reset_header: HeaderName,
    /// The name of a header with the wait of a denial in seconds, with `--headers ratelimit` [default: not sent]
    #[arg(long, value_name = "NAME", value_parser = header_name)]
    pub(crate) wait_header: Option<HeaderName>,
    /// Name rules without a `name` by their paths in headers, instead of by their limits: clients learn what they match
    #[arg(long)]
    pub(crate) rule_paths_in_headers: bool,
    /// Be ready and healthy only while Redis decides; /readyz always so with `--on-failure error`
    #[arg(long)]
    pub(crate) ready_needs_redis: bool,
}

/// The port for operators and Prometheus.
#[derive(Args, Debug)]
#[command(next_help_heading = "Admin port")]
pub(crate) struct AdminPort {
    /// The address of the admin port, such as 127.0.0.1:8082 [default: none; with --demo, 127.0.0.1:8082]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) admin_addr: Option<SocketAddr>,
    /// The file with the tokens of the admin port, one a line: NAME, viewer or operator, and sha256:… or
    /// token:… [default: none; then each client on this machine is a viewer, with --demo an operator]
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) admin_tokens: Option<PathBuf>,
    /// A name by which browsers reach the admin port. Repeat for each further name
    #[arg(long, value_name = "NAME", requires = "admin_addr")]
    pub(crate) admin_host: Vec<String>,
    /// Browsers reach the admin port by TLS, which a proxy ends
    #[arg(long, requires = "admin_addr")]
    pub(crate) admin_behind_tls: bool,
    /// Serve /metrics of the admin port without a token
    #[arg(long)]
    pub(crate) metrics_public: bool,
    /// Label metrics of rules with the names of gates in Redis, for dashboards that have these; the next version removes it
    #[arg(long)]
    pub(crate) stored_gate_labels: bool,
}

/// The connections of the ports.
#[derive(Args, Debug)]
#[command(next_help_heading = "Connections")]
pub(crate) struct Connections {
    /// The certificate chain of the gRPC port, in PEM [default: no TLS]
    #[arg(long, value_name = "FILE", allow_hyphen_values = true, requires = "grpc_key")]
    pub(crate) grpc_certificate: Option<PathBuf>,
    /// The private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", allow_hyphen_values = true, requires = "grpc_certificate")]
    pub(crate) grpc_key: Option<PathBuf>,
    /// Admit only clients with a certificate of this CA, in PEM
    #[arg(long, value_name = "FILE", requires = "grpc_certificate")]
    pub(crate) grpc_client_ca: Option<PathBuf>,
    /// Admit only clients whose certificate has this subject alternative name. Repeat for each further name
    #[arg(long, value_name = "NAME", requires = "grpc_client_ca")]
    pub(crate) grpc_client_san: Vec<String>,
    /// Ping a connection after this much silence
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pub(crate) keepalive: Duration,
    /// Close a gRPC connection at about this age, so that its client finds new replicas
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = units::duration)]
    pub(crate) max_connection_age: Duration,
    /// The maximum number of open connections of each port; further clients of gRPC wait, those of HTTP get 503
    #[arg(long, value_name = "COUNT", default_value_t = 4_096, value_parser = units::count)]
    pub(crate) max_connections: usize,
    /// At the end: report that the service stops, and accept requests for this time
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    pub(crate) drain_notice: Duration,
    /// Then wait for requests in flight, at most for this time
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    pub(crate) drain: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailurePolicy {
    /// This process decides within its share of the limits
    Local,
    /// Every request is admitted
    Open,
    /// Every request is denied
    Closed,
    /// Every request gets an error, and the proxy decides
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResponseHeaders {
    /// None: the proxy can add its own
    None,
    /// X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset; Retry-After if denied
    XRatelimit,
    /// RateLimit and RateLimit-Policy of the IETF draft 11; Retry-After if denied
    Ietf,
    /// RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, as envoyproxy/ratelimit; other names by settings
    Ratelimit,
    /// Both families
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Charge {
    /// All rules of the request, or none
    All,
    /// Each rule that admits, even if another one denies
    Each,
}

fn charged_denials() -> impl TypedValueParser<Value = ChargedDenials> {
    PossibleValuesParser::new(["none", "uncached", "all"]).map(|denials| match &*denials {
        "all" => ChargedDenials::All,
        "uncached" => ChargedDenials::Uncached,
        _ => ChargedDenials::None,
    })
}

/// Headers by which HTTP reads a message, beside those that begin with `content-`.
const OF_HTTP: [&str; 4] = ["connection", "set-cookie", "transfer-encoding", "upgrade"];

/// Parses the name of a header with a limit.
fn header_name(text: &str) -> Result<HeaderName, String> {
    let name = text.parse::<HeaderName>().map_err(|error| error.to_string())?;
    match name.as_str().starts_with("content-") || OF_HTTP.contains(&name.as_str()) {
        true => Err("HTTP itself uses this header: write a name such as X-RateLimit-Limit".to_owned()),
        false => Ok(name),
    }
}

/// Parses an address such as `127.0.0.1:8080` or `[::1]:8080`.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| hint(text))
}

/// Returns the address that was probably meant.
fn hint(text: &str) -> String {
    let port = |text: &str| text.parse::<u16>().ok();
    if let Some(port) = port(text.trim_start_matches(':')) {
        return format!(
            "the IP address is missing: write 127.0.0.1:{port}, or 0.0.0.0:{port} for all addresses"
        );
    }
    match text.rsplit_once(':').map(|(host, number)| (host, port(number))) {
        Some(("localhost", Some(port))) => format!("a name is no address: write 127.0.0.1:{port}"),
        Some(("*", Some(port))) => format!("write 0.0.0.0:{port} for all addresses"),
        _ => "write an IP address and a port, such as 127.0.0.1:8080".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistake_in_an_address_gets_a_correct_one() {
        for text in ["127.0.0.1:0", "[::1]:8080", "0.0.0.0:8080"] {
            assert_eq!(address(text).unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("8080", "write 127.0.0.1:8080, or 0.0.0.0:8080"),
            (":8080", "write 127.0.0.1:8080, or 0.0.0.0:8080"),
            ("localhost:0", "write 127.0.0.1:0"),
            ("*:8080", "write 0.0.0.0:8080"),
            ("127.0.0.1", "an IP address and a port, such as 127.0.0.1:8080"),
            ("::1:8080x", "such as 127.0.0.1:8080"),
            ("127.0.0.1:70000", "such as 127.0.0.1:8080"),
            ("70000", "such as 127.0.0.1:8080"),
            ("", "such as 127.0.0.1:8080"),
        ] {
            let error = address(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
