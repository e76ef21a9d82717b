//! The health of a limiter, for operators.

use std::fmt;
use std::time::Duration;

use crate::error::Error;

/// The health of a limiter and its Redis, returned by [`Limiter::health`](crate::Limiter::health).
#[derive(Clone, Debug)]
#[must_use]
pub struct Health {
    pub(crate) breaker_open_for: Option<Duration>,
    pub(crate) instances: u64,
    pub(crate) server: Result<Server, Error>,
    /// What keeps charges from other regions.
    pub(crate) replication: Vec<String>,
}

/// The server's own report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    /// For example `Redis 7.0.15`.
    pub(crate) version: String,
    pub(crate) maxmemory_policy: String,
    /// The missing permissions among those that the scripts need.
    pub(crate) missing_permissions: Vec<String>,
}

impl Health {
    /// Returns whether Redis answers, the circuit breaker is closed, and there are no warnings.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.breaker_open_for.is_none() && self.server.is_ok() && self.warnings().is_empty()
    }

    /// Returns how long the circuit breaker has been open, or `None` if it is closed.
    #[must_use]
    pub const fn breaker_open_for(&self) -> Option<Duration> {
        self.breaker_open_for
    }

    /// Returns the number of processes that share the quotas, as far as this process knows. See
    /// [`Builder::instances`](crate::Builder::instances).
    #[must_use]
    pub const fn instances(&self) -> u64 {
        self.instances
    }

    /// Returns name and version of the server, such as `Redis 7.0.15` or `Valkey 8.1.1`.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or its user lacks the permission `+info`.
    pub fn server(&self) -> Result<&str, &Error> {
        self.server.as_ref().map(|server| &*server.version)
    }

    /// Returns what may lead to wrong decisions, each with advice.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let policy = self.server.as_ref().map_or("", |server| &*server.maxmemory_policy);
        let evicts = !matches!(policy, "" | "noeviction");
        let evicts = evicts.then(|| {
            format!(
                "maxmemory-policy is {policy}: a full Redis evicts keys, and each evicted key starts at its full limit again; set it to noeviction"
            )
        });
        let lacks = self.server.as_ref().ok().filter(|server| !server.missing_permissions.is_empty());
        let lacks = lacks.map(|server| {
            let permissions: Vec<String> =
                server.missing_permissions.iter().map(|right| format!("+{}", right.to_lowercase())).collect();
            format!(
                "the Redis user lacks {} for this namespace's keys (~NAMESPACE:*): checks that need it fail, possibly after they were charged; see \"A Redis user for it\" in the documentation (docs/operate/redis-user.md)",
                permissions.join(" ")
            )
        });
        evicts.into_iter().chain(lacks).chain(self.replication.clone()).collect()
    }
}

/// For example `Redis 7.0.15 answers, circuit breaker closed, 3 instances`.
impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Ok(server) => write!(f, "{} answers", server.version)?,
            Err(error) => write!(f, "no reply from the server ({error})")?,
        }
        match self.breaker_open_for {
            Some(open_for) => write!(f, ", circuit breaker open for {open_for:.1?}")?,
            None => f.write_str(", circuit breaker closed")?,
        }
        let plural = if self.instances == 1 { "" } else { "s" };
        write!(f, ", {} instance{plural}", self.instances)?;
        self.warnings().iter().try_for_each(|warning| write!(f, "; {warning}"))
    }
}

impl Server {
    /// Parses the reply to INFO, sections `server` and `memory`.
    pub(crate) fn of_info(info: &str) -> Self {
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let version = match (field("valkey_version"), field("redis_version")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, Some(version)) => format!("Redis {version}"),
            (None, None) => "a server of unknown version".to_owned(),
        };
        let maxmemory_policy = field("maxmemory_policy").unwrap_or_default().to_owned();
        Self { version, maxmemory_policy, ..Self::default() }
    }
}
