//! How a request becomes descriptors, as a file says it in the words of Envoy's
//! routes.

mod read;

pub(super) use self::read::{rate_limits, tier};
use super::fields::closest;
use super::mistake::{Mistake, Mistakes};

/// Of one domain.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    /// Each list makes one descriptor, or none.
    pub(crate) rate_limits: Vec<Vec<Action>>,
    pub(crate) tier: Option<Source>,
}

/// What makes one entry of a descriptor.
#[derive(Debug)]
pub(crate) struct Action {
    pub(crate) key: Box<str>,
    pub(crate) source: Source,
    /// Without its value there is a descriptor all the same, without this entry.
    pub(crate) skip_if_absent: bool,
}

/// Where a value comes from.
#[derive(Debug)]
pub(crate) enum Source {
    RemoteAddress,
    /// With the bits that count; `None`: as many as the service counts.
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

/// What the service provides by a name.
#[derive(Debug)]
pub(crate) struct Extension {
    pub(crate) name: Box<str>,
    /// That no service has such a name, for the one that has not.
    pub(crate) unknown: Box<Mistake>,
}

/// A value for requests that meet all conditions, or for all others.
#[derive(Debug)]
pub(crate) struct Match {
    pub(crate) value: Box<str>,
    pub(crate) expected: bool,
    pub(crate) conditions: Vec<Condition>,
}

#[derive(Debug)]
pub(crate) struct Condition {
    /// A header or a query parameter.
    pub(crate) of: Source,
    pub(crate) test: Test,
    pub(crate) inverted: bool,
}

#[derive(Debug)]
pub(crate) enum Test {
    Present(bool),
    Text { how: How, text: Box<str>, ignore_case: bool },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Exact,
    Prefix,
    Suffix,
    Contains,
}

impl Mapping {
    /// Whether all that it names is provided.
    ///
    /// # Errors
    ///
    /// What is not.
    pub(crate) fn check(&self, provided: &[&str]) -> Result<(), Mistakes> {
        let sources = self.rate_limits.iter().flatten().map(|action| &action.source);
        let extensions = sources.chain(&self.tier).filter_map(|source| match source {
            Source::Extension(extension) => Some(extension),
            _ => None,
        });
        let unknown = extensions.filter(|extension| !provided.contains(&&*extension.name)).map(|extension| {
            let mut mistake = (*extension.unknown).clone();
            match closest(&extension.name, provided.iter().copied()) {
                Some(near) => mistake.hint(format!("did you mean `{near}`?")),
                None if provided.is_empty() => mistake.hint("it provides none: see `http::Descriptors`"),
                None => mistake.hint(format!("it provides {}", provided.join(", "))),
            }
            mistake
        });
        Mistakes::of(unknown.collect()).map_or(Ok(()), Err)
    }
}

impl Condition {
    pub(crate) fn is_met(&self, value: Option<&[u8]>) -> bool {
        match (&self.test, value) {
            (Test::Present(expected), value) => (value.is_some() == *expected) != self.inverted,
            // As in Envoy, also where it is inverted.
            (Test::Text { .. }, None) => false,
            (Test::Text { how, text, ignore_case }, Some(value)) => {
                how.is_met(value, text.as_bytes(), *ignore_case) != self.inverted
            }
        }
    }
}

impl How {
    fn is_met(self, value: &[u8], text: &[u8], ignore_case: bool) -> bool {
        let is = |part: &[u8]| if ignore_case { part.eq_ignore_ascii_case(text) } else { part == text };
        match self {
            Self::Exact => is(value),
            Self::Prefix => value.get(..text.len()).is_some_and(is),
            Self::Suffix => value.len().checked_sub(text.len()).is_some_and(|start| is(&value[start..])),
            Self::Contains => text.is_empty() || value.windows(text.len()).any(is),
        }
    }
}
