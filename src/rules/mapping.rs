//! How a file maps a request to descriptors, in the vocabulary of Envoy's routes.

mod read;

pub(super) use self::read::{rate_limits, tier};
use super::config_error::{ConfigError, ConfigErrors};
use super::fields::closest;

/// The mapping of one domain.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    /// Each list of actions makes one descriptor, or none.
    pub(crate) rate_limits: Vec<Vec<Action>>,
    pub(crate) tier: Option<Source>,
}

/// Makes one entry of a descriptor.
#[derive(Debug)]
pub(crate) struct Action {
    pub(crate) key: Box<str>,
    pub(crate) source: Source,
    /// If true and the value is absent, the descriptor omits this entry. If false, there is no descriptor.
    pub(crate) skip_if_absent: bool,
}

/// The part of the request from which an entry takes its value.
#[derive(Debug)]
pub(crate) enum Source {
    RemoteAddress,
    /// The prefix lengths for IPv4 and IPv6. `None`: the prefix length that the service sets for clients.
    MaskedRemoteAddress(u8, Option<u8>),
    Header(Box<str>),
    QueryParameter(Box<str>),
    Method,
    Path,
    PathTemplate,
    Extension(Extension),
    Constant(Box<str>),
    Match(Match),
}

/// A value that the service provides under a name.
#[derive(Debug)]
pub(crate) struct Extension {
    pub(crate) name: Box<str>,
    /// The error to report if the service does not provide the name.
    pub(crate) unknown: Box<ConfigError>,
}

/// A constant value for requests that match all conditions, or, if not `expected`, for all other requests.
#[derive(Debug)]
pub(crate) struct Match {
    pub(crate) value: Box<str>,
    pub(crate) expected: bool,
    pub(crate) conditions: Vec<Condition>,
}

#[derive(Debug)]
pub(crate) struct Condition {
    /// The header or query parameter to test.
    pub(crate) of: Source,
    pub(crate) test: Test,
    pub(crate) inverted: bool,
}

#[derive(Debug)]
pub(crate) enum Test {
    Present(bool),
    Text { how: TextMatch, text: Box<str>, ignore_case: bool },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum TextMatch {
    Exact,
    Prefix,
    Suffix,
    Contains,
}

impl Mapping {
    /// Checks that the service provides every extension that the mapping names.
    ///
    /// # Errors
    ///
    /// One error for each extension that is not provided.
    pub(crate) fn check(&self, provided: &[&str]) -> Result<(), ConfigErrors> {
        let sources = self.rate_limits.iter().flatten().map(|action| &action.source);
        let extensions = sources.chain(&self.tier).filter_map(|source| match source {
            Source::Extension(extension) => Some(extension),
            _ => None,
        });
        let unknown = extensions.filter(|extension| !provided.contains(&&*extension.name)).map(|extension| {
            let mut error = (*extension.unknown).clone();
            match closest(&extension.name, provided.iter().copied()) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None if provided.is_empty() => error.hint("add it with `http::Descriptors::extension`"),
                None => error.hint(format!("available: {}", provided.join(", "))),
            }
            error
        });
        ConfigErrors::of(unknown.collect()).map_or(Ok(()), Err)
    }
}

impl Condition {
    pub(crate) fn is_met(&self, value: Option<&[u8]>) -> bool {
        match (&self.test, value) {
            (Test::Present(expected), value) => (value.is_some() == *expected) != self.inverted,
            // As in Envoy: an absent value never matches a text, not even an inverted one.
            (Test::Text { .. }, None) => false,
            (Test::Text { how, text, ignore_case }, Some(value)) => {
                how.is_met(value, text.as_bytes(), *ignore_case) != self.inverted
            }
        }
    }
}

impl TextMatch {
    fn is_met(self, value: &[u8], text: &[u8], ignore_case: bool) -> bool {
        let equals = |part: &[u8]| if ignore_case { part.eq_ignore_ascii_case(text) } else { part == text };
        match self {
            Self::Exact => equals(value),
            Self::Prefix => value.get(..text.len()).is_some_and(equals),
            Self::Suffix => value.len().checked_sub(text.len()).is_some_and(|start| equals(&value[start..])),
            Self::Contains => text.is_empty() || value.windows(text.len()).any(equals),
        }
    }
}
