//! The environment variables of envoyproxy/ratelimit (its commit f2fb157), and their treatment. The page
//! `docs/operate/migrate-from-envoyproxy-ratelimit.md` has a row for each.

use std::cell::RefCell;
use std::ffi::OsString;

use self::Treatment::{Always, OnlyWith, Refused, Setting, Warned};
use super::super::setting::{Origin, SettingValue};
use crate::redis_url::Password;

/// A variable, and the value that has no effect there, which needs no report.
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) neutral: &'static str,
    pub(crate) treatment: Treatment,
}

/// How a variable is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// It becomes one of these settings.
    Setting(&'static [&'static str]),
    /// The service behaves as any of its values asks for.
    Always,
    /// It has a meaning only beside this variable.
    OnlyWith(&'static str),
    /// It has no effect, and a warning says why. The decisions are the same.
    Warned(&'static str),
    /// The decisions would differ, so it is an error. The text says what to do.
    Refused(&'static str),
}

/// Returns the variable that a name of the environment may mean, if it differs from all of them by few letters. Short
/// names are left out, because unrelated programs have similar ones.
pub(crate) fn misspelt(name: &str) -> Option<&'static str> {
    let long = VARIABLES.iter().map(|variable| variable.name).filter(|known| known.len() > 7);
    let (given, most) = (name.to_ascii_uppercase(), name.len().clamp(8, 16) / 8);
    // Of unlike lengths, they differ by more; and the distance takes time that grows with both.
    let mut near = long.filter(|known| known.len().abs_diff(given.len()) <= most);
    let near = near.find(|known| strsim::damerau_levenshtein(&given, known) <= most);
    near.filter(|_| VARIABLES.iter().all(|variable| variable.name != name))
}

const fn variable(name: &'static str, neutral: &'static str, treatment: Treatment) -> Variable {
    Variable { name, neutral, treatment }
}

const NO_POOL: Treatment = Warned("one connection carries the calls of all requests");
const BATCHED: Treatment = Warned("calls are always batched");
const NO_STATSD: Treatment =
    Warned("no metrics are sent to statsd, also by default; set --admin-addr for those of Prometheus");
const NO_DEBUG_PORT: Treatment =
    Warned("the admin port has /metrics and /config: set --admin-addr (docs/operate/console.md)");
const HTTP: &[&str] = &["http_addr"];
const GRPC: &[&str] = &["grpc_addr"];
const REDIS: &[&str] = &["redis", "sentinel", "cluster"];
const XDS: Treatment = OnlyWith("CONFIG_TYPE");
const MEMCACHE: Treatment = OnlyWith("BACKEND_TYPE");
const PER_SECOND: Treatment = OnlyWith("REDIS_PERSECOND");
const STATSD: Treatment = OnlyWith("USE_STATSD");
const PROMETHEUS: Treatment = OnlyWith("USE_PROMETHEUS");
const TRACING: Treatment = OnlyWith("TRACING_ENABLED");

/// All variables, in the order of the page.
pub(crate) const VARIABLES: &[Variable] = &[
    // Rules.
    variable("RUNTIME_ROOT", "", Setting(&["rules"])),
    variable("RUNTIME_SUBDIRECTORY", "", Setting(&["rules"])),
    variable("RUNTIME_APPDIRECTORY", "", Setting(&["rules"])),
    variable("RUNTIME_WATCH_ROOT", "", Always),
    variable("RUNTIME_IGNOREDOTFILES", "true", Warned("files whose names begin with a dot are never read")),
    variable("MERGE_DOMAIN_CONFIG", "", Setting(&["merge_domains"])),
    variable(
        "CONFIG_TYPE",
        "FILE",
        Refused("rules come from files: let the controller write them into a folder or a ConfigMap"),
    ),
    variable(
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        "false",
        Warned("the service does not start without valid rules"),
    ),
    variable("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "", Always),
    variable("CONFIG_GRPC_XDS_NODE_ID", "", XDS),
    variable("CONFIG_GRPC_XDS_NODE_METADATA", "", XDS),
    variable("CONFIG_GRPC_XDS_SERVER_URL", "", XDS),
    variable("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "", XDS),
    variable("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", XDS),
    variable("CONFIG_GRPC_XDS_SERVER_USE_TLS", "", XDS),
    variable("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", XDS),
    variable("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", XDS),
    variable("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", XDS),
    variable("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", XDS),
    variable("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "", XDS),
    variable("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "", XDS),
    variable("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "", XDS),
    variable("XDS_CLIENT_BACKOFF_JITTER", "", XDS),
    variable("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", XDS),
    // Ports.
    variable("HOST", "", Setting(HTTP)),
    variable("PORT", "", Setting(HTTP)),
    variable("GRPC_HOST", "", Setting(GRPC)),
    variable("GRPC_PORT", "", Setting(GRPC)),
    variable("GRPC_UDS", "", Refused("the gRPC port is a TCP port: unset it, and give Envoy an address")),
    variable("DEBUG_HOST", "", NO_DEBUG_PORT),
    variable("DEBUG_PORT", "", NO_DEBUG_PORT),
    variable("GRPC_MAX_CONNECTION_AGE", "", Setting(&["max_connection_age"])),
    variable(
        "GRPC_MAX_CONNECTION_AGE_GRACE",
        "",
        Warned("a connection that is too old ends when its requests have ended"),
    ),
    variable("GRPC_SERVER_USE_TLS", "", Setting(&["grpc_certificate"])),
    variable("GRPC_SERVER_TLS_CERT", "", Setting(&["grpc_certificate"])),
    variable("GRPC_SERVER_TLS_KEY", "", Setting(&["grpc_key"])),
    variable("GRPC_CLIENT_TLS_CACERT", "", Setting(&["grpc_client_ca"])),
    variable("GRPC_CLIENT_TLS_SAN", "", Setting(&["grpc_client_san"])),
    // Decisions and responses.
    variable("SHADOW_MODE", "", Setting(&["shadow"])),
    variable("QUOTA_MODE", "false", Refused("unset it, and set `quota_mode: true` in the rules")),
    variable("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "", Setting(&["charge"])),
    variable("LIMIT_RESPONSE_HEADERS_ENABLED", "", Setting(&["headers"])),
    variable("LIMIT_LIMIT_HEADER", "", Setting(&["limit_header"])),
    variable("LIMIT_REMAINING_HEADER", "", Setting(&["remaining_header"])),
    variable("LIMIT_RESET_HEADER", "", Setting(&["reset_header"])),
    variable("RESPONSE_DYNAMIC_METADATA", "", Setting(&["request_metadata"])),
    variable("NEAR_LIMIT_RATIO", "0.8", Warned("it changes only statistics, which have other names here")),
    variable("LOCAL_CACHE_SIZE_IN_BYTES", "", Setting(&["charge_denied"])),
    variable("EXPIRATION_JITTER_MAX_SECONDS", "", Warned("keys expire soon after their window")),
    variable("CACHE_KEY_PREFIX", "", Setting(&["namespace"])),
    variable("BACKEND_TYPE", "redis", Refused("limits are in Redis: unset it, and set REDIS_URL")),
    // Redis.
    variable("REDIS_SOCKET_TYPE", "", Setting(REDIS)),
    variable("REDIS_TYPE", "", Setting(REDIS)),
    variable("REDIS_URL", "", Setting(REDIS)),
    variable("REDIS_AUTH", "", Setting(&["user", "password_file"])),
    variable("REDIS_SENTINEL_AUTH", "", Setting(REDIS)),
    variable("REDIS_TLS", "", Setting(REDIS)),
    variable("REDIS_TLS_CLIENT_CERT", "", Setting(&["tls_certificate"])),
    variable("REDIS_TLS_CLIENT_KEY", "", Setting(&["tls_key"])),
    variable("REDIS_TLS_CACERT", "", Setting(&["tls_ca"])),
    variable(
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        "false",
        Refused("unset it, and use a host name that the certificate of Redis contains"),
    ),
    variable("REDIS_TIMEOUT", "", Setting(&["deadline"])),
    variable("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "", Setting(&["ready_needs_redis"])),
    variable("REDIS_POOL_SIZE", "", NO_POOL),
    variable("REDIS_POOL_ON_EMPTY_BEHAVIOR", "", NO_POOL),
    variable("REDIS_POOL_ON_EMPTY_WAIT_DURATION", "", NO_POOL),
    variable("REDIS_PIPELINE_WINDOW", "", BATCHED),
    variable("REDIS_PIPELINE_LIMIT", "", BATCHED),
    variable("REDIS_CLUSTER_PIPELINE_PARALLELISM", "", BATCHED),
    variable(
        "REDIS_STARTUP_INITIAL_INTERVAL",
        "",
        Warned("the service starts without Redis, and reconnects by itself"),
    ),
    variable(
        "REDIS_STARTUP_MAX_INTERVAL",
        "",
        Warned("the service starts without Redis, and reconnects by itself"),
    ),
    variable(
        "REDIS_STARTUP_MAX_ELAPSED_TIME",
        "",
        Warned("the service starts without Redis, and reconnects by itself"),
    ),
    variable(
        "REDIS_PERSECOND",
        "false",
        Warned(
            "the Redis of REDIS_URL has all limits, also those per second; REDIS_TYPE=CLUSTER spreads them",
        ),
    ),
    variable("REDIS_PERSECOND_SOCKET_TYPE", "", PER_SECOND),
    variable("REDIS_PERSECOND_TYPE", "", PER_SECOND),
    variable("REDIS_PERSECOND_URL", "", PER_SECOND),
    variable("REDIS_PERSECOND_POOL_SIZE", "", PER_SECOND),
    variable("REDIS_PERSECOND_AUTH", "", PER_SECOND),
    variable("REDIS_PERSECOND_TLS", "", PER_SECOND),
    variable("REDIS_PERSECOND_SENTINEL_AUTH", "", PER_SECOND),
    variable("REDIS_PERSECOND_PIPELINE_WINDOW", "", PER_SECOND),
    variable("REDIS_PERSECOND_PIPELINE_LIMIT", "", PER_SECOND),
    variable("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "", PER_SECOND),
    variable("REDIS_PERSECOND_TIMEOUT", "", PER_SECOND),
    variable("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "", PER_SECOND),
    variable("REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION", "", PER_SECOND),
    variable("MEMCACHE_HOST_PORT", "", MEMCACHE),
    variable("MEMCACHE_MAX_IDLE_CONNS", "", MEMCACHE),
    variable("MEMCACHE_SRV", "", MEMCACHE),
    variable("MEMCACHE_SRV_REFRESH", "", MEMCACHE),
    variable("MEMCACHE_TLS", "", MEMCACHE),
    variable("MEMCACHE_TLS_CLIENT_CERT", "", MEMCACHE),
    variable("MEMCACHE_TLS_CLIENT_KEY", "", MEMCACHE),
    variable("MEMCACHE_TLS_CACERT", "", MEMCACHE),
    variable("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "", MEMCACHE),
    // Logs, statistics and traces.
    variable("LOG_LEVEL", "", Warned("errors, warnings and reloads are always reported")),
    variable("LOG_FORMAT", "", Setting(&["json"])),
    variable("USE_STATSD", "false", NO_STATSD),
    variable("STATSD_HOST", "", STATSD),
    variable("STATSD_PORT", "", STATSD),
    variable("USE_DOG_STATSD", "false", NO_STATSD),
    variable("USE_DOG_STATSD_MOGRIFIERS", "", OnlyWith("USE_DOG_STATSD")),
    variable("EXTRA_TAGS", "", NO_STATSD),
    variable("STATS_FLUSH_INTERVAL", "", NO_STATSD),
    variable("DISABLE_STATS", "", Always),
    variable(
        "USE_PROMETHEUS",
        "false",
        Warned(
            "/metrics of the admin port has metrics with other names: set --admin-addr (docs/operate/console.md)",
        ),
    ),
    variable("PROMETHEUS_ADDR", "", PROMETHEUS),
    variable("PROMETHEUS_PATH", "", PROMETHEUS),
    variable("PROMETHEUS_MAPPER_YAML", "", PROMETHEUS),
    variable("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "", PROMETHEUS),
    variable("TRACING_ENABLED", "false", Warned("no spans are exported")),
    variable("TRACING_SERVICE_NAME", "", TRACING),
    variable("TRACING_SERVICE_NAMESPACE", "", TRACING),
    variable("TRACING_SERVICE_INSTANCE_ID", "", TRACING),
    variable("TRACING_EXPORTER_PROTOCOL", "", TRACING),
    variable("TRACING_SAMPLING_RATE", "", TRACING),
];

/// The settings that the variables mean.
#[derive(Debug, Default)]
pub(crate) struct Imported {
    pub(crate) values: Vec<SettingValue>,
    pub(crate) password: Option<Password>,
    pub(crate) warnings: Vec<String>,
    pub(crate) mistakes: Vec<String>,
}

impl Imported {
    pub(super) fn set(&mut self, name: &str, text: impl Into<String>, variable: &str) {
        self.set_all(name, vec![text.into()], variable);
    }

    pub(super) fn set_all(&mut self, name: &str, texts: Vec<String>, variable: &str) {
        let origin = Origin::Variable(variable.to_owned());
        self.values.push(SettingValue { name: name.to_owned(), texts, origin });
    }
}

/// The variables of an environment, and their mistakes. An empty one is not set, as in envoyproxy/ratelimit.
pub(super) struct Variables<'e> {
    environment: &'e dyn Fn(&str) -> Option<OsString>,
    mistakes: RefCell<Vec<String>>,
}

impl<'e> Variables<'e> {
    pub(super) fn new(environment: &'e dyn Fn(&str) -> Option<OsString>) -> Self {
        Self { environment, mistakes: RefCell::default() }
    }

    /// Returns the text of a variable.
    pub(super) fn get(&self, name: &'static str) -> Option<String> {
        debug_assert!(VARIABLES.iter().any(|variable| variable.name == name), "{name} is not in the table");
        let text = (self.environment)(name).filter(|text| !text.is_empty())?;
        self.valid(text.into_string(), || format!("{name} is not text in UTF-8"))
    }

    pub(super) fn is_true(&self, name: &'static str) -> bool {
        let Some(text) = self.get(name) else { return false };
        self.valid(boolean(&text).ok_or(()), || format!("{name}={text}: write true or false"))
            .unwrap_or_default()
    }

    /// Notes a mistake unless there is a value.
    pub(super) fn valid<T, E>(&self, value: Result<T, E>, mistake: impl FnOnce() -> String) -> Option<T> {
        if value.is_err() {
            self.refuse(mistake());
        }
        value.ok()
    }

    /// Notes a mistake, unless it is known: a variable can be read twice.
    pub(super) fn refuse(&self, mistake: String) {
        let mut mistakes = self.mistakes.borrow_mut();
        if !mistakes.contains(&mistake) {
            mistakes.push(mistake);
        }
    }

    pub(super) fn into_mistakes(self) -> Vec<String> {
        self.mistakes.into_inner()
    }
}

/// Reads a Boolean as Go does.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}
