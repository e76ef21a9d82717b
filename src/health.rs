//! What an operator wants to know of a limiter.

use std::fmt;
use std::time::Duration;

use crate::error::Error;

/// How a limiter and its Redis are: [`Limiter::health`](crate::Limiter::health).
#[derive(Clone, Debug)]
#[must_use]
pub struct Health {
    pub(crate) breaker_open_for: Option<Duration>,
    pub(crate) instances: u64,
    pub(crate) server: Result<Server, Error>,
}

/// What the server says of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    /// Such as `Redis 7.0.15`.
    pub(crate) version: String,
    pub(crate) maxmemory_policy: String,
    /// Of those that scripts need.
    pub(crate) missing_rights: Vec<String>,
}

impl Health {
    /// Redis answers and is asked, and there is nothing to warn of.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.breaker_open_for.is_none() && self.server.is_ok() && self.warnings().is_empty()
    }

    /// For how long the circuit breaker has been open; `None` where it is closed.
    #[must_use]
    pub const fn breaker_open_for(&self) -> Option<Duration> {
        self.breaker_open_for
    }

    /// How many processes share the quotas, as far as this one knows. See
    /// [`Builder::instances`](crate::Builder::instances).
    #[must_use]
    pub const fn instances(&self) -> u64 {
        self.instances
    }

    /// Name and version of the server, such as `Redis 7.0.15` or `Valkey 8.1.1`.
    ///
    /// # Errors
    ///
    /// Why it did not say: it does not answer, or this user may not ask (`+info`).
    pub fn server(&self) -> Result<&str, &Error> {
        self.server.as_ref().map(|server| &*server.version)
    }

    /// What may lead to wrong decisions, and what to do about it.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let policy = self.server.as_ref().map_or("", |server| &*server.maxmemory_policy);
        let evicts = !matches!(policy, "" | "noeviction");
        let evicts = evicts.then(|| {
            format!(
                "maxmemory-policy is {policy}: a Redis that is full forgets what was used, and each key that it forgets may be used up to its limit again; set it to noeviction"
            )
        });
        let lacks = self.server.as_ref().ok().filter(|server| !server.missing_rights.is_empty());
        let lacks = lacks.map(|server| {
            let rights: Vec<String> =
                server.missing_rights.iter().map(|right| format!("+{}", right.to_lowercase())).collect();
            format!(
                "the Redis user lacks {} for this namespace's keys (~NAMESPACE:*): asks that need it fail, and may have been charged by then; see \"A Redis user for it\" in the README",
                rights.join(" ")
            )
        });
        evicts.into_iter().chain(lacks).collect()
    }
}

/// Such as `Redis 7.0.15 answers, circuit breaker closed, 3 instances`.
impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Ok(server) => write!(f, "{} answers", server.version)?,
            Err(error) => write!(f, "no word from the server ({error})")?,
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
    /// From what INFO says of `server` and `memory`.
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
