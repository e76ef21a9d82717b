//! What a request says of itself.

use smallvec::SmallVec;

/// What is to be limited, as a list of keys and values: `("user", "42")`, or
/// `("message_type", "marketing"), ("to_number", "2061234567")`. A rule limits
/// it if it is made of the same keys, in the same order, and no more or fewer.
///
/// ```
/// use tidegate::rules::Descriptor;
///
/// let login = Descriptor::new().entry("auth_type", "login").entry("user", "42");
/// assert_eq!(login, Descriptor::from([("auth_type", "login"), ("user", "42")]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Descriptor<'a> {
    pub(super) entries: SmallVec<[(&'a str, &'a [u8]); 4]>,
    pub(super) hits: u64,
    pub(super) tier: Option<&'a str>,
}

impl Default for Descriptor<'_> {
    fn default() -> Self {
        Self { entries: SmallVec::new(), hits: 1, tier: None }
    }
}

impl<'a> Descriptor<'a> {
    /// One without entries, which no rule meets.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more entry. A value is any bytes.
    pub fn entry(mut self, key: &'a str, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.entries.push((key, value.as_ref()));
        self
    }

    /// How many requests it stands for: each costs what the rule says. 0 makes
    /// it a peek.
    ///
    /// Default: 1.
    pub const fn hits(mut self, hits: u64) -> Self {
        self.hits = hits;
        self
    }

    /// Of which tier who asks is, for rules with `tiers`.
    ///
    /// Default: of none that a rule names.
    pub const fn tier(mut self, tier: &'a str) -> Self {
        self.tier = Some(tier);
        self
    }
}

impl<'a, const N: usize> From<[(&'a str, &'a str); N]> for Descriptor<'a> {
    fn from(entries: [(&'a str, &'a str); N]) -> Self {
        entries.into_iter().fold(Self::new(), |descriptor, (key, value)| descriptor.entry(key, value))
    }
}
