//! A change that an operator asks for.

use std::fmt;
use std::time::Duration;

use crate::admin::{decoded_key, listed};
use crate::error::Error;
use crate::error::redact::RedactedUrl;
use crate::key::Keyspace;
use crate::local::overrides::Switch;
use crate::quota::algorithm::{Definition, Parameters};
use crate::quota::{Quota, Rate};

/// A change that an operator asks for.
#[derive(Clone, Debug)]
pub struct Change {
    /// The gate.
    pub gate: ChangedGate,
    /// What to change.
    pub action: Action,
    /// Whether to make the change although it is probably a mistake: see [`Refusal`](super::Refusal).
    pub force: bool,
}

/// The gate of a change, and what the rules of the caller know about it.
#[derive(Clone, Debug, Default)]
pub struct ChangedGate {
    /// Its name; empty for [`Action::Forget`], which is of all gates.
    pub name: String,
    /// Its name for people, if a rule has one for it.
    pub readable: Option<String>,
    /// Whether a rule of the caller has the gate.
    pub is_in_rules: bool,
    /// The quota of that rule; `None` for a rule that allows or denies every request.
    pub quota: Option<Quota>,
}

/// What to change.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "the fields have one meaning in all variants, which their types and names tell"
)]
pub enum Action {
    /// Denies every check of the key. Without a quota, a state that must be created has that of the rule, or the form of
    /// the gate's other keys.
    Block { key: GivenKey, lasts: Duration, quota: Option<Quota> },
    /// Lifts the block of the key, and removes its counted denials.
    Unblock { key: GivenKey },
    /// Removes the state of the key at the gate.
    Reset { key: GivenKey },
    /// Removes the state of the key at all gates, and ends its overrides.
    Forget { key: GivenKey },
    /// Gives the key another quota.
    Override { key: GivenKey, quota: Quota, lasts: Duration },
    /// Gives the key the gate's own quota again.
    EndOverride { key: GivenKey },
    /// Switches the gate, until the switch is ended if it has no time.
    Switch { to: Switch, lasts: Option<Duration> },
    /// Ends the switch of the gate.
    EndSwitch,
}

/// A key as an operator gives it. Displays as texts may show it: of the URL of a Redis, not the login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GivenKey {
    /// The key as services give it: any bytes.
    Plain(Vec<u8>),
    /// A stored form that does not contain the key, as Redis shows it: a hash or an HMAC.
    Stored(String),
}

impl ChangedGate {
    /// Returns the gate that an operator means by `name`: the only one of `found`, which are those of the caller's rules
    /// with this name. Without any, the gate is not of the rules.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if several gates have the name.
    pub fn named(name: &str, found: impl IntoIterator<Item = Self>) -> Result<Self, Error> {
        let mut found: Vec<Self> = found.into_iter().collect();
        match found.pop() {
            None => Ok(Self { name: name.to_owned(), ..Self::default() }),
            Some(only) if found.is_empty() => Ok(only),
            Some(last) => {
                let names = listed(found.iter().chain([&last]).map(|gate| &*gate.name));
                let text = format!(
                    "{} rules have the name `{name}`: give one of their gates: {names}",
                    found.len() + 1
                );
                Err(Error::config(text))
            }
        }
    }
}

/// Displays as its name for people, if it has one.
impl fmt::Display for ChangedGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.readable.as_deref().unwrap_or(&self.name))
    }
}

impl Action {
    /// Returns the name of the change in the audit log.
    pub(super) const fn verb(&self) -> &'static str {
        match self {
            Self::Block { .. } => "block",
            Self::Unblock { .. } => "unblock",
            Self::Reset { .. } => "reset",
            Self::Forget { .. } => "forget",
            Self::Override { .. } => "override",
            Self::EndOverride { .. } => "end_override",
            Self::Switch { .. } => "switch",
            Self::EndSwitch => "end_switch",
        }
    }

    pub(super) const fn key(&self) -> Option<&GivenKey> {
        match self {
            Self::Block { key, .. }
            | Self::Unblock { key }
            | Self::Reset { key }
            | Self::Forget { key }
            | Self::Override { key, .. }
            | Self::EndOverride { key } => Some(key),
            Self::Switch { .. } | Self::EndSwitch => None,
        }
    }

    /// Returns how long the change lasts; `None` if it has no end.
    pub(super) const fn lasts(&self) -> Option<Duration> {
        match self {
            Self::Block { lasts, .. } | Self::Override { lasts, .. } => Some(*lasts),
            Self::Switch { lasts, .. } => *lasts,
            _ => None,
        }
    }

    /// Returns the values of the change, such as `for 1h`. Empty if it has none.
    #[must_use]
    pub fn detail(&self) -> String {
        match self {
            Self::Block { lasts, .. } => format!("for {}", exact(*lasts)),
            Self::Override { quota, lasts, .. } => format!("{quota} for {}", exact(*lasts)),
            Self::Switch { to, lasts: Some(lasts) } => format!("{to} for {}", exact(*lasts)),
            Self::Switch { to, lasts: None } => to.to_string(),
            _ => String::new(),
        }
    }
}

/// Writes a duration with all its units, such as `1d 2h 30m`. The audit log must not round the end of a block.
pub(super) fn exact(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

impl GivenKey {
    /// Returns the key of a stored form, such as `a%20b`. A hash or an HMAC stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the form has characters that no stored form has.
    pub fn stored(form: &str) -> Result<Self, Error> {
        if !form.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::config(
                "the key is not in a stored form: write bytes that are not printable ASCII as % and two hexadecimal \
                 digits, or give the key itself",
            ));
        }
        Ok(decoded_key(form).map_or_else(|| Self::Stored(form.to_owned()), Self::Plain))
    }

    /// Returns the possible forms of the key in Redis, the most likely one first.
    pub(in crate::admin) fn forms(&self, keyspace: &Keyspace) -> Vec<String> {
        match self {
            Self::Plain(key) => keyspace.stored_forms(key),
            Self::Stored(form) => vec![form.clone()],
        }
    }

    /// Returns the key for the audit log: as it is stored, because the log must not contain what an HMAC hides.
    pub(super) fn recorded(&self, keyspace: &Keyspace) -> String {
        let form = self.forms(keyspace).into_iter().next().unwrap_or_default();
        redacted_url(&form).unwrap_or(form)
    }

    /// Returns a Redis key of this key without the login of a URL in the place of the key.
    pub(super) fn redacted_in(&self, redis_key: String, keyspace: &Keyspace) -> String {
        self.forms(keyspace).iter().fold(redis_key, |redis_key, form| match redacted_url(form) {
            Some(shown) => redis_key.replace(form, &shown),
            None => redis_key,
        })
    }
}

impl fmt::Display for GivenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Plain(key) => String::from_utf8_lossy(key),
            Self::Stored(form) => form.into(),
        };
        f.write_str(redacted_url(&text).as_deref().unwrap_or(&text))
    }
}

/// Returns what may be shown of the URL of a Redis, which an operator can give in the place of a key; `None` for another
/// text.
fn redacted_url(text: &str) -> Option<String> {
    let shown = RedactedUrl::new(text).to_string();
    shown.contains("://").then_some(shown)
}

/// Returns the quota of an algorithm with these numbers.
///
/// # Errors
///
/// [`Error::is_config`] if the algorithm needs a number that is missing, or does not use one that is given, or if there
/// is no such quota.
pub fn quota_of(
    algorithm: &'static Definition,
    limit: u64,
    rate: Option<Rate>,
    window: Option<Duration>,
) -> Result<Quota, Error> {
    let needs = match (algorithm.parameters, rate, window) {
        (Parameters::Rate, Some(rate), None) => return Quota::with_rate(algorithm, limit, rate),
        (Parameters::Window, None, Some(window)) => return Quota::with_window(algorithm, limit, window),
        (Parameters::Count, None, None) => return Quota::with_count(algorithm, limit),
        (Parameters::Rate, ..) => "a rate, such as 5/s, and no window",
        (Parameters::Window, ..) => "a window, such as 60s, and no rate",
        (Parameters::Count, ..) => "neither a rate nor a window",
    };
    Err(Error::config(format!("the algorithm {} needs {needs}", algorithm.name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyMode;

    #[test]
    fn key_of_a_stored_form_is_the_key_itself_unless_it_is_a_hash() {
        assert_eq!(GivenKey::stored("a%20b").unwrap(), GivenKey::Plain(b"a b".to_vec()));
        assert_eq!(GivenKey::stored("%hmac=00").unwrap(), GivenKey::Stored("%hmac=00".to_owned()));
        assert!(GivenKey::stored("a b").unwrap_err().is_config());
    }

    #[test]
    fn url_of_a_redis_in_the_place_of_a_key_is_recorded_and_shown_without_its_login() {
        let clear = Keyspace::new("ns", KeyMode::Clear).unwrap();
        let url = GivenKey::Plain(b"redis://ann:secret@h:1".to_vec());
        assert_eq!((&*url.to_string(), &*url.recorded(&clear)), ("redis://h:1", "redis://h:1"));
        let encoded = GivenKey::Plain(b"redis://ann:p%40ss@h:1".to_vec());
        for (url, written) in [(&url, "redis://ann:secret@h:1"), (&encoded, "redis://ann:p%2540ss@h:1")] {
            assert_eq!(url.redacted_in(format!("ns:2:g:x:{written}"), &clear), "ns:2:g:x:redis://h:1");
        }
        let hmac = Keyspace::new("ns", KeyMode::Hmac(vec![7; 32])).unwrap();
        assert!(url.recorded(&hmac).starts_with("%hmac="));
    }
}
