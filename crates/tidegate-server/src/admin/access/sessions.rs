//! The sessions of browsers, in the memory of this process.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::COOKIE;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidegate::ManualClock;

use super::control::Access;
use super::identity::{CsrfToken, Role};
use crate::random::random_bytes;

/// The maximum number of sessions. The one that was used longest ago yields to a new one.
const MAX_SESSIONS: usize = 1_000;
/// The maximum number of sessions of one token. Beyond it, its own sessions yield, so that nobody who has a token of a viewer
/// can end the sessions of others by logging in again and again.
const MAX_PER_TOKEN: usize = 100;
/// The time without a request after which a session ends.
pub(super) const IDLE: Duration = Duration::from_secs(30 * 60);
/// The time after which a session ends in any case.
pub(super) const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);

#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) csrf: CsrfToken,
    began: Duration,
    used: Duration,
}

impl Session {
    fn is_over(&self, now: Duration) -> bool {
        now.saturating_sub(self.used) >= IDLE || now.saturating_sub(self.began) >= LONGEST
    }
}

/// The sessions, by the SHA-256 of their ids: the time of a search tells nothing about an id.
#[derive(Debug)]
pub(super) struct Sessions {
    sessions: Mutex<HashMap<[u8; 32], Session>>,
    start: Instant,
    clock: Option<ManualClock>,
}

impl Sessions {
    pub(super) fn new(clock: Option<ManualClock>) -> Self {
        Self { sessions: Mutex::default(), start: Instant::now(), clock }
    }

    /// Begins a session, and returns its id.
    pub(super) fn begin(&self, name: String, role: Role) -> String {
        let (id, now) = (secret(), self.now());
        let session = Session { name, role, csrf: CsrfToken::random(), began: now, used: now };
        let mut sessions = self.lock();
        sessions.retain(|_, session| !session.is_over(now));
        let own = sessions.values().filter(|other| other.name == session.name).count();
        if own >= MAX_PER_TOKEN || sessions.len() >= MAX_SESSIONS {
            let yields = |other: &Session| own == 0 || other.name == session.name;
            let old = sessions.iter().filter(|(_, other)| yields(other));
            let oldest = old.min_by_key(|(_, session)| session.used).map(|(id, _)| *id);
            oldest.and_then(|oldest| sessions.remove(&oldest));
        }
        sessions.insert(digest(&id), session);
        id
    }

    /// Returns the session with this id. Notes its use, unless the request is a poll: an open page sends those without its
    /// user, who may have left.
    pub(super) fn find(&self, id: &str, is_poll: bool) -> Option<Session> {
        let (now, digest) = (self.now(), digest(id));
        let mut sessions = self.lock();
        let session = sessions.get_mut(&digest)?;
        if session.is_over(now) {
            sessions.remove(&digest);
            return None;
        }
        if !is_poll {
            session.used = now;
        }
        Some(session.clone())
    }

    /// Ends the session with this id, if there is one.
    pub(super) fn end(&self, id: &str) {
        self.lock().remove(&digest(id));
    }

    fn now(&self) -> Duration {
        self.clock.as_ref().map_or_else(|| self.start.elapsed(), ManualClock::now)
    }

    /// Ignores poisoning: each change is complete before the lock is released.
    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest(id: &str) -> [u8; 32] {
    Sha256::digest(id).into()
}

/// Returns the session id of the request's cookie.
pub(super) fn session_id<'h>(access: &Access, headers: &'h HeaderMap) -> Option<&'h str> {
    let name = cookie_name(access);
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut cookies =
        lines.flat_map(|line| line.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    cookies.find(|(found, _)| *found == name).map(|(_, id)| id)
}

/// The prefix makes browsers reject the cookie unless it is secure and of this host alone.
fn cookie_name(access: &Access) -> &'static str {
    if access.settings().is_behind_tls { "__Host-tidegate-admin" } else { "tidegate-admin" }
}

pub(super) fn cookie(access: &Access, id: &str, max_age_s: u64) -> String {
    let secure = if access.settings().is_behind_tls { "; Secure" } else { "" };
    format!("{}={id}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}", cookie_name(access))
}

// Secrets of this process: session ids and CSRF tokens.

/// Returns 256 bits from the operating system, as 64 hexadecimal digits.
pub(super) fn secret() -> String {
    let mut bytes = [0; 32];
    random_bytes(&mut bytes);
    hex(&bytes)
}

pub(in crate::admin) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Compares secrets in a time that does not depend on their content.
pub(super) fn is_same_secret(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> (Sessions, ManualClock) {
        let clock = ManualClock::new();
        (Sessions::new(Some(clock.clone())), clock)
    }

    #[test]
    fn session_ends_when_idle_and_at_its_longest_age() {
        let (sessions, clock) = sessions();
        let second = Duration::from_secs(1);
        let id = sessions.begin("ada".to_owned(), Role::Operator);
        clock.advance(IDLE - second);
        assert!(sessions.find(&id, false).is_some());
        clock.advance(IDLE);
        assert!(sessions.find(&id, false).is_none());

        let id = sessions.begin("ada".to_owned(), Role::Operator);
        let mut age = Duration::ZERO;
        while age + IDLE - second < LONGEST {
            clock.advance(IDLE - second);
            age += IDLE - second;
            assert!(sessions.find(&id, false).is_some(), "{age:?}");
        }
        clock.advance(LONGEST - age);
        assert!(sessions.find(&id, false).is_none());
    }

    #[test]
    fn poll_does_not_keep_a_session() {
        let (sessions, clock) = sessions();
        let id = sessions.begin("ada".to_owned(), Role::Operator);
        clock.advance(IDLE / 2);
        assert!(sessions.find(&id, true).is_some());
        clock.advance(IDLE / 2);
        assert!(sessions.find(&id, true).is_none());
    }

    /// Begins sessions, one each millisecond, and returns their ids.
    fn begin(sessions: &Sessions, clock: &ManualClock, name: &str, count: usize) -> Vec<String> {
        let begin = |_| {
            clock.advance(Duration::from_millis(1));
            sessions.begin(name.to_owned(), Role::Viewer)
        };
        (0..count).map(begin).collect()
    }

    fn are_open(sessions: &Sessions, ids: &[String]) -> bool {
        ids.iter().all(|id| sessions.find(id, false).is_some())
    }

    #[test]
    fn logins_of_one_token_end_only_its_own_sessions() {
        let (sessions, clock) = sessions();
        let ada = begin(&sessions, &clock, "ada", 2);
        let bob = begin(&sessions, &clock, "bob", MAX_SESSIONS + 1);
        assert!(are_open(&sessions, &ada) && are_open(&sessions, &bob[MAX_SESSIONS + 1 - MAX_PER_TOKEN..]));
        assert!(sessions.find(&bob[MAX_SESSIONS - MAX_PER_TOKEN], false).is_none());
        assert_eq!(sessions.lock().len(), 2 + MAX_PER_TOKEN);
    }

    #[test]
    fn number_of_sessions_is_bounded() {
        let (sessions, clock) = sessions();
        let tokens = MAX_SESSIONS / MAX_PER_TOKEN;
        let ids: Vec<Vec<String>> =
            (0..tokens).map(|at| begin(&sessions, &clock, &format!("user-{at}"), MAX_PER_TOKEN)).collect();
        begin(&sessions, &clock, "user-1", 1);
        assert!(sessions.find(&ids[1][0], false).is_none() && are_open(&sessions, &ids[0]));
        // A token without a session displaces the oldest of all.
        let of_new = begin(&sessions, &clock, "new", 1);
        assert!(sessions.find(&ids[1][1], false).is_none() && are_open(&sessions, &of_new));
        assert_eq!(sessions.lock().len(), MAX_SESSIONS);
    }

    #[test]
    fn ended_session_and_unknown_id_are_nothing() {
        let (sessions, _) = sessions();
        let (first, second) =
            (sessions.begin("a".to_owned(), Role::Viewer), sessions.begin("b".to_owned(), Role::Viewer));
        assert_ne!(first, second);
        sessions.end(&first);
        assert!(sessions.find(&first, false).is_none());
        for id in ["", "0", &first.to_uppercase(), &format!("{second} "), &second[1..]] {
            assert!(sessions.find(id, false).is_none(), "{id}");
        }
        assert_eq!(sessions.find(&second, false).map(|session| session.name).as_deref(), Some("b"));
    }
}
