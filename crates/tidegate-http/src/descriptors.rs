//! Maps a request to descriptors.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::HeaderValue;
use http::header::HOST;
use http::request::Parts;
use tidegate::{Error, Gate};
use tidegate_rules::mapping::{Action, Condition, Mapping, Match, Source};
use tidegate_rules::{Descriptor, Rule, Rules};

use super::in_flight::is_in_flight;
#[cfg(any(feature = "actix", feature = "axum"))]
use super::key::pattern_of;
use super::key::{ClientIp, Key, TrustMistake, path, uri};
use super::missing_key::{Absent, MissingKey, NO_KEY};

/// Maps a request to the descriptors of a domain, for
/// [`RateLimitLayer::with_rules`](super::RateLimitLayer::with_rules). Uses the `rate_limits` in the domain's
/// file together with values from the service, or a closure instead.
///
/// ```
/// use tidegate_http::{ClientIp, Descriptors, Key};
///
/// struct User { id: u64, plan: String }
///
/// # fn main() -> Result<(), tidegate::Error> {
/// let descriptors = Descriptors::of("api")
///     .client_ip(ClientIp::behind(["10.0.0.0/8"])?)                   // for `remote_address`
///     .extension("user", Key::extension(|user: &User| user.id))       // for `extension: { name: user }`
///     .tier(|parts| Some(&parts.extensions.get::<User>()?.plan));     // for rules with `tiers`
/// # let _ = descriptors; Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Descriptors {
    domain: Box<str>,
    closure: Option<Arc<DescriptorFn>>,
    client_ip: ClientIp,
    extensions: Vec<(Box<str>, Key)>,
    tier: Option<Arc<TierFn>>,
}

type DescriptorFn = dyn for<'p> Fn(&'p Parts) -> Vec<Descriptor<'p>> + Send + Sync;
type TierFn = dyn for<'p> Fn(&'p Parts) -> Option<&'p str> + Send + Sync;

impl Descriptors {
    /// Builds the descriptors that the `rate_limits` of this domain define.
    pub fn of(domain: &str) -> Self {
        let (domain, client_ip) = (domain.into(), ClientIp::peer());
        Self { domain, closure: None, client_ip, extensions: Vec::new(), tier: None }
    }

    /// Uses the descriptors that `f` returns, and ignores those that the file defines.
    ///
    /// ```
    /// use tidegate_http::{Descriptors, Key};
    /// use tidegate_rules::Descriptor;
    ///
    /// let descriptors = Descriptors::from_fn("shop", |parts| {
    ///     // Normalized, unlike `parts.uri.path()`.
    ///     let path = Key::path().of(parts).map(|path| Descriptor::new().entry_owned("path", path));
    ///     let user = parts.headers.get("x-user").map(|user| Descriptor::new().entry("user", user));
    ///     path.into_iter().chain(user).collect()
    /// });
    /// ```
    pub fn from_fn(
        domain: &str,
        f: impl for<'p> Fn(&'p Parts) -> Vec<Descriptor<'p>> + Send + Sync + 'static,
    ) -> Self {
        Self { closure: Some(Arc::new(f)), ..Self::of(domain) }
    }

    /// Sets how to determine the client's address for `remote_address` and `masked_remote_address`. A file
    /// cannot declare trusted proxies.
    ///
    /// Default: [`ClientIp::peer`].
    pub fn client_ip(mut self, client_ip: ClientIp) -> Self {
        self.client_ip = client_ip;
        self
    }

    /// Provides a value for `extension: { name: … }` in files, such as the user that an earlier layer found.
    pub fn extension(mut self, name: &str, key: Key) -> Self {
        self.extensions.retain(|(other, _)| **other != *name);
        self.extensions.push((name.into(), key));
        self
    }

    /// Sets the tier of a request, for rules with `tiers`. Use only properties that clients cannot choose:
    /// otherwise they would choose the highest tier.
    ///
    /// Default: the file's `tier`, else none.
    pub fn tier(mut self, f: impl for<'p> Fn(&'p Parts) -> Option<&'p str> + Send + Sync + 'static) -> Self {
        self.tier = Some(Arc::new(f));
        self
    }

    /// Returns the descriptors of this request, to test a file. Returns `None` if the client's address is
    /// needed and not known.
    #[must_use]
    pub fn read<'p>(&'p self, rules: &'p Rules, parts: &'p Parts) -> Option<Vec<Descriptor<'p>>> {
        self.for_request(rules, parts, MissingKey::Reject, &|_| {}).ok()
    }
}

/// A mistake in the setup of the service that one request shows.
#[derive(Clone, Copy)]
pub(super) enum SetupMistake {
    Absent(Absent),
    Trust(TrustMistake),
}

impl Descriptors {
    pub(super) fn domain(&self) -> &str {
        &self.domain
    }

    /// Checks that the rules have this domain and that their extensions are provided.
    pub(super) fn check(&self, rules: &Rules) -> Result<(), Error> {
        let domain = &self.domain;
        let Some(mapping) = rules.mapping(domain) else {
            return Err(Error::config(format!("the rules lack the domain `{domain}`, which a layer uses")));
        };
        if let Some(rule) = rules.iter().find(|rule| rule.domain() == &**domain && rule.is_quota()) {
            let (file, line) = rule.origin();
            return Err(Error::config(format!(
                "{file}:{line}: a layer does not support `quota_mode`, which it would apply as a plain limit: \
                 remove it, or decide these rules in the service (RulesLimiter::check)"
            )));
        }
        if let Some(rule) = rules.iter().find(|rule| rule.domain() == &**domain && rule.charges_used()) {
            let (file, line) = rule.origin();
            return Err(Error::config(format!(
                "{file}:{line}: a layer does not support `charge_used`: it decides before units are used, and charges \
                 those of the response by itself (RateLimitLayer::charge). Remove it"
            )));
        }
        if self.closure.is_some() {
            return Ok(());
        }
        if mapping.rate_limits.is_empty() {
            return Err(Error::config(format!(
                "the domain `{domain}` has no `rate_limits` to map requests to descriptors: add them \
                 to the file, or build the descriptors in code (Descriptors::from_fn)"
            )));
        }
        let provided: Vec<&str> = self.extensions.iter().map(|(name, _)| &**name).collect();
        Ok(mapping.check(&provided, cfg!(any(feature = "actix", feature = "axum")))?)
    }

    /// Checks that the rules can be decided together with this gate.
    pub(super) fn check_beside(&self, gate: &Gate, rules: &Rules) -> Result<(), Error> {
        let conflicts = |rule: &&Rule| match is_in_flight(gate) {
            true => rule.ban().is_some(),
            false => rule.is_in_flight() && gate.has_ban(),
        };
        // Rules in shadow mode are decided apart.
        let mut together = rules.iter().filter(|rule| rule.domain() == &*self.domain && !rule.is_shadow());
        match together.find(conflicts) {
            Some(rule) if !rules.charges_each(&self.domain) => {
                let (file, line) = rule.origin();
                Err(Error::config(format!(
                    "{file}:{line}: a ban and an in-flight limit cannot be decided together, and the layer has the gate \
                     `{}` beside this rule: add `charge: each` to the document, or use one layer for each",
                    gate.name().unwrap_or_default()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a request without a cost may have descriptors that apply to it. A closure can bring a limit of 0.
    pub(super) fn apply_without_cost(&self, rules: &Rules) -> bool {
        self.closure.is_some() || rules.applies_without_cost(&self.domain)
    }

    /// Returns the descriptors of this request, or the part that the request lacks. Passes mistakes to
    /// `report`.
    pub(super) fn for_request<'p>(
        &'p self,
        rules: &'p Rules,
        parts: &'p Parts,
        missing_key: MissingKey,
        report: &dyn Fn(SetupMistake),
    ) -> Result<Vec<Descriptor<'p>>, Absent> {
        let mapping = rules.mapping(&self.domain);
        let mut descriptors = match (&self.closure, mapping) {
            (Some(descriptors_of), _) => descriptors_of(parts),
            (None, Some(mapping)) => {
                let entries = &mapping.rate_limits;
                // Not collected, since a list of results begins with room for four.
                let mut built = Vec::with_capacity(entries.len().min(4));
                for entry in entries.iter().filter(|entry| entry.applies_to(parts.method.as_str())) {
                    built.extend(self.build_descriptor(&entry.actions, parts, missing_key, report)?);
                }
                built
            }
            (None, None) => Vec::new(),
        };
        if let Some(tier) = self.tier_of(mapping, parts) {
            descriptors =
                descriptors.into_iter().map(|descriptor| descriptor.or_tier(tier.clone())).collect();
        }
        Ok(descriptors)
    }

    /// Builds one descriptor from its actions. Returns `None` if a required action yields no entry.
    fn build_descriptor<'p>(
        &'p self,
        actions: &'p [Action],
        parts: &'p Parts,
        missing_key: MissingKey,
        report: &dyn Fn(SetupMistake),
    ) -> Result<Option<Descriptor<'p>>, Absent> {
        let mut descriptor = Descriptor::new();
        for Action { key, source, skip_if_absent } in actions {
            if let Some(mistake) = self.trust_mistake(source, parts) {
                report(SetupMistake::Trust(mistake));
            }
            let value = self.value(source, parts);
            if let Err(absent) = value {
                report(SetupMistake::Absent(absent));
            }
            let value =
                value.and_then(|value| if value.is_empty() { Err(Absent::NotSent) } else { Ok(value) });
            descriptor = match (value, missing_key) {
                (Ok(value), _) => descriptor.with(key, value),
                (Err(Absent::PeerAddress), MissingKey::Reject) => return Err(Absent::PeerAddress),
                (Err(Absent::PeerAddress), MissingKey::Share) => descriptor.entry(key, NO_KEY),
                (Err(_), _) if *skip_if_absent => continue,
                (Err(_), _) => return Ok(None),
            };
        }
        Ok((!descriptor.is_empty()).then_some(descriptor))
    }

    fn trust_mistake(&self, source: &Source, parts: &Parts) -> Option<TrustMistake> {
        match source {
            Source::RemoteAddress | Source::MaskedRemoteAddress(..) => self.client_ip.trust_mistake(parts),
            Source::Extension(extension) => self.extension_key(&extension.name)?.trust_mistake(parts),
            _ => None,
        }
    }

    fn extension_key(&self, name: &str) -> Option<&Key> {
        let (_, key) = self.extensions.iter().find(|(provided, _)| **provided == *name)?;
        Some(key)
    }

    fn value<'p>(&'p self, source: &'p Source, parts: &'p Parts) -> Result<Cow<'p, [u8]>, Absent> {
        let borrowed = |text: &'p str| Some(Cow::Borrowed(text.as_bytes()));
        let found = match source {
            Source::RemoteAddress => {
                return self.client_ip.key(parts).map(Cow::Owned).ok_or(Absent::PeerAddress);
            }
            Source::MaskedRemoteAddress(ipv4, ipv6) => {
                let network = self.client_ip.network(parts, *ipv4, *ipv6);
                return network.map(|text| Cow::Owned(text.into_bytes())).ok_or(Absent::PeerAddress);
            }
            Source::Extension(extension) => {
                let key = self.extension_key(&extension.name).ok_or(Absent::NotSent)?;
                return key.find(parts);
            }
            Source::Header(name) => header(name, parts),
            Source::QueryParameter(name) => query_parameter(name, parts),
            Source::Method => borrowed(parts.method.as_str()),
            Source::Path => Some(path(parts)),
            #[cfg(any(feature = "actix", feature = "axum"))]
            Source::PathTemplate(_) => pattern_of(&parts.extensions).and_then(borrowed),
            // Rejected when the layer is built.
            #[cfg(not(any(feature = "actix", feature = "axum")))]
            Source::PathTemplate(_) => None,
            Source::Constant(value) => borrowed(value),
            Source::Match(Match { value, expected, conditions }) => {
                let is_met = |condition: &Condition| match &condition.of {
                    Source::Header(name) => condition.is_met(joined_header(name, parts).as_deref()),
                    of => condition.is_met(self.value(of, parts).ok().as_deref()),
                };
                (conditions.iter().all(is_met) == *expected).then_some(Cow::Borrowed(value.as_bytes()))
            }
        };
        found.ok_or(Absent::NotSent)
    }

    fn tier_of<'p>(&'p self, mapping: Option<&'p Mapping>, parts: &'p Parts) -> Option<Cow<'p, str>> {
        if let Some(tier) = &self.tier {
            return tier(parts).map(Cow::Borrowed);
        }
        let tier = self.value(mapping?.tier.as_ref()?, parts).ok()?;
        // The names of tiers in a file are UTF-8, so any other value matches none.
        String::from_utf8(tier.into_owned()).ok().map(Cow::Owned)
    }
}

fn query_parameter<'p>(name: &str, parts: &'p Parts) -> Option<Cow<'p, [u8]>> {
    let mut pairs = form_urlencoded::parse(uri(parts).query()?.as_bytes());
    let (_, value) = pairs.find(|(key, _)| **key == *name)?;
    Some(Cow::Owned(value.into_owned().into_bytes()))
}

/// Returns the first value of a header or of one of Envoy's pseudo-headers.
fn header<'p>(name: &str, parts: &'p Parts) -> Option<Cow<'p, [u8]>> {
    let value = match name {
        ":method" => parts.method.as_str().as_bytes(),
        ":path" => return Some(path_and_query(parts)),
        ":authority" => match uri(parts).authority() {
            Some(authority) => authority.as_str().as_bytes(),
            None => parts.headers.get(HOST)?.as_bytes(),
        },
        name => parts.headers.get(name)?.as_bytes(),
    };
    Some(Cow::Borrowed(value))
}

/// Returns the normalized path, and the query as sent.
fn path_and_query(parts: &Parts) -> Cow<'_, [u8]> {
    let uri = uri(parts);
    match (path(parts), uri.query()) {
        (Cow::Borrowed(_), _) => {
            Cow::Borrowed(uri.path_and_query().map_or("/", |path| path.as_str()).as_bytes())
        }
        (Cow::Owned(path), None) => Cow::Owned(path),
        (Cow::Owned(path), Some(query)) => Cow::Owned([&*path, b"?", query.as_bytes()].concat()),
    }
}

/// Returns all values of a header, joined for comparison as in Envoy.
fn joined_header<'p>(name: &str, parts: &'p Parts) -> Option<Cow<'p, [u8]>> {
    let mut values = parts.headers.get_all(name).iter().map(HeaderValue::as_bytes);
    match (values.next(), values.next()) {
        (Some(first), Some(second)) => {
            let all: Vec<&[u8]> = [first, second].into_iter().chain(values).collect();
            Some(Cow::Owned(all.join(&b',')))
        }
        _ => header(name, parts),
    }
}

impl From<&str> for Descriptors {
    fn from(domain: &str) -> Self {
        Self::of(domain)
    }
}

impl fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptors")
            .field("domain", &self.domain)
            .field("client_ip", &self.client_ip)
            .field("extensions", &self.extensions)
            .finish_non_exhaustive()
    }
}
