//! Compiles YAML documents into rules. Reports all errors of all files, not only the first.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::config_error::{ConfigError, ConfigErrors, ErrorList, SourceSpan};
use super::fields::{CHARGES, DESCRIPTOR, DOCUMENT};
use super::mapping::{Mapping, Source};
use super::network_reader::NetworksField;
use super::reader::{Fields, MAX_WARNINGS, Reader, quoted};
use super::regex_like::{as_wildcard, is_regex_like, route_parameter};
use super::rule::{LimitSettings, Pattern, Rule, RuleMarks, Step};
use super::tree::{Branch, Level};
use super::unmatched::unmatched;
use super::wildcard::MAX_STARS;
use super::yaml::{SpareBudget, YamlNode, template};
use super::{limit_reader, mapping_reader, metadata, network_reader};
use crate::files::SourceFile;

/// The maximum number of values of one key on one level with a `*` before their end: a request tries each.
const MAX_WILDCARDS: usize = 1_000;
/// The minimum number of bytes of the files per text between two `*`: each takes 250 bytes to find it fast.
const MIN_BYTES_PER_SEARCH: usize = 128;
/// The searches that any files may have.
const SPARE_SEARCHES: usize = 10_000;
/// The number of different settings that later rules are compared to. A file usually has few.
const MAX_SHARED_SETTINGS: usize = 16;
/// The maximum number of branches visited to find actions that no rule matches, and to find values with `*` that overlap.
const MAX_VISITS: usize = 1_000_000;

/// How files are compiled, as a [`Loader`](super::load::Loader) sets it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CompileOptions {
    pub(super) merges_domains: bool,
    pub(super) is_for_envoy: bool,
    /// The meaning of documents without `charge`.
    pub(super) charges_each: bool,
}

#[derive(Debug, Default)]
pub(super) struct Compiled {
    pub(super) rules: Vec<Arc<Rule>>,
    pub(super) domains: HashMap<Box<str>, Domain>,
    /// Ordered by file, line and column.
    pub(super) warnings: Vec<ConfigError>,
}

#[derive(Debug)]
pub(super) struct Domain {
    pub(super) top: Level,
    pub(super) charges_each: bool,
    /// Whether a rule [applies without cost](Rule::applies_without_cost).
    pub(super) applies_without_cost: bool,
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
    options: CompileOptions,
    mut errors: ErrorList,
) -> Result<Compiled, ConfigErrors> {
    let (mut compiled, mut replaced, mut bans, mut documents) =
        (Compiled::default(), Vec::new(), Vec::new(), Vec::new());
    let bytes: usize = sources.iter().map(|source| source.text.len()).sum();
    let mut path_bytes_left = MAX_PATH_FACTOR * bytes + SPARE_PATH_BYTES;
    let mut searches_left = bytes / MIN_BYTES_PER_SEARCH + SPARE_SEARCHES;
    let mut overlap_visits_left = MAX_VISITS;
    let mut spare = SpareBudget::default();
    for source in sources {
        let nodes = YamlNode::documents(source, &mut spare);
        if let Some(error) = template(source, &nodes).filter(|_| source.is_rule_file()) {
            errors.push(error);
            continue;
        }
        let nodes = match nodes {
            Ok(nodes) if nodes.is_empty() => {
                errors.push(source.error(SourceSpan::default(), "this file contains no rules"));
                continue;
            }
            _ if !source.is_rule_file() => {
                let message =
                    "not a rule file: it has none of the fields domain, descriptors and rate_limits";
                errors.push(source.error(SourceSpan::default(), message));
                continue;
            }
            Ok(nodes) => nodes,
            Err(error) => {
                errors.push(*error);
                continue;
            }
        };
        let mut compiler = FileCompiler {
            reader: Reader::new(source, options.is_for_envoy, errors),
            file: source.name.as_str().into(),
            compiled: &mut compiled,
            replaced: Vec::new(),
            bans: Vec::new(),
            documents: Vec::new(),
            steps: Vec::new(),
            settings: VecDeque::new(),
            unlimited: Vec::new(),
            domain: Arc::default(),
            charges_each: false,
            route_keys: Vec::new(),
            path_bytes_left,
            searches_left,
            overlap_visits_left,
        };
        nodes.into_iter().for_each(|node| compiler.document(node, options));
        (path_bytes_left, searches_left) = (compiler.path_bytes_left, compiler.searches_left);
        overlap_visits_left = compiler.overlap_visits_left;
        documents.extend(compiler.documents.into_iter().map(|document| (source, document)));
        let names = compiler.replaced.into_iter();
        replaced.extend(names.map(|(domain, name, span)| (domain, name, source, span)));
        bans.extend(compiler.bans.into_iter().map(|(domain, span)| (domain, source, span)));
        errors = compiler.reader.errors;
        let warnings = compiler.reader.warnings;
        compiled.warnings.extend(warnings);
        compiled.warnings.truncate(MAX_WARNINGS);
    }
    let mut names: HashMap<&str, HashSet<&str>> = HashMap::new();
    for rule in &compiled.rules {
        names.entry(&rule.domain).or_default().extend(rule.name());
    }
    let mut unknown_names = Vec::new();
    // One lookup per document: a domain can be long.
    let mut latest: Option<(Arc<str>, Option<&HashSet<&str>>)> = None;
    for (domain, name, source, span) in replaced {
        let known = match &latest {
            Some((of, known)) if Arc::ptr_eq(of, &domain) => *known,
            _ => names.get(&*domain),
        };
        latest = Some((domain.clone(), known));
        if known.is_some_and(|known| known.contains(&*name)) || unknown_names.len() == MAX_WARNINGS {
            continue;
        }
        let mut reader = Reader::new(source, options.is_for_envoy, errors);
        let hint = match reader.closest(&name, known.into_iter().flatten().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "give a rule of this domain the `name`, or remove it".to_owned(),
        };
        let message =
            format!("no rule of `{}` has the name `{name}`, so it replaces nothing", quoted(&domain));
        reader.warning(span, message, hint);
        errors = reader.errors;
        unknown_names.append(&mut reader.warnings);
    }
    compiled.reject_bans_beside_permits(bans, &mut errors);
    errors.into_result()?;
    compiled.warnings.append(&mut unknown_names);
    compiled.warn_of_unmatched(&documents);
    Ok(compiled)
}

/// A document's domain and mapping, whose warnings need the rules of all files.
struct Document {
    domain: Arc<str>,
    span: SourceSpan,
    /// The index of its first entry of `rate_limits`, and the positions of the actions of each.
    entries: (usize, Vec<Vec<SourceSpan>>),
}

/// Compiles the documents of one file.
struct FileCompiler<'s, 'c> {
    reader: Reader<'s>,
    file: Arc<str>,
    compiled: &'c mut Compiled,
    /// The entries of `replaces`: the domain, the replaced name and its position. They are checked after all
    /// files are compiled, because a later document can define the name.
    replaced: Vec<(Arc<str>, Arc<str>, SourceSpan)>,
    /// The domain and the position of each document's first rule whose ban needs a step without permits.
    bans: Vec<(Arc<str>, SourceSpan)>,
    documents: Vec<Document>,
    domain: Arc<str>,
    charges_each: bool,
    /// The keys of the domain whose values are routes, such as `/users/{id}`.
    route_keys: Vec<Box<str>>,
    /// The path to the current descriptor.
    steps: Vec<Step>,
    /// The settings that further rules can share, the last first.
    settings: VecDeque<Arc<LimitSettings>>,
    /// The keys of descriptors with no limit at or below them. Holds only the outermost.
    unlimited: Vec<SourceSpan>,
    /// The bytes that the paths of further rules may have.
    path_bytes_left: usize,
    /// The texts between two `*` that further values may have.
    searches_left: usize,
    /// The earlier values with `*` that further ones may be compared to.
    overlap_visits_left: usize,
}

impl FileCompiler<'_, '_> {
    fn document(&mut self, mut node: YamlNode<'_>, options: CompileOptions) {
        if node.has("apiVersion") && node.has("kind") {
            let message =
                "this is a manifest of Kubernetes, not a rule file: save the rules in its `data` as a file";
            self.reader.error(SourceSpan { length: 0, ..node.span() }, message);
            return;
        }
        // Each descriptor is freed when it is compiled: the memory of both is not needed at once.
        let descriptors = node.take("descriptors");
        let node = &node;
        let Some(fields) = self.reader.map(node, &DOCUMENT) else { return };
        let charge = fields.get("charge");
        let charge = charge.and_then(|node| self.reader.choice("charge", CHARGES, node));
        let charges_each = charge.map_or(options.charges_each, |at| at == 1);
        let (name, span) = self.reader.required("domain", &fields, node, &DOCUMENT);
        let (top, mapping) = (Level::default(), Mapping::default());
        let (file, line) = (self.file.clone(), span.line as usize);
        let new = Domain { top, charges_each, applies_without_cost: false, mapping, file, line };
        let mut scratch = None;
        let mut domain = match self.compiled.domains.remove(name) {
            None => new,
            Some(first) if name.is_empty() => first,
            Some(first) => {
                let at = format!("{}:{}", first.file, first.line);
                if !options.merges_domains {
                    let message = format!("duplicate domain `{name}`: first defined at {at}");
                    self.reader.error(span, message).hint("put all its rules into one document");
                    scratch = Some(Level::default());
                } else if charge.is_some() && first.charges_each != charges_each {
                    self.reader.error(span, format!("the domain `{name}` has a different `charge` at {at}"));
                }
                first
            }
        };
        (self.domain, self.charges_each) = (name.into(), domain.charges_each);
        let first = domain.mapping.rate_limits.len();
        let actions =
            mapping_reader::rate_limits(&mut self.reader, fields.get("rate_limits"), &mut domain.mapping);
        self.documents.push(Document { domain: self.domain.clone(), span, entries: (first, actions) });
        let actions = domain.mapping.rate_limits.iter().flat_map(|entry| &entry.actions);
        let of_routes = actions.filter(|action| matches!(action.source, Source::PathTemplate(_)));
        self.route_keys = of_routes.map(|action| action.key.clone()).collect();
        if let Some(node) = fields.get("tier") {
            let tier = mapping_reader::tier(&mut self.reader, node);
            if let (Some(_), Some(_)) = (&tier, &domain.mapping.tier) {
                self.reader.error(node.span(), format!("the domain `{name}` already has a `tier`"));
            }
            domain.mapping.tier = tier.or(domain.mapping.tier.take());
        }
        let descriptors = self.reader.take_list("descriptors", descriptors);
        let rules_before = self.compiled.rules.len();
        self.descriptors(descriptors, scratch.as_mut().unwrap_or(&mut domain.top));
        let rules = &self.compiled.rules[rules_before..];
        domain.applies_without_cost |= rules.iter().any(|rule| rule.applies_without_cost());
        self.compiled.domains.insert(name.into(), domain);
        for span in std::mem::take(&mut self.unlimited) {
            let hint = "add a `rate_limit`, or to admit them on purpose `rate_limit: { unlimited: true }`";
            let message = "no limit at or below this descriptor: requests that match it pass";
            self.reader.warning(span, message, hint);
        }
    }

    fn descriptors(&mut self, nodes: Vec<YamlNode<'_>>, level: &mut Level) {
        let mut last_key = Arc::default();
        for node in nodes {
            self.descriptor(node, &mut last_key, level);
        }
    }

    /// Compiles a descriptor. `last_key` is the key of the one before it, which has the same key as a rule.
    fn descriptor(&mut self, mut node: YamlNode<'_>, last_key: &mut Arc<str>, level: &mut Level) {
        let descriptors = node.take("descriptors");
        let node = &node;
        let Some(fields) = self.reader.map(node, &DESCRIPTOR) else { return };
        let (key, span) = self.reader.required("key", &fields, node, &DESCRIPTOR);
        let value = fields.get("value").map(|node| (self.reader.text("value", node), node.span()));
        let value_text = value.and_then(|(text, _)| text).unwrap_or_default();
        if key.contains('*') {
            let message = "a `key` is matched literally: this one matches only a key that contains `*`";
            self.reader.warning(span, message, "put the `*` into a `value`");
        }
        // A client of the service may send routes under the key of the action.
        let is_route = key == "path_template" || self.route_keys.iter().any(|of_routes| **of_routes == *key);
        if let (Some((_, at)), Some((part, wildcard))) = (value, route_parameter(value_text)) {
            let hint = match part.strip_prefix(':') {
                _ if !is_route => Some(format!("write `{wildcard}`, or use the action `path_template`")),
                name => name.map(|name| format!("write `{{{name}}}`, as the routes of axum and actix-web")),
            };
            if let Some(hint) = hint {
                self.reader.warning(at, format!("`{part}` is matched literally"), hint);
            }
        }
        let networks = network_reader::read(&mut self.reader, &fields, node, key, level);
        let mut pattern = match &networks {
            NetworksField::Absent => self.pattern(value_text, value.map_or(span, |(_, span)| span)),
            NetworksField::Invalid => None,
            NetworksField::Of(networks) => networks.first().copied().map(Pattern::Network),
        };
        let mut flag = |name| self.reader.flag(name, fields.get(name));
        let [value_to_metric, share_threshold] = ["value_to_metric", "share_threshold"].map(&mut flag);
        let matches_one = pattern.as_ref().is_some_and(|pattern| !pattern.matches_several());
        if share_threshold && matches_one && !key.contains('*') {
            let node = fields.get("share_threshold").unwrap_or(node);
            let hint = "remove it, or put a `*` into the `value`";
            let message = "`share_threshold` needs a `value` with `*`, or `networks`";
            self.reader.error(node.span(), message).hint(hint);
        }
        if let Some((_, span)) = value {
            network_reader::warn_if_value(&mut self.reader, key, value_text, span);
        }
        let marks = self.marks(&fields);
        if matches!(pattern, Some(Pattern::Wildcard(_))) && level.wildcards(key) >= MAX_WILDCARDS {
            let message = format!(
                "the key `{key}` has more than {MAX_WILDCARDS} values with a `*` before their end, and each request tries all of them"
            );
            self.reader.error(span, message).hint("end the values with `*`, or match another key first");
            pattern = None;
        }
        let has_error = pattern.is_none() || key.is_empty();
        let pattern = pattern.unwrap_or(Pattern::Any);
        let mut scratch = Level::default();
        let level = match level.get(key, &pattern) {
            _ if has_error => &mut scratch,
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
            None => {
                let span = value.map_or(span, |(_, span)| span);
                self.warn_if_other_in_envoy(level, key, &pattern, span);
                level
            }
        };
        if **last_key != *key {
            *last_key = key.into();
        }
        let step = Step { key: last_key.clone(), pattern: pattern.clone(), value_to_metric, share_threshold };
        self.steps.push(step);
        let (rules_before, unlimited_before) = (self.compiled.rules.len(), self.unlimited.len());
        let rule = fields.get("rate_limit").and_then(|node| limit_reader::read(&mut self.reader, node));
        let rule = rule.filter(|_| self.has_room_for_path(span));
        if marks.shadow && rule.as_ref().is_some_and(|(settings, _)| settings.candidate.is_some()) {
            let message = "a rule in shadow mode needs no `candidate`: it denies nothing itself";
            self.reader.error(span, message).hint("remove `shadow_mode`, or the `candidate`");
        }
        if marks.quota && rule.as_ref().is_some_and(|(settings, _)| settings.ban.is_some()) {
            let message =
                "`ban` cannot be combined with `quota_mode`: its denials may be of requests that pass";
            self.reader.error(span, message).hint("remove one of them");
        }
        let decides_before = |settings: &LimitSettings| {
            settings.ban.is_some() || settings.lease.is_some() || settings.is_in_flight
        };
        if marks.charges_used && rule.as_ref().is_some_and(|(settings, _)| decides_before(settings)) {
            let message = "`charge_used` cannot be combined with `ban`, `lease` or `in_flight`, which decide before \
                           units are used";
            self.reader.error(span, message).hint("remove one of them");
        }
        if marks.charges_used && rule.as_ref().is_some_and(|(settings, _)| settings.is_replicated) {
            let message =
                "`charge_used` cannot be combined with `regions`: units used are counted in one region";
            self.reader.error(span, message).hint("remove one of them");
        }
        let counts_denials =
            rule.as_ref().is_some_and(|(settings, _)| settings.ban.is_some()) && !marks.shadow;
        let is_first = self.bans.last().is_none_or(|(domain, _)| !Arc::ptr_eq(domain, &self.domain));
        if counts_denials && !self.charges_each && is_first {
            self.bans.push((self.domain.clone(), span));
        }
        let rule = rule.map(|(settings, spans)| {
            let names = settings.replaces.iter().zip(spans);
            self.replaced.extend(names.map(|(name, at)| (self.domain.clone(), name.clone(), at)));
            let (settings, origin) = (self.share(settings), (self.file.clone(), span.line));
            let rule = Rule::new(self.domain.clone(), &self.steps, settings, marks, origin);
            self.compiled.rules.push(Arc::new(rule));
            self.compiled.rules.len() as u32 - 1
        });
        let mut branch = Branch::new(rule, self.file.clone(), span.line);
        let descriptors = self.reader.take_list("descriptors", descriptors);
        self.descriptors(descriptors, &mut branch.below);
        self.steps.pop();
        if self.compiled.rules.len() == rules_before {
            self.unlimited.truncate(unlimited_before);
            self.unlimited.push(span);
        }
        match networks {
            NetworksField::Of(networks) => level.insert_networks(key, &networks, branch),
            _ => level.insert(key, &pattern, branch),
        }
    }

    /// Warns of a value with `*` that precedes an earlier one here, and not in Envoy's service.
    fn warn_if_other_in_envoy(&mut self, level: &Level, key: &str, pattern: &Pattern, span: SourceSpan) {
        if !self.reader.is_for_envoy {
            return;
        }
        let Some(earlier) = level.less_specific(key, pattern, &mut self.overlap_visits_left) else { return };
        let message = format!(
            "values that also match the `value` at {}:{} count here, since this one has more characters besides `*`; in \
             envoyproxy/ratelimit they count there, since it is the first",
            earlier.file, earlier.line
        );
        self.reader.warning(
            span,
            message,
            "move this descriptor before that one, so that both decide as here",
        );
    }

    /// Returns the pattern of a value, or `None` after an error.
    fn pattern(&mut self, value: &str, span: SourceSpan) -> Option<Pattern> {
        if value.contains("**") {
            let message = "`**` matches the same as `*`: any characters, also `/`";
            self.reader.warning(span, message, "write `*`");
        }
        let stars = value.matches('*').count();
        if stars > MAX_STARS {
            let message = format!("a `value` has at most {MAX_STARS} `*`, not {stars}");
            self.reader.error(span, message).hint("let one `*` match the text between others");
            return None;
        }
        if is_regex_like(value) {
            let message =
                format!("`{value}` looks like a regular expression, but is matched literally except `*`");
            let hint = match as_wildcard(value) {
                Some(wildcard) => format!("did you mean `{wildcard}`?"),
                None => "write `*` for any characters, and one descriptor for each alternative".to_owned(),
            };
            self.reader.warning(span, message, hint);
        }
        let Some(left) = self.searches_left.checked_sub(value.matches('*').count().saturating_sub(1)) else {
            let message = "the values of all rules have too many `*` for the size of the files";
            self.reader.error(span, message).hint("end the values with `*`, or match another key first");
            return None;
        };
        self.searches_left = left;
        Some(Pattern::new(value))
    }

    /// Reads the fields of a descriptor that apply only to its own limit.
    fn marks(&mut self, fields: &Fields<'_>) -> RuleMarks {
        let mut flag = |name| self.reader.flag(name, fields.get(name));
        let [shadow, mut quota, charges_used, detailed_metric] =
            ["shadow_mode", "quota_mode", "charge_used", "detailed_metric"].map(&mut flag);
        let metadata = fields.get("metadata").and_then(|node| metadata::read(&mut self.reader, node));
        if fields.get("rate_limit").is_none() {
            // A default has no effect anywhere.
            let given = [
                ("shadow_mode", shadow),
                ("quota_mode", quota),
                ("charge_used", charges_used),
                ("detailed_metric", detailed_metric),
                ("metadata", metadata.as_ref().is_some_and(|metadata| !metadata.is_empty())),
            ];
            for (name, is_given) in given {
                if let Some(node) = fields.get(name).filter(|_| is_given) {
                    let message = format!("`{name}` has no effect: this descriptor has no `rate_limit`");
                    self.reader.warning(node.span(), message, "move it to the descriptors that have one");
                }
            }
        }
        if let Some(node) = fields.get("quota_mode").filter(|_| quota) {
            if shadow {
                let message = "`quota_mode` cannot be combined with `shadow_mode`, which denies nothing";
                let effect = "`quota_mode` has no effect";
                quota = !self.reader.mistake(node.span(), message, effect, "remove one of them");
            }
            if !self.charges_each {
                let message = "`quota_mode` needs `charge: each`: rules that admit are charged, even if \
                               another one denies";
                self.reader.error(node.span(), message).hint("add `charge: each` to the document");
            }
        }
        RuleMarks { shadow, quota, charges_used, detailed_metric, metadata: metadata.map(Box::new) }
    }

    /// Returns the settings of an earlier rule if they are equal.
    fn share(&mut self, settings: LimitSettings) -> Arc<LimitSettings> {
        if let Some(equal) = self.settings.iter().find(|shared| ***shared == settings) {
            return equal.clone();
        }
        let settings = Arc::new(settings);
        self.settings.push_front(settings.clone());
        self.settings.truncate(MAX_SHARED_SETTINGS);
        settings
    }

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
    /// Adds an error for each of these bans whose domain also has a rule with `in_flight`: if one step decides both,
    /// the denials are not counted.
    fn reject_bans_beside_permits(
        &self,
        bans: Vec<(Arc<str>, &SourceFile, SourceSpan)>,
        errors: &mut ErrorList,
    ) {
        let mut in_flight: HashMap<&str, &Rule> = HashMap::new();
        // Permits of rules in shadow mode are acquired apart.
        for rule in self.rules.iter().filter(|rule| rule.is_in_flight() && !rule.is_shadow()) {
            in_flight.entry(&rule.domain).or_insert(rule);
        }
        for (domain, source, span) in bans {
            let Some(rule) = in_flight.get(&*domain) else { continue };
            let message = format!(
                "`ban` needs `charge: each` beside `in_flight`, which the rule `{}` has: a step that also acquires permits counts no denials",
                quoted(rule.path())
            );
            let hint = "add `charge: each` to the document, or put one of the rules into another domain";
            errors.push(source.error(span, message)).hint(hint);
        }
    }

    /// Adds the warnings that need the rules of all files: domains without rules, and actions that no rule
    /// matches.
    fn warn_of_unmatched(&mut self, documents: &[(&SourceFile, Document)]) {
        let (mut budget, mut empty) = (MAX_VISITS, HashSet::new());
        for (source, document) in documents {
            if self.warnings.len() >= MAX_WARNINGS {
                break;
            }
            let name = &*document.domain;
            let Some(domain) = self.domains.get(name) else { continue };
            let mut reader = Reader::new(source, false, ErrorList::default());
            if domain.top.is_empty() {
                if empty.insert(name) {
                    let message = format!("the domain `{name}` has no `descriptors`: every request passes");
                    reader.warning(document.span, message, "add its rules");
                }
            } else {
                let (first, spans) = &document.entries;
                for (entry, spans) in domain.mapping.rate_limits[*first..].iter().zip(spans) {
                    if reader.warnings.len() == MAX_WARNINGS {
                        break;
                    }
                    if let Some((at, reason)) = unmatched(&domain.top, &entry.actions, &mut budget) {
                        let message = format!("no rule matches the descriptors of these actions: {reason}");
                        reader.warning(spans[at], message, "add a rule for them, or remove the actions");
                    }
                }
            }
            self.warnings.append(&mut reader.warnings);
        }
        self.warnings.truncate(MAX_WARNINGS);
        self.warnings.sort_by(|a, b| a.position().cmp(&b.position()));
    }
}
