//! The one error type. A denial is never an error: see [`Decision`](crate::Decision).

pub(crate) mod gate_name;
pub mod redact;
mod server_message;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::gate_name::GateName;
use crate::error::redact::RedactedKey;

/// The event that a caller waits for while the queue is full.
pub(crate) const QUEUE_ROOM: &str = "room in the queue: more checks arrive than Redis can answer";

/// The reason why there is no decision. Opaque: its methods tell the kinds apart.
///
/// Cheap to clone, because one failed round trip can fail many callers. Its text names the cause and the
/// remedy. The text never contains a whole key, which may be an address or a token; [`Error::key`] returns
/// the key.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    /// The index of the item in its group that failed.
    item: usize,
    /// The gate and key, if one key failed.
    about: Option<About>,
    /// The address of the Redis, without credentials, if the call was about Redis and not about a key.
    address: Option<Box<str>>,
}

#[derive(Clone)]
struct About {
    gate: GateName,
    key: Vec<u8>,
}

#[derive(Clone, Debug)]
enum ErrorKind {
    Config(String),
    OverCapacity { cost: u64, limit: u64 },
    Timeout { waited_for: &'static str, deadline: Duration },
    Unavailable(String),
    LostCall(String),
    BreakerOpen,
    RuntimeEnded,
    State { field: String },
    WrongType,
    Refused(String),
    LapsedLease,
    StaleMessage,
    ShutDown,
}

/// # Kinds of errors
impl Error {
    /// Returns whether the deadline passed before an answer came. The check may have been charged.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Timeout { .. })
    }

    /// Returns whether Redis could not be reached or did not answer: refused, disconnected, too late,
    /// loading, out of memory. A later retry can succeed.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.is_unanswered()
            || self.is_lapsed_lease()
            || self.is_stale_message()
            || matches!(self.0.kind, ErrorKind::BreakerOpen | ErrorKind::RuntimeEnded | ErrorKind::Refused(_))
    }

    /// Returns whether the call can never succeed: a bad URL, gate name or quota, or checks that cannot be
    /// combined.
    #[must_use]
    pub fn is_config(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Config(_))
    }

    /// Returns whether the cost is above the quota's limit, so that the check can never be admitted.
    #[must_use]
    pub fn is_over_capacity(&self) -> bool {
        matches!(self.0.kind, ErrorKind::OverCapacity { .. })
    }

    /// Returns the cost of the check and the limit below it, if this is [the error](Self::is_over_capacity).
    #[must_use]
    pub fn cost_and_limit(&self) -> Option<(u64, u64)> {
        match self.0.kind {
            ErrorKind::OverCapacity { cost, limit } => Some((cost, limit)),
            _ => None,
        }
    }

    /// Returns whether the key in Redis holds data that tidegate did not write. Other keys are not affected.
    #[must_use]
    pub fn is_corrupt_state(&self) -> bool {
        matches!(self.0.kind, ErrorKind::State { .. } | ErrorKind::WrongType)
    }

    /// Returns whether the limiter was shut down. No [`OnFailure`](crate::OnFailure) applies.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        matches!(self.0.kind, ErrorKind::ShutDown)
    }

    /// All values that [`kind`](Self::kind) returns.
    #[cfg(any(feature = "metrics", test))]
    pub(crate) const KINDS: [&str; 11] = [
        "queue_full",
        "timeout",
        "unavailable",
        "breaker_open",
        "refused",
        "lapsed_lease",
        "corrupt_state",
        "over_capacity",
        "config",
        "shut_down",
        "runtime_ended",
    ];

    /// Returns the error's label for metrics and texts. Later versions may add labels.
    ///
    /// | label | cause | predicate |
    /// | --- | --- | --- |
    /// | `queue_full` | the deadline passed before there was room in the queue | [`is_timeout`](Self::is_timeout) |
    /// | `timeout` | the deadline passed before Redis answered | [`is_timeout`](Self::is_timeout) |
    /// | `unavailable` | Redis could not be reached, or sent no usable reply | [`is_unavailable`](Self::is_unavailable) |
    /// | `breaker_open` | the circuit breaker is open, so the check was not sent | [`is_unavailable`](Self::is_unavailable) |
    /// | `refused` | Redis rejected the call: no permission, no memory, a replica | [`is_unavailable`](Self::is_unavailable) |
    /// | `runtime_ended` | the tokio runtime of the call has ended | [`is_unavailable`](Self::is_unavailable) |
    /// | `lapsed_lease` | the lease of this process's permits ended before Redis processed the call | [`is_unavailable`](Self::is_unavailable) |
    /// | `corrupt_state` | the key holds data of another writer | [`is_corrupt_state`](Self::is_corrupt_state) |
    /// | `over_capacity` | the cost is above the limit | [`is_over_capacity`](Self::is_over_capacity) |
    /// | `config` | a setting or an argument is invalid | [`is_config`](Self::is_config) |
    /// | `shut_down` | the limiter was shut down | [`is_shut_down`](Self::is_shut_down) |
    ///
    /// [`is_unavailable`](Self::is_unavailable) is also true of both timeouts.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.0.kind {
            ErrorKind::Timeout { waited_for, .. } if *waited_for == QUEUE_ROOM => "queue_full",
            ErrorKind::Timeout { .. } => "timeout",
            ErrorKind::Unavailable(_) | ErrorKind::LostCall(_) => "unavailable",
            ErrorKind::BreakerOpen => "breaker_open",
            ErrorKind::Refused(_) => "refused",
            ErrorKind::LapsedLease | ErrorKind::StaleMessage => "lapsed_lease",
            ErrorKind::State { .. } | ErrorKind::WrongType => "corrupt_state",
            ErrorKind::OverCapacity { .. } => "over_capacity",
            ErrorKind::Config(_) => "config",
            ErrorKind::ShutDown => "shut_down",
            ErrorKind::RuntimeEnded => "runtime_ended",
        }
    }

    /// Returns the gate, if a single check failed.
    #[must_use]
    pub fn gate(&self) -> Option<&str> {
        self.0.about.as_ref().map(|about| &*about.gate)
    }

    /// Returns the whole key, if a single check failed. It may be personal data: the error's text does not
    /// show it.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.0.about.as_ref().map(|about| &*about.key)
    }

    /// Returns the error without its gate and key, for texts that must not show any part of a key.
    #[must_use]
    pub fn cause(&self) -> Self {
        Self(Arc::new(Inner { about: None, ..Inner::clone(&self.0) }))
    }
}

/// # Constructors for other modules
impl Error {
    /// Returns whether Redis was called and did not answer.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Timeout { .. } | ErrorKind::Unavailable(_) | ErrorKind::LostCall(_))
    }

    /// Returns whether this process made the error, so that it says nothing about Redis.
    pub(crate) fn is_of_this_process(&self) -> bool {
        use ErrorKind::{BreakerOpen, Config, OverCapacity, RuntimeEnded, ShutDown};
        matches!(self.0.kind, BreakerOpen | Config(_) | OverCapacity { .. } | RuntimeEnded | ShutDown)
    }

    /// Returns whether the call may have changed something, or may still do so.
    pub(crate) fn may_have_run(&self) -> bool {
        self.is_unanswered()
            || self.is_stale_message()
            || matches!(self.0.kind, ErrorKind::RuntimeEnded | ErrorKind::Refused(_))
    }

    /// Returns whether the holder of permits was not live when Redis processed its message or renewal.
    pub(crate) fn is_lapsed_lease(&self) -> bool {
        matches!(self.0.kind, ErrorKind::LapsedLease)
    }

    /// Returns whether Redis had processed a later message of the same holder about the same key.
    pub(crate) fn is_stale_message(&self) -> bool {
        matches!(self.0.kind, ErrorKind::StaleMessage)
    }

    pub(crate) fn lapsed_lease() -> Self {
        Self::of(ErrorKind::LapsedLease)
    }

    pub(crate) fn stale_message() -> Self {
        Self::of(ErrorKind::StaleMessage)
    }

    /// Sets the index of the item in its group that failed.
    pub(crate) fn of_item(self, item: usize) -> Self {
        Self(Arc::new(Inner { item, ..Inner::clone(&self.0) }))
    }

    pub(crate) fn runtime_ended() -> Self {
        Self::of(ErrorKind::RuntimeEnded)
    }

    pub(crate) fn is_breaker_open(&self) -> bool {
        matches!(self.0.kind, ErrorKind::BreakerOpen)
    }

    pub(crate) fn breaker_open() -> Self {
        Self::of(ErrorKind::BreakerOpen)
    }

    /// Makes a configuration error with this text, for crates that extend tidegate. The text says what is
    /// wrong and what to do.
    pub fn config(text: impl Into<String>) -> Self {
        Self::of(ErrorKind::Config(text.into()))
    }

    pub(crate) fn over_capacity(cost: u64, limit: u64) -> Self {
        Self::of(ErrorKind::OverCapacity { cost, limit })
    }

    pub(crate) fn timeout(waited_for: &'static str, deadline: Duration) -> Self {
        Self::of(ErrorKind::Timeout { waited_for, deadline })
    }

    /// Returns the error for units of a fallback that were not charged before the limiter was shut down.
    pub(crate) fn unreconciled(units: u64) -> Self {
        Self::unavailable(format!(
            "the limiter was shut down before {units} units that the fallback admitted were charged"
        ))
    }

    /// Returns the error for a settle that found the queue full.
    pub(crate) fn settle_queue_full(calls: usize) -> Self {
        Self::unavailable(format!(
            "{calls} settles of reservations wait for it already: this hold ends after its ttl, with its units charged or refunded as its reservation says"
        ))
    }

    /// Returns the error for a settle that Redis did not answer before the hold ended, or before the shutdown.
    pub(crate) fn unsettled() -> Self {
        Self::unavailable(
            "a queued settle of a reservation was not answered in time: its hold ends after its ttl",
        )
    }

    pub(crate) fn unavailable(text: impl Into<String>) -> Self {
        Self::of(ErrorKind::Unavailable(text.into()))
    }

    /// Makes the error for a call whose connection was lost: it may have run.
    pub(crate) fn lost_call(text: impl Into<String>) -> Self {
        Self::of(ErrorKind::LostCall(text.into()))
    }

    /// Makes the error for a Redis that rejects connections, with its reason.
    pub(crate) fn unavailable_since(message: &str) -> Self {
        Self::unavailable(server_message::explained(message))
    }

    pub(crate) fn shut_down() -> Self {
        Self::of(ErrorKind::ShutDown)
    }

    /// Parses an error string that a reply has in place of a row. A group's error begins with the index of
    /// the item that failed, from 1.
    pub(crate) fn from_script(text: &str) -> Self {
        let placed = text.split_once(' ').and_then(|(place, why)| Some((place.parse::<usize>().ok()?, why)));
        let (place, why) = placed.unwrap_or((1, text));
        Self::new(Self::kind_of(why.trim_start_matches('-')), place.saturating_sub(1))
    }

    fn kind_of(text: &str) -> ErrorKind {
        if let Some(field) = text.strip_prefix("STATE ") {
            ErrorKind::State { field: field.to_owned() }
        } else if text.starts_with("LAPSED ") {
            ErrorKind::LapsedLease
        } else if text.starts_with("STALE ") {
            ErrorKind::StaleMessage
        } else if text.starts_with("WRONGTYPE") {
            ErrorKind::WrongType
        } else {
            ErrorKind::Refused(server_message::explained(text))
        }
    }

    pub(crate) fn with_context(self, gate: GateName, key: &[u8]) -> Self {
        let about = Some(About { gate, key: key.to_vec() });
        Self(Arc::new(Inner { about, ..Inner::clone(&self.0) }))
    }

    /// Adds the address of the Redis, which must be without credentials.
    pub(crate) fn at(self, address: String) -> Self {
        Self(Arc::new(Inner { address: Some(address.into()), ..Inner::clone(&self.0) }))
    }

    /// Returns whether Redis rejected the call or the credentials, rather than not answering.
    pub(crate) fn is_rejected(&self) -> bool {
        match &self.0.kind {
            ErrorKind::Refused(_) => true,
            // The error of an attempt to connect.
            ErrorKind::Unavailable(text) => server_message::is_of_permissions(text),
            _ => false,
        }
    }

    /// Returns the index of the item in its group that failed.
    pub(crate) fn item(&self) -> usize {
        self.0.item
    }

    /// Returns whether Redis rejected the call because its keys are on different nodes of a cluster while
    /// their slot migrates.
    pub(crate) fn is_of_keys_apart(&self) -> bool {
        matches!(&self.0.kind, ErrorKind::Refused(text) if text.starts_with("TRYAGAIN"))
    }

    /// Returns whether Redis has no memory for what the call would write.
    ///
    /// Of a message of a holder, only the acquires were rejected: what the holder keeps was reported.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(&self.0.kind, ErrorKind::Refused(text) if text.starts_with("OOM"))
    }

    /// Returns whether the connection was lost while the call was in flight: it may have run.
    pub(crate) fn is_lost_call(&self) -> bool {
        matches!(self.0.kind, ErrorKind::LostCall(_))
    }

    /// Returns whether both are clones of one error.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn of(kind: ErrorKind) -> Self {
        Self::new(kind, 0)
    }

    fn new(kind: ErrorKind, item: usize) -> Self {
        Self(Arc::new(Inner { kind, item, about: None, address: None }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(About { gate, key }) = &self.0.about {
            write!(f, "gate \"{gate}\", key {}: ", RedactedKey::new(key))?;
        }
        if let Some(address) = &self.0.address {
            write!(f, "{address}: ")?;
        }
        match &self.0.kind {
            ErrorKind::Config(text) => f.write_str(text),
            ErrorKind::OverCapacity { cost, limit } => {
                write!(f, "a cost of {cost} can never pass a limit of {limit}: split it or raise the limit")
            }
            ErrorKind::Timeout { waited_for, deadline } => write!(
                f,
                "timed out after {deadline:?} waiting for {waited_for}: check whether Redis is slow or far away, or raise the deadline"
            ),
            ErrorKind::Unavailable(text) | ErrorKind::LostCall(text) => {
                write!(f, "Redis is unavailable: {text}")
            }
            ErrorKind::State { field } => write!(
                f,
                "corrupt state in field `{field}`, which tidegate did not write: find the other writer, then reset the key"
            ),
            ErrorKind::WrongType => f.write_str(
                "the key has a type that tidegate does not write: find the other writer, or use another namespace",
            ),
            ErrorKind::RuntimeEnded => f.write_str("the tokio runtime of the call to Redis has ended: check again"),
            ErrorKind::BreakerOpen => f.write_str(
                "the circuit breaker is open because Redis has not answered lately: find out why; Redis is probed at least twice a second",
            ),
            ErrorKind::Refused(text) => write!(f, "Redis rejected the call: {text}"),
            ErrorKind::LapsedLease => f.write_str(
                "the lease of this process's permits ended before Redis processed the call: acquire again; if it happens often, Redis is too slow for `permit_ttl`",
            ),
            ErrorKind::StaleMessage => {
                f.write_str("Redis had processed a later message about these permits: acquire again")
            }
            ErrorKind::ShutDown => f.write_str("this limiter was shut down: open another one"),
        }
    }
}

/// The message: it is what the standard library prints of an error that `main` returns.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_listed_in_their_documentation() {
        let source = include_str!("error.rs");
        let (_, table) = source.split_once("/// | label | cause | predicate |").unwrap();
        let (table, _) = table.split_once("pub fn kind").unwrap();
        let label =
            |line: &str| Some(line.trim_start().strip_prefix("/// | `")?.split_once('`')?.0.to_owned());
        let mut listed: Vec<String> = table.lines().filter_map(label).collect();
        let mut kinds = Error::KINDS.to_vec();
        listed.sort_unstable();
        kinds.sort_unstable();
        assert_eq!(listed, kinds);
    }

    #[test]
    fn rejected_credentials_are_not_a_server_that_does_not_answer() {
        for (error, is_rejected) in [
            (Error::unavailable_since("WRONGPASS invalid user or password"), true),
            (Error::unavailable_since("NOAUTH Authentication required."), true),
            (Error::from_script("NOPERM User limits has no permissions to run the 'hset' command"), true),
            (Error::from_script("OOM command not allowed"), true),
            (Error::unavailable("Connection refused (os error 111)"), false),
            (Error::timeout("a connection", Duration::from_millis(100)), false),
            (Error::breaker_open(), false),
        ] {
            assert_eq!(error.is_rejected(), is_rejected, "{error}");
        }
    }
}
