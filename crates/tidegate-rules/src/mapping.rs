//! How a file maps a request to descriptors, in the vocabulary of Envoy's routes. A server evaluates it on its
//! own type of request, as `tidegate-http` does.

use super::config_error::similar_name;
use super::config_error::{ConfigError, ConfigErrors, ErrorList};

/// The mapping of one domain.
#[derive(Debug, Default)]
pub struct Mapping {
    /// Each makes one descriptor, or none.
    pub rate_limits: Vec<DescriptorActions>,
    /// The value that chooses among the `tiers` of the rules.
    pub tier: Option<Source>,
}

/// Makes one descriptor of a request: an entry of `rate_limits`.
#[derive(Debug)]
pub struct DescriptorActions {
    /// Each makes one entry of the descriptor. If a required one makes none, there is no descriptor.
    pub actions: Vec<Action>,
    /// The methods of the requests that have the descriptor; `None` for all.
    pub(super) methods: Option<Box<[Box<str>]>>,
}

impl DescriptorActions {
    /// Returns whether requests with this method have the descriptor. GET includes HEAD, which frameworks answer by
    /// the same handler.
    #[must_use]
    pub fn applies_to(&self, method: &str) -> bool {
        let includes = |listed: &str| listed == method || (listed == "GET" && method == "HEAD");
        self.methods.as_ref().is_none_or(|methods| methods.iter().any(|listed| includes(listed)))
    }
}

/// Makes one entry of a descriptor.
#[derive(Debug)]
pub struct Action {
    /// The key of the entry.
    pub key: Box<str>,
    /// Where its value comes from.
    pub source: Source,
    /// If true and the value is absent, the descriptor omits this entry. If false, there is no descriptor.
    pub skip_if_absent: bool,
}

/// The part of the request from which an entry takes its value.
#[derive(Debug)]
pub enum Source {
    /// The client's address.
    RemoteAddress,
    /// The network of the client's address, with these prefix lengths for IPv4 and IPv6. `None` is the length
    /// that the service sets for clients.
    MaskedRemoteAddress(u8, Option<u8>),
    /// A header, or a pseudo-header of HTTP/2 such as `:path`, in lower case.
    Header(Box<str>),
    /// The first query parameter of this name, decoded.
    QueryParameter(Box<str>),
    /// The request's method.
    Method,
    /// The path without the query.
    Path,
    /// The template of the path in the service's router. Holds the error to report if the service has none.
    PathTemplate(Box<ConfigError>),
    /// A value that the service provides.
    Extension(Extension),
    /// This value.
    Constant(Box<str>),
    /// A value that depends on conditions.
    Match(Match),
}

/// A value that the service provides under a name.
#[derive(Debug)]
pub struct Extension {
    /// The name.
    pub name: Box<str>,
    /// The error to report if the service does not provide the name.
    pub unknown: Box<ConfigError>,
}

/// A constant value for requests that match all conditions, or, if not `expected`, for all other requests.
#[derive(Debug)]
pub struct Match {
    /// The value.
    pub value: Box<str>,
    /// Whether the conditions must be met or not be met.
    pub expected: bool,
    /// All of them must be met.
    pub conditions: Vec<Condition>,
}

/// A test of one header or query parameter.
#[derive(Debug)]
pub struct Condition {
    /// The header or query parameter to test.
    pub of: Source,
    pub(super) test: Test,
    pub(super) inverted: bool,
}

#[derive(Debug)]
pub(super) enum Test {
    Present(bool),
    Text { how: TextMatch, text: Box<str>, ignore_case: bool },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum TextMatch {
    Exact,
    Prefix,
    Suffix,
    Contains,
}

impl Mapping {
    /// Checks that the service provides every extension that the mapping names, and path templates if it
    /// uses them.
    ///
    /// # Errors
    ///
    /// One error for each source that is not provided.
    pub fn check(&self, extensions: &[&str], has_path_templates: bool) -> Result<(), ConfigErrors> {
        let sources = self
            .rate_limits
            .iter()
            .flat_map(|entry| &entry.actions)
            .map(|action| &action.source)
            .chain(&self.tier);
        let unknown = sources.filter_map(|source| match source {
            Source::Extension(extension) => extension.missing_from(extensions),
            Source::PathTemplate(unsupported) if !has_path_templates => Some((**unsupported).clone()),
            _ => None,
        });
        unknown.collect::<ErrorList>().into_result()
    }
}

impl Extension {
    /// Returns the error to report, unless the name is among the provided ones.
    fn missing_from(&self, provided: &[&str]) -> Option<ConfigError> {
        if provided.contains(&&*self.name) {
            return None;
        }
        let mut error = (*self.unknown).clone();
        match similar_name(&self.name, provided.iter().copied()) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None if provided.is_empty() => error.hint("add it with `tidegate_http::Descriptors::extension`"),
            None => error.hint(format!("available: {}", provided.join(", "))),
        }
        Some(error)
    }
}

impl Condition {
    /// Returns whether this value of [`of`](Self::of) meets the condition; `None` is an absent value.
    #[must_use]
    pub fn is_met(&self, value: Option<&[u8]>) -> bool {
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
