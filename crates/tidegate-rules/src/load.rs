//! Loads rules from files.

use std::iter;
use std::path::Path;
use std::sync::Arc;

use super::compile::{CompileOptions, Compiled, compile};
use super::config_error::{ConfigError, ConfigErrors, ErrorList, SourceSpan};
use super::descriptor::Descriptor;
use super::files::FilesRead;
use super::mapping::Mapping;
use super::rule::Rule;
use super::rule_gate::RuleGate;
use crate::files::SourceFile;

/// Valid rules, loaded from files or text. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Rules(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    compiled: Compiled,
    /// The gate name of each rule, by the rule's index.
    gate_names: Vec<Box<str>>,
    sources: Arc<Vec<SourceFile>>,
}

/// Loads rules with options; [`Rules::load`] uses the defaults.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Loader {
    options: CompileOptions,
}

impl Loader {
    /// Creates a loader with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether several documents may define rules of the same domain, as `MERGE_DOMAIN_CONFIG` does in
    /// Envoy's service.
    ///
    /// Default: false. A duplicate domain is an error.
    pub const fn merge_domains(mut self, merges: bool) -> Self {
        self.options.merges_domains = merges;
        self
    }

    /// Sets whether documents without `charge` have `charge: each`, as the files of Envoy's service expect.
    ///
    /// Default: false. They have `charge: all`.
    pub const fn charge_each(mut self, charges_each: bool) -> Self {
        self.options.charges_each = charges_each;
        self
    }

    /// Sets whether the files were written for Envoy's service (envoyproxy/ratelimit).
    ///
    /// Mistakes that it accepts are warnings instead of errors: a folder without rule files, a field twice or at a place
    /// where it means nothing, a `rate_limit` without a number, which denies every request. A warning also names values with
    /// `*` of which that service takes another one.
    ///
    /// Default: false.
    pub const fn written_for_envoy(mut self, is_for_envoy: bool) -> Self {
        self.options.is_for_envoy = is_for_envoy;
        self
    }

    /// Loads the rules of a file, or of all `.yaml` and `.yml` files of a folder. Ignores subfolders and
    /// files whose names start with a dot. Follows links.
    ///
    /// # Errors
    ///
    /// The errors of all files: see [`ConfigErrors`]. These are errors too:
    ///
    /// - a folder without a rule file, unless it was [written for Envoy](Self::written_for_envoy), or with more than 1,000 of
    ///   them;
    /// - a file that is not a regular file: a FIFO, a socket or a device is never opened;
    /// - files that hold more than 16 MiB together;
    /// - a file whose YAML takes far more memory than its text, such as nested aliases.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Rules, ConfigErrors> {
        self.rules(&self.read(path.as_ref()))
    }

    /// Parses rules from pairs of a name and a text. Error messages show the name. The size of the texts is not
    /// limited.
    ///
    /// # Errors
    ///
    /// All errors of all texts.
    pub fn parse<'t>(
        &self,
        texts: impl IntoIterator<Item = (&'t str, &'t str)>,
    ) -> Result<Rules, ConfigErrors> {
        let source = |(name, text): (&str, &str)| SourceFile { name: name.to_owned(), text: text.to_owned() };
        let sources = Arc::new(texts.into_iter().map(source).collect());
        self.rules(&FilesRead { sources, errors: Vec::new(), warning: None })
    }

    pub(super) fn read(&self, path: &Path) -> FilesRead {
        FilesRead::new(path, self.options.is_for_envoy)
    }

    pub(super) fn rules(&self, read: &FilesRead) -> Result<Rules, ConfigErrors> {
        let errors = read.errors.iter().cloned().collect();
        let mut compiled = compile(&read.sources, self.options, errors)?;
        compiled.warnings.extend(read.warning.clone());
        let gate_names = gate_names(&compiled.rules)?;
        Ok(Rules(Arc::new(Loaded { compiled, gate_names, sources: read.sources.clone() })))
    }
}

/// # Loading rules
impl Rules {
    /// Loads the rules of a file or a folder: [`Loader::load`] with the defaults.
    ///
    /// # Errors
    ///
    /// The same as [`Loader::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigErrors> {
        Loader::new().load(path)
    }

    /// Parses rules from one text. Error messages show `name`.
    ///
    /// # Errors
    ///
    /// All errors of the text.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigErrors> {
        Loader::new().parse([(name, text)])
    }
}

/// # Using rules
impl Rules {
    /// Iterates over the gates of all rules and of their candidates, in the order of the files.
    pub fn gates(&self) -> impl Iterator<Item = RuleGate<'_>> {
        let both = |(rule, name)| iter::once(RuleGate::of(rule, name)).chain(RuleGate::of_candidate(rule));
        self.with_gate_names().flat_map(both)
    }

    /// Returns the gates that an operator means by a name: the one with this [name](RuleGate::name), otherwise all whose
    /// [readable name](RuleGate::readable_name), rule's path or rule's name it is. Only the first is unique.
    ///
    /// ```
    /// use tidegate_rules::Rules;
    ///
    /// let text = "{domain: api, descriptors: [{key: path, value: /login, rate_limit: 5/min}]}";
    /// let rules = Rules::parse("api.yaml", text)?;
    /// let found = rules.gates_named("api / path=/login");
    /// assert_eq!(found[0].name(), rules.gates_named("api.path_/login")[0].name());
    /// # Ok::<(), tidegate_rules::ConfigErrors>(())
    /// ```
    #[must_use]
    pub fn gates_named(&self, name: &str) -> Vec<RuleGate<'_>> {
        match self.gates().find(|gate| gate.name() == name) {
            Some(gate) => vec![gate],
            None => self.gates().filter(|gate| gate.is_called(name)).collect(),
        }
    }

    /// Returns the rule that matches a descriptor, if any.
    #[must_use]
    pub fn find(&self, domain: &str, descriptor: &Descriptor<'_>) -> Option<&Rule> {
        self.find_index(domain, descriptor).map(|index| &*self.0.compiled.rules[index])
    }

    /// Iterates over all rules, in the order of the files.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.compiled.rules.iter().map(|rule| &**rule)
    }

    /// Returns mistakes that do not prevent loading, ordered by file, line and column; at most 100.
    /// [`bind`](Self::bind) and each reload report them to the limiter as the warning `rules-file`.
    ///
    /// - a value that looks like a regular expression, a network, or a route such as `/users/{id}`
    /// - a `*` in a key, two `*` side by side, a number beside `unlimited`, a name in `replaces` that no rule has
    /// - a domain without `descriptors`, or a descriptor with no limit at or below it
    /// - actions whose descriptors no rule matches
    /// - a setting that has no effect without a `rate_limit`
    ///
    /// ```
    /// use tidegate_rules::Rules;
    ///
    /// let rules = Rules::parse("auth.yaml", "domain: auth\ndescriptors: []")?;
    /// let warnings: Vec<&str> = rules.warnings().iter().map(|warning| warning.message()).collect();
    /// assert_eq!(warnings, ["the domain `auth` has no `descriptors`: every request passes"]);
    /// # Ok::<(), tidegate_rules::ConfigErrors>(())
    /// ```
    #[must_use]
    pub fn warnings(&self) -> &[ConfigError] {
        &self.0.compiled.warnings
    }

    /// Iterates over the names of the files and their texts, in the order in which they were read.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.sources.iter().map(|source| (&*source.name, &*source.text))
    }

    /// Returns whether the files define this domain.
    #[must_use]
    pub fn has_domain(&self, domain: &str) -> bool {
        self.0.compiled.domains.contains_key(domain)
    }

    /// Returns the domains, sorted.
    pub(super) fn domains(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.0.compiled.domains.keys().map(|name| &**name).collect();
        names.sort_unstable();
        names
    }

    pub(super) fn compiled(&self) -> &Compiled {
        &self.0.compiled
    }

    pub(super) fn find_index(&self, domain: &str, descriptor: &Descriptor<'_>) -> Option<usize> {
        self.0.compiled.domains.get(domain)?.top.find(&descriptor.entries)
    }

    /// Returns whether the rules of the domain are decided independently of each other: `charge: each`.
    #[must_use]
    pub fn charges_each(&self, domain: &str) -> bool {
        self.0.compiled.domains.get(domain).is_some_and(|domain| domain.charges_each)
    }

    /// Returns whether a rule of the domain also decides requests that cost nothing: it limits requests in flight, or
    /// denies every request.
    #[must_use]
    pub fn applies_without_cost(&self, domain: &str) -> bool {
        self.0.compiled.domains.get(domain).is_some_and(|domain| domain.applies_without_cost)
    }

    /// Returns how the domain maps a request to descriptors, or `None` if no file has the domain.
    #[must_use]
    pub fn mapping(&self, domain: &str) -> Option<&Mapping> {
        self.0.compiled.domains.get(domain).map(|domain| &domain.mapping)
    }

    pub(super) fn shared(&self, index: usize) -> &Arc<Rule> {
        &self.0.compiled.rules[index]
    }

    pub(super) fn gate_name(&self, index: usize) -> &str {
        &self.0.gate_names[index]
    }

    pub(super) fn with_gate_names(&self) -> impl Iterator<Item = (&Rule, &str)> {
        self.iter().zip(self.0.gate_names.iter().map(|name| &**name))
    }
}

/// Returns the name of each rule's gate.
///
/// # Errors
///
/// If two rules would share a gate. That takes a collision of two 80-bit hashes.
fn gate_names(rules: &[Arc<Rule>]) -> Result<Vec<Box<str>>, ConfigErrors> {
    let names: Vec<Box<str>> = rules.iter().map(|rule| rule.gate_name().into()).collect();
    let mut by_name: Vec<usize> = (0..names.len()).collect();
    by_name.sort_by_key(|at| &names[*at]);
    match by_name.windows(2).find(|pair| names[pair[0]] == names[pair[1]]) {
        None => Ok(names),
        Some(pair) => {
            let [first, rule] = [0, 1].map(|at| &rules[pair[at]]);
            let span = SourceSpan { line: rule.line, column: 1, length: 1, offset: 0 };
            let message = format!("this rule would share its counts with {}: rename its key", first.path());
            let error = ConfigError::new(&rule.file, span, String::new(), 0..0, message);
            ErrorList::from_iter([error]).into_result().map(|()| names)
        }
    }
}
