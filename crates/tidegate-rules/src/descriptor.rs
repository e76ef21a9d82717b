//! The properties of a request that rules match.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::redact::RedactedKey;
use tidegate::{AsKey, Error};

use crate::limit::Limit;

/// A key and its value.
pub(super) type DescriptorEntry<'a> = (&'a str, Cow<'a, [u8]>);

/// A list of keys and values to limit: `("user", "42")`, or
/// `("message_type", "marketing"), ("to_number", "2061234567")`.
///
/// A rule matches a descriptor with exactly the same keys in the same order. `Display` shows the values, `Debug`
/// redacts them.
///
/// ```
/// use tidegate_rules::Descriptor;
///
/// let login = Descriptor::new().entry("auth_type", "login").entry("user", "42");
/// assert_eq!(login, Descriptor::from([("auth_type", "login"), ("user", "42")]));
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct Descriptor<'a> {
    pub(super) entries: SmallVec<[DescriptorEntry<'a>; 4]>,
    pub(super) hits: u64,
    pub(super) tier: Option<Cow<'a, str>>,
    pub(super) limit: Option<Limit>,
}

impl Default for Descriptor<'_> {
    fn default() -> Self {
        Self { entries: SmallVec::new(), hits: 1, tier: None, limit: None }
    }
}

impl<'a> Descriptor<'a> {
    /// Makes a descriptor without entries, which no rule matches.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry. Its value is text, bytes or an integer: see [`AsKey`].
    pub fn entry(mut self, key: &'a str, value: &'a (impl AsKey + ?Sized)) -> Self {
        self.entries.push((key, value.as_key().into()));
        self
    }

    /// Does the same as [`entry`](Self::entry) with an owned value.
    pub fn entry_owned(mut self, key: &'a str, value: impl Into<Vec<u8>>) -> Self {
        self.entries.push((key, Cow::Owned(value.into())));
        self
    }

    /// Sets how many requests the descriptor stands for; each has the rule's cost. 0 makes it a peek.
    ///
    /// Default: 1.
    pub const fn hits(mut self, hits: u64) -> Self {
        self.hits = hits;
        self
    }

    /// Sets the client's tier, for rules with `tiers`.
    ///
    /// Default: no tier that a rule names.
    pub fn tier(mut self, tier: impl Into<Cow<'a, str>>) -> Self {
        self.tier = Some(tier.into());
        self
    }

    /// Sets a limit that applies to this descriptor instead of every rule: `requests` per window, by the
    /// server's clock, as `requests_per_unit` and `unit` of a rule. 0 requests deny everything. Take it from a
    /// trusted configuration, not from clients.
    ///
    /// It needs no rule: the domain and the descriptor can be unknown to the files. The count belongs to the
    /// domain and all entries of the descriptor, in order, and to the length of the window. Another number of
    /// requests applies to the same count. The rules of the files are not used, so there is no tier, shadow
    /// mode, quota mode, `replaces` or failure policy of a rule. The gate of all these limits is
    /// `descriptor-limit`; its name stands in metrics and overrides.
    ///
    /// One request must not have two equal descriptors with different numbers of requests:
    /// [`Error::is_config`].
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the quota is invalid: see [`Quota::fixed_window`](tidegate::Quota::fixed_window).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_rules::Descriptor;
    ///
    /// let by_plan = Descriptor::from([("user", "ada")]).limit(600, Duration::from_secs(60))?;
    /// # let _ = by_plan;
    /// # Ok::<(), tidegate::Error>(())
    /// ```
    pub fn limit(mut self, requests: u64, window: Duration) -> Result<Self, Error> {
        self.limit = Some(Limit::per_window(requests, window)?);
        Ok(self)
    }

    /// Returns whether the descriptor has a [limit](Self::limit) of its own.
    #[must_use]
    pub const fn has_limit(&self) -> bool {
        self.limit.is_some()
    }

    /// Returns whether there are no entries. No rule matches an empty descriptor.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry with this value, without [`AsKey`].
    pub fn with(mut self, key: &'a str, value: Cow<'a, [u8]>) -> Self {
        self.entries.push((key, value));
        self
    }

    /// Sets the tier if it is not set yet.
    pub fn or_tier(mut self, tier: Cow<'a, str>) -> Self {
        self.tier = self.tier.or(Some(tier));
        self
    }
}

/// # Text
impl Descriptor<'_> {
    /// Parses the text that `Display` formats: the entries of `a=b,c=d`. A backslash escapes the next character.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if an entry has no key or no `=`.
    ///
    /// ```
    /// use tidegate_rules::Descriptor;
    ///
    /// let entries = Descriptor::parse_entries(r"user=ada,path=/a\,b")?;
    /// assert_eq!(entries[1], ("path".to_owned(), "/a,b".to_owned()));
    /// # Ok::<(), tidegate::Error>(())
    /// ```
    pub fn parse_entries(text: &str) -> Result<Vec<(String, String)>, Error> {
        let (mut parts, mut part) = (Vec::new(), (String::new(), None::<String>));
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            match (letter, &mut part) {
                (',', _) => parts.push(std::mem::take(&mut part)),
                ('=', (_, value @ None)) => *value = Some(String::new()),
                (letter, (key, value)) => {
                    value.as_mut().unwrap_or(key).extend(if letter == '\\' {
                        letters.next()
                    } else {
                        Some(letter)
                    });
                }
            }
        }
        parts.push(part);
        let entry = |part: (String, Option<String>)| match part {
            (key, Some(value)) if !key.is_empty() => Ok((key, value)),
            (key, value) => {
                let entry = value.map_or(key, |value| format!("={value}"));
                Err(Error::config(format!("invalid descriptor entry `{entry}`: write key=value,key=value")))
            }
        };
        parts.into_iter().map(entry).collect()
    }
}

/// Values may be personal data or tokens.
impl fmt::Debug for Descriptor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<_> =
            self.entries.iter().map(|(key, value)| (key, RedactedKey::new(value))).collect();
        let tier = self.tier.as_ref().map(|tier| RedactedKey::new(tier.as_bytes()));
        f.debug_struct("Descriptor")
            .field("entries", &entries)
            .field("hits", &self.hits)
            .field("tier", &tier)
            .field("limit", &self.limit)
            .finish()
    }
}

/// Formats the entries as `auth_type=login,user=42`. A backslash escapes each comma and backslash, and each `=` in a key.
impl fmt::Display for Descriptor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.entries.iter().enumerate() {
            let escaped = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
            let (key, value) = (escaped(key).replace('=', "\\="), escaped(&String::from_utf8_lossy(value)));
            write!(f, "{}{key}={value}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl<'a, const N: usize> From<[(&'a str, &'a str); N]> for Descriptor<'a> {
    fn from(entries: [(&'a str, &'a str); N]) -> Self {
        entries.into_iter().fold(Self::new(), |descriptor, (key, value)| descriptor.entry(key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_entries_are_separated_by_commas() {
        let read = |text: &str| Descriptor::parse_entries(text).ok();
        let pairs = |pairs: &[(&str, &str)]| {
            Some(
                pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Vec<_>>(),
            )
        };
        assert_eq!(read("a=b"), pairs(&[("a", "b")]));
        assert_eq!(read("a=b,c="), pairs(&[("a", "b"), ("c", "")]));
        assert_eq!(read(r"a=b\,c=d=e\\"), pairs(&[("a", r"b,c=d=e\")]));
        assert_eq!(read(r"a\=b=c"), pairs(&[("a=b", "c")]));
        for text in ["", "a", "=b", "a=b,", ","] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
