//! Compiles YAML documents into rules. Reports all errors of all files, not only the first.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::config_error::{ConfigError, ConfigErrors, ErrorList, SourceSpan};
use super::fields::{CHARGES, DESCRIPTOR, DOCUMENT};
use super::mapping::Mapping;
use super::reader::Reader;
use super::rule::{Pattern, Rule, Step};
use super::source::SourceFile;
use super::tree::{Branch, Level};
use super::yaml::YamlNode;
use super::{limit, mapping_reader};

#[derive(Debug, Default)]
pub(super) struct Compiled {
    pub(super) rules: Vec<Arc<Rule>>,
    pub(super) domains: HashMap<Box<str>, Domain>,
}

#[derive(Debug)]
pub(super) struct Domain {
    pub(super) top: Level,
    pub(super) charges_each: bool,
    pub(super) mapping: Mapping,
    file: Arc<str>,
    line: usize,
}

/// Rules contain the keys and values of the descriptors above them. Their size is limited to this multiple of the
/// files' size, plus [`SPARE_PATH_BYTES`]: otherwise one long key over many rules would fill the memory.
const MAX_PATH_FACTOR: usize = 2;
const SPARE_PATH_BYTES: usize = 1 << 20;

/// Compiles the files. `errors` are those of files that could not be read.
pub(super) fn compile(
    sources: &[SourceFile],
    merges_domains: bool,
    mut errors: ErrorList,
) -> Result<Compiled, ConfigErrors> {
    let (mut compiled, mut replaced) = (Compiled::default(), Vec::new());
    let bytes: usize = sources.iter().map(|source| source.text.len()).sum();
    let mut path_bytes_left = MAX_PATH_FACTOR * bytes + SPARE_PATH_BYTES;
    for source in sources {
        let documents = match YamlNode::documents(source) {
            Ok(documents) if documents.is_empty() => {
                errors.push(source.error(SourceSpan::default(), "this file contains no rules"));
                continue;
            }
            _ if !source.is_rule_file() => {
                let message =
                    "not a rule file: it has none of the fields domain, descriptors and rate_limits";
                errors.push(source.error(SourceSpan::default(), message));
                continue;
            }
            Ok(documents) => documents,
            Err(error) => {
                errors.push(*error);
                continue;
            }
        };
        let mut compiler = FileCompiler {
            reader: Reader { source, errors },
            file: source.name.as_str().into(),
            compiled: &mut compiled,
            replaced: Vec::new(),
            domain: "",
            steps: Vec::new(),
            path_bytes_left,
        };
        documents.iter().for_each(|document| compiler.document(document, merges_domains));
        path_bytes_left = compiler.path_bytes_left;
        let names = compiler.replaced.into_iter();
        replaced.extend(names.map(|(domain, name, span)| (domain, name, source, span)));
        errors = compiler.reader.errors;
    }
    let mut names: HashMap<&str, HashSet<&str>> = HashMap::new();
    for rule in &compiled.rules {
        names.entry(&rule.domain).or_default().extend(rule.name());
    }
    for (domain, name, source, span) in replaced {
        let known = names.get(domain.as_str());
        if known.is_some_and(|known| known.contains(name.as_str())) {
            continue;
        }
        let mut reader = Reader { source, errors };
        let near = reader.closest(&name, known.into_iter().flatten().copied()).map(str::to_owned);
        let error = reader.error(span, format!("no rule of `{domain}` has the name `{name}`"));
        if let Some(near) = near {
            error.hint(format!("did you mean `{near}`?"));
        }
        errors = reader.errors;
    }
    errors.into_result().map(|()| compiled)
}

/// Compiles the documents of one file.
struct FileCompiler<'s, 'n, 'c> {
    reader: Reader<'s>,
    file: Arc<str>,
    compiled: &'c mut Compiled,
    /// The entries of `replaces`: the domain, the replaced name and its position. They are checked after all
    /// files are compiled, because a later document can define the name.
    replaced: Vec<(String, String, SourceSpan)>,
    domain: &'n str,
    /// The path to the current descriptor.
    steps: Vec<Step>,
    /// The bytes that the paths of further rules may have.
    path_bytes_left: usize,
}

impl<'n> FileCompiler<'_, 'n, '_> {
    fn document(&mut self, node: &'n YamlNode<'n>, merges_domains: bool) {
        let Some(fields) = self.reader.map(node, &DOCUMENT) else { return };
        let charge = fields.get("charge");
        let charge = charge.and_then(|node| self.reader.choice("charge", CHARGES, node));
        let charges_each = charge == Some(1);
        let (name, span) = self.reader.required("domain", &fields, node, &DOCUMENT);
        let (top, mapping) = (Level::default(), Mapping::default());
        let new = Domain { top, charges_each, mapping, file: self.file.clone(), line: span.line as usize };
        let mut scratch = None;
        let mut domain = match self.compiled.domains.remove(name) {
            None => new,
            Some(first) if name.is_empty() => first,
            Some(first) => {
                let at = format!("{}:{}", first.file, first.line);
                if !merges_domains {
                    let message = format!("duplicate domain `{name}`: first defined at {at}");
                    self.reader.error(span, message).hint("put all its rules into one document");
                    scratch = Some(Level::default());
                } else if charge.is_some() && first.charges_each != charges_each {
                    self.reader.error(span, format!("the domain `{name}` has a different `charge` at {at}"));
                }
                first
            }
        };
        self.domain = name;
        mapping_reader::rate_limits(&mut self.reader, fields.get("rate_limits"), &mut domain.mapping);
        if let Some(node) = fields.get("tier") {
            let tier = mapping_reader::tier(&mut self.reader, node);
            if let (Some(_), Some(_)) = (&tier, &domain.mapping.tier) {
                self.reader.error(node.span, format!("the domain `{name}` already has a `tier`"));
            }
            domain.mapping.tier = tier;
        }
        let descriptors = self.reader.list("descriptors", fields.get("descriptors"));
        self.descriptors(descriptors, scratch.as_mut().unwrap_or(&mut domain.top));
        self.compiled.domains.insert(name.into(), domain);
    }

    fn descriptors(&mut self, nodes: &'n [YamlNode<'n>], level: &mut Level) {
        for node in nodes {
            self.descriptor(node, level);
        }
    }

    fn descriptor(&mut self, node: &'n YamlNode<'n>, level: &mut Level) {
        let Some(fields) = self.reader.map(node, &DESCRIPTOR) else { return };
        let (key, span) = self.reader.required("key", &fields, node, &DESCRIPTOR);
        let value = fields.get("value").map(|node| (self.reader.text("value", node), node.span));
        let value_text = value.and_then(|(text, _)| text).unwrap_or_default();
        if key.ends_with('*') && value_text.is_empty() {
            let hint = "put the `*` at the end of a `value`";
            self.reader.error(span, "a `key` is matched literally and cannot end with `*`").hint(hint);
        }
        let pattern = Pattern::new(value_text);
        let mut flag = |name| self.reader.flag(name, fields.get(name));
        let [shadow, detailed_metric, value_to_metric, share_threshold] =
            ["shadow_mode", "detailed_metric", "value_to_metric", "share_threshold"].map(&mut flag);
        if share_threshold && !matches!(pattern, Pattern::Prefix(_)) {
            let node = fields.get("share_threshold").unwrap_or(node);
            let hint = "remove it, or end the `value` with `*`";
            let message = "`share_threshold` needs a `value` that ends with `*`";
            self.reader.error(node.span, message).hint(hint);
        }
        if fields.is_null("rate_limit") {
            let hint = "remove it, or indent its fields further";
            self.reader.error(span, "the `rate_limit` of this descriptor is empty").hint(hint);
        }
        let mut scratch = Level::default();
        let level = match level.get(key, &pattern) {
            Some(_) if key.is_empty() => &mut scratch,
            Some(first) => {
                let which = if value_text.is_empty() { "without a value" } else { "with this value" };
                let (file, line) = (&first.file, first.line);
                let message = format!(
                    "duplicate descriptor: the key `{key}` {which} is already defined at {file}:{line}"
                );
                let span = value.map_or(span, |(_, span)| span);
                self.reader.error(span, message).hint("merge both into one descriptor");
                &mut scratch
            }
            None => level,
        };
        let step = Step { key: key.into(), pattern: pattern.clone(), value_to_metric, share_threshold };
        self.steps.push(step);
        let rule = fields.get("rate_limit").and_then(|node| limit::read(&mut self.reader, node));
        let rule = rule.filter(|_| self.has_room_for_path(span));
        let rule = rule.map(|(settings, spans)| {
            let names = settings.replaces.iter().zip(spans);
            self.replaced.extend(names.map(|(name, at)| (self.domain.to_owned(), name.clone(), at)));
            let origin = (self.file.clone(), span.line as usize);
            let metric = (shadow, detailed_metric);
            self.compiled.rules.push(Arc::new(Rule::new(self.domain, &self.steps, settings, metric, origin)));
            self.compiled.rules.len() - 1
        });
        let mut branch =
            Branch { rule, below: Level::default(), file: self.file.clone(), line: span.line as usize };
        let below = self.reader.list("descriptors", fields.get("descriptors"));
        self.descriptors(below, &mut branch.below);
        self.steps.pop();
        level.insert(key, &pattern, branch);
    }
}

impl FileCompiler<'_, '_, '_> {
    /// Returns whether the rule at the current path fits into memory, and reports an error if not.
    fn has_room_for_path(&mut self, span: SourceSpan) -> bool {
        let path_bytes = self.domain.len() + self.steps.iter().map(Step::text_bytes).sum::<usize>();
        if let Some(left) = self.path_bytes_left.checked_sub(path_bytes) {
            self.path_bytes_left = left;
            return true;
        }
        let message = "the keys and values above the rules are too long: each rule contains those above it";
        self.reader.error(span, message).hint("shorten the keys and values that have descriptors below them");
        false
    }
}

impl Compiled {
    /// Returns the name of each rule's gate.
    ///
    /// # Errors
    ///
    /// If two rules would share a gate. That takes a collision of two 80-bit hashes.
    pub(super) fn gate_names(&self) -> Result<Vec<Box<str>>, ConfigErrors> {
        let names: Vec<Box<str>> = self.rules.iter().map(|rule| rule.gate_name().into()).collect();
        let mut first_uses = HashMap::with_capacity(names.len());
        let collision = names
            .iter()
            .zip(&self.rules)
            .find_map(|(name, rule)| first_uses.insert(&**name, rule).map(|first| (first, rule)));
        match collision {
            None => Ok(names),
            Some((first, rule)) => {
                let span = SourceSpan { line: rule.line as u32, column: 1, length: 1, offset: 0 };
                let message =
                    format!("this rule would share its counts with {}: rename its key", first.path());
                let error = ConfigError::new(&rule.file, span, String::new(), 0..0, message);
                ErrorList::from_iter([error]).into_result().map(|()| names)
            }
        }
    }
}
