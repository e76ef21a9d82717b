//! From files to rules.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::compile::{Compiled, compile};
use super::descriptor::Descriptor;
#[cfg(feature = "tower")]
use super::mapping::Mapping;
use super::mistake::{Mistake, Mistakes, Place};
use super::rule::Rule;
use super::ruled::RuledLimiter;
use super::source::Source;
use crate::gate_name::GateName;
use crate::limiter::Limiter;

/// Rules that were read and are right. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Rules(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    compiled: Compiled,
    /// For each rule.
    gate_names: Vec<GateName>,
}

/// How files are read: see [`Rules::load`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Loader {
    merges_domains: bool,
}

impl Loader {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether several documents may have rules for one domain, as with
    /// `MERGE_DOMAIN_CONFIG` in Envoy's service.
    ///
    /// Default: false. A domain that comes twice is a mistake.
    pub const fn merge_domains(mut self, merges: bool) -> Self {
        self.merges_domains = merges;
        self
    }

    /// The rules in a file, or in all files of a folder that end in `.yaml` or
    /// `.yml`. Files that begin with a dot, and folders within it, are passed over.
    ///
    /// # Errors
    ///
    /// All mistakes of all files. A folder without a file of rules is one.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Rules, Mistakes> {
        self.rules(&Read::new(path.as_ref()))
    }

    /// The rules in texts, each with a name for messages.
    ///
    /// # Errors
    ///
    /// All mistakes of all texts.
    pub fn parse<'t>(&self, texts: impl IntoIterator<Item = (&'t str, &'t str)>) -> Result<Rules, Mistakes> {
        let source = |(name, text): (&str, &str)| Source { name: name.to_owned(), text: text.to_owned() };
        let sources = texts.into_iter().map(source).collect();
        self.rules(&Read { sources, mistakes: Vec::new() })
    }

    pub(super) fn rules(&self, read: &Read) -> Result<Rules, Mistakes> {
        let mut mistakes = read.mistakes.clone();
        let compiled = compile(&read.sources, self.merges_domains).unwrap_or_else(|more| {
            mistakes.extend(more);
            Compiled::default()
        });
        Mistakes::of(mistakes).map_or(Ok(()), Err)?;
        let gate_names = compiled.gate_names()?;
        Ok(Rules(Arc::new(Loaded { compiled, gate_names })))
    }
}

/// What was found, and what could not be read.
#[derive(PartialEq)]
pub(super) struct Read {
    sources: Vec<Source>,
    mistakes: Vec<Mistake>,
}

impl Read {
    pub(super) fn new(path: &Path) -> Self {
        let (mut sources, mut mistakes) = (Vec::new(), Vec::new());
        let files = match files(path) {
            Ok(files) if files.is_empty() => {
                mistakes.push(unreadable(path, "this folder holds no file that ends in .yaml or .yml"));
                files
            }
            Ok(files) => files,
            Err(error) => {
                mistakes.push(unreadable(path, &format!("this cannot be read: {error}")));
                Vec::new()
            }
        };
        for file in files {
            let name = file.display().to_string();
            match fs::read(&file).map(String::from_utf8) {
                Ok(Ok(text)) => sources.push(Source { name, text }),
                Ok(Err(_)) => mistakes.push(unreadable(&file, "this file is not UTF-8")),
                Err(error) => mistakes.push(unreadable(&file, &format!("this cannot be read: {error}"))),
            }
        }
        Self { sources, mistakes }
    }
}

pub(super) fn files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let is_hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_yaml = file.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
        // What is a link counts as what it leads to.
        if is_yaml && !is_hidden && !file.is_dir() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn unreadable(path: &Path, why: &str) -> Mistake {
    Mistake::new(&path.display().to_string(), Place::default(), "", why.to_owned())
}

/// # Reading them
impl Rules {
    /// The rules in a file or a folder: [`Loader::load`] with the defaults.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Mistakes> {
        Loader::new().load(path)
    }

    /// The rules in one text, with a name for messages.
    ///
    /// # Errors
    ///
    /// All its mistakes.
    pub fn parse(name: &str, text: &str) -> Result<Self, Mistakes> {
        Loader::new().parse([(name, text)])
    }
}

/// # Using them
impl Rules {
    /// Makes a gate on `limiter` for each rule and its tiers. What is asked of
    /// the same rules by other processes counts with it.
    #[must_use]
    pub fn bind(&self, limiter: &Limiter) -> RuledLimiter {
        RuledLimiter::new(limiter, self.clone())
    }

    /// The rule that a descriptor meets, if any.
    #[must_use]
    pub fn find(&self, domain: &str, descriptor: &Descriptor<'_>) -> Option<&Rule> {
        self.find_index(domain, descriptor).map(|index| &*self.0.compiled.rules[index])
    }

    /// All of them, in the order of the files.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.compiled.rules.iter().map(|rule| &**rule)
    }

    pub(super) fn compiled(&self) -> &Compiled {
        &self.0.compiled
    }

    pub(super) fn find_index(&self, domain: &str, descriptor: &Descriptor<'_>) -> Option<usize> {
        self.0.compiled.domains.get(domain)?.top.find(&descriptor.entries)
    }

    pub(super) fn charges_each(&self, domain: &str) -> bool {
        self.0.compiled.domains.get(domain).is_some_and(|domain| domain.charges_each)
    }

    #[cfg(feature = "tower")]
    pub(crate) fn mapping(&self, domain: &str) -> Option<&Mapping> {
        self.0.compiled.domains.get(domain).map(|domain| &domain.mapping)
    }

    pub(super) fn shared(&self, index: usize) -> &Arc<Rule> {
        &self.0.compiled.rules[index]
    }

    pub(super) fn gate_name(&self, index: usize) -> GateName {
        self.0.gate_names[index]
    }

    pub(super) fn with_gate_names(&self) -> impl Iterator<Item = (&Rule, &str)> {
        self.iter().zip(self.0.gate_names.iter().map(|name| &**name))
    }
}
