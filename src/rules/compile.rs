//! From documents to rules. All mistakes of all files are found.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::fields::{CHARGES, DESCRIPTOR, DOCUMENT, closest};
use super::limit;
use super::mapping::{self, Mapping};
use super::mistake::{Mistake, Mistakes, Place};
use super::reader::Reader;
use super::rule::{Pattern, Rule, Step};
use super::source::Source;
use super::tree::{Branch, Level};
use super::yaml::Node;
use crate::gate_name::GateName;

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

pub(super) fn compile(sources: &[Source], merges_domains: bool) -> Result<Compiled, Vec<Mistake>> {
    let (mut compiled, mut mistakes, mut replaced) = (Compiled::default(), Vec::new(), Vec::new());
    for source in sources {
        let documents = match Node::documents(source) {
            Ok(documents) => documents,
            Err(mistake) => {
                mistakes.push(*mistake);
                continue;
            }
        };
        if documents.is_empty() {
            mistakes.push(source.mistake(Place::default(), "this file holds no rules"));
        }
        let reader = Reader { source, mistakes: Vec::new() };
        let (file, steps) = (source.name.as_str().into(), Vec::new());
        let mut reading =
            Reading { reader, file, compiled: &mut compiled, replaced: Vec::new(), steps, domain: "" };
        documents.iter().for_each(|document| reading.document(document, merges_domains));
        let names = reading.replaced.into_iter();
        replaced.extend(names.map(|(domain, name, place)| (domain, name, source, place)));
        mistakes.append(&mut reading.reader.mistakes);
    }
    let mut names: HashMap<&str, HashSet<&str>> = HashMap::new();
    for rule in &compiled.rules {
        names.entry(&rule.domain).or_default().extend(rule.name());
    }
    for (domain, name, source, place) in replaced {
        let known = names.get(domain.as_str());
        if known.is_some_and(|known| known.contains(name.as_str())) {
            continue;
        }
        let mut mistake = source.mistake(place, format!("no rule of `{domain}` has the name `{name}`"));
        if let Some(near) = closest(&name, known.into_iter().flatten().copied()) {
            mistake.hint(format!("did you mean `{near}`?"));
        }
        mistakes.push(mistake);
    }
    if mistakes.is_empty() { Ok(compiled) } else { Err(mistakes) }
}

/// One file on its way to rules.
struct Reading<'s, 'n, 'c> {
    reader: Reader<'s>,
    file: Arc<str>,
    compiled: &'c mut Compiled,
    /// In which domain which name stands where.
    replaced: Vec<(String, String, Place)>,
    domain: &'n str,
    /// The way to the descriptor that is read.
    steps: Vec<Step>,
}

impl<'n> Reading<'_, 'n, '_> {
    fn document(&mut self, node: &'n Node, merges_domains: bool) {
        let Some(fields) = self.reader.map(node, &DOCUMENT) else { return };
        let charge = fields.get("charge");
        let charge = charge.and_then(|node| self.reader.choice("charge", CHARGES, node));
        let charges_each = charge == Some(1);
        let (name, place) = self.reader.required("domain", &fields, node, &DOCUMENT);
        let (top, mapping) = (Level::default(), Mapping::default());
        let new = Domain { top, charges_each, mapping, file: self.file.clone(), line: place.line };
        let mut scratch = None;
        let mut domain = match self.compiled.domains.remove(name) {
            None => new,
            Some(first) if name.is_empty() => first,
            Some(first) => {
                let at = format!("{}:{}", first.file, first.line);
                if !merges_domains {
                    let message = format!("the domain `{name}` is there already, at {at}");
                    self.reader.mistake(place, message).hint("put all its rules into one document");
                    scratch = Some(Level::default());
                } else if charge.is_some() && first.charges_each != charges_each {
                    self.reader.mistake(place, format!("the domain `{name}` has another `charge` at {at}"));
                }
                first
            }
        };
        self.domain = name;
        mapping::rate_limits(&mut self.reader, fields.get("rate_limits"), &mut domain.mapping);
        if let Some(node) = fields.get("tier") {
            let tier = mapping::tier(&mut self.reader, node);
            if let (Some(_), Some(_)) = (&tier, &domain.mapping.tier) {
                self.reader.mistake(node.place, format!("the domain `{name}` has a `tier` already"));
            }
            domain.mapping.tier = tier;
        }
        let descriptors = self.reader.list("descriptors", fields.get("descriptors"));
        self.descriptors(descriptors, scratch.as_mut().unwrap_or(&mut domain.top));
        self.compiled.domains.insert(name.into(), domain);
    }

    fn descriptors(&mut self, nodes: &'n [Node], level: &mut Level) {
        for node in nodes {
            self.descriptor(node, level);
        }
    }

    fn descriptor(&mut self, node: &'n Node, level: &mut Level) {
        let Some(fields) = self.reader.map(node, &DESCRIPTOR) else { return };
        let (key, place) = self.reader.required("key", &fields, node, &DESCRIPTOR);
        let value = fields.get("value").map(|node| (self.reader.text("value", node), node.place));
        let value_text = value.and_then(|(text, _)| text).unwrap_or_default();
        if key.ends_with('*') && value_text.is_empty() {
            let hint = "a `*` can stand at the end of a `value`";
            self.reader.mistake(place, "a `key` is met as it is, without `*`").hint(hint);
        }
        let pattern = Pattern::new(value_text);
        let mut flag = |name| self.reader.flag(name, fields.get(name));
        let [shadow, detailed_metric, value_to_metric, share_threshold] =
            ["shadow_mode", "detailed_metric", "value_to_metric", "share_threshold"].map(&mut flag);
        if share_threshold && !matches!(pattern, Pattern::Prefix(_)) {
            let node = fields.get("share_threshold").unwrap_or(node);
            let hint = "without a value, or with one value, there is nothing to share";
            let message = "`share_threshold` is for a `value` that ends with `*`";
            self.reader.mistake(node.place, message).hint(hint);
        }
        if fields.is_null("rate_limit") {
            let hint = "leave it out, or move what belongs to it further to the right";
            self.reader.mistake(place, "the `rate_limit` of this descriptor is empty").hint(hint);
        }
        let mut scratch = Level::default();
        let level = match level.get(key, &pattern) {
            Some(_) if key.is_empty() => &mut scratch,
            Some(first) => {
                let what = if value_text.is_empty() { "without a value" } else { "with this value" };
                let message =
                    format!("the key `{key}` {what} stands here already, at {}:{}", first.file, first.line);
                let place = value.map_or(place, |(_, place)| place);
                self.reader.mistake(place, message).hint("put what both say into one descriptor");
                &mut scratch
            }
            None => level,
        };
        let step = Step { key: key.into(), pattern: pattern.clone(), value_to_metric, share_threshold };
        self.steps.push(step);
        let rule = fields.get("rate_limit").and_then(|node| limit::read(&mut self.reader, node));
        let rule = rule.map(|(settings, places)| {
            let names = settings.replaces.iter().zip(places);
            self.replaced.extend(names.map(|(name, at)| (self.domain.to_owned(), name.clone(), at)));
            let origin = (self.file.clone(), place.line);
            let metric = (shadow, detailed_metric);
            self.compiled.rules.push(Arc::new(Rule::new(self.domain, &self.steps, settings, metric, origin)));
            self.compiled.rules.len() - 1
        });
        let mut branch = Branch { rule, below: Level::default(), file: self.file.clone(), line: place.line };
        let below = self.reader.list("descriptors", fields.get("descriptors"));
        self.descriptors(below, &mut branch.below);
        self.steps.pop();
        level.insert(key, &pattern, branch);
    }
}

impl Compiled {
    /// Each rule's gate, or who would have the same: that takes two hashes of 80
    /// bits that are equal.
    pub(super) fn gate_names(&self) -> Result<Vec<GateName>, Mistakes> {
        // None is too long.
        let names = self.rules.iter().filter_map(|rule| GateName::new(&rule.gate_name()));
        let names: Vec<GateName> = names.collect();
        let mut seen = HashMap::with_capacity(names.len());
        let twice = names
            .iter()
            .zip(&self.rules)
            .find_map(|(name, rule)| seen.insert(&**name, rule).map(|first| (first, rule)));
        let mistake = twice.map(|(first, rule)| {
            let place = Place { line: rule.line, column: 1, length: 1 };
            let message = format!("its counts would be those of {}: rename its key", first.path());
            Mistake::new(&rule.file, place, "", message)
        });
        Mistakes::of(mistake.into_iter().collect()).map_or(Ok(names), Err)
    }
}
