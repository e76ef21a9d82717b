//! Compiles `rate_limits` into actions.

use super::config_error::SourceSpan;
use super::fields::{
    ACTION, EXTENSION, GENERIC_KEY, HEADER, HEADER_VALUE_MATCH, KEYED, MASKED_REMOTE_ADDRESS,
    QUERY_PARAMETER, QUERY_PARAMETER_VALUE_MATCH, QUERY_PARAMETERS, RATE_LIMITS, REMOTE_ADDRESS,
    REQUEST_HEADERS, STRING, TIER_OF,
};
use super::mapping::{
    Action, Condition, DescriptorActions, Extension, Mapping, Match, Source, Test, TextMatch,
};
use super::reader::{Fields, Reader, quoted};
use super::yaml::YamlNode;
use crate::fields::FieldTable;

/// Names that Envoy gives to parts of a request that are not headers.
const PSEUDO_HEADERS: [&str; 3] = [":authority", ":method", ":path"];

/// Adds the entries of this document to those that earlier documents defined for the domain. Returns the
/// positions of the actions of each added entry.
pub(super) fn rate_limits(
    reader: &mut Reader<'_>,
    node: Option<&YamlNode>,
    mapping: &mut Mapping,
) -> Vec<Vec<SourceSpan>> {
    let mut spans = Vec::new();
    for node in reader.list("rate_limits", node) {
        let Some(fields) = reader.map(node, &RATE_LIMITS) else { continue };
        let actions = reader.list("actions", fields.get("actions"));
        if actions.is_empty() {
            let message = "an entry of `rate_limits` needs `actions`";
            reader.error(node.span(), message).hint("begin each action with `- `");
        }
        if fields.is_null("methods") {
            no_methods(reader, node);
        }
        let methods = fields.get("methods").map(|node| methods(reader, node));
        let made = actions.iter().filter_map(|node| action(reader, node)).collect();
        mapping.rate_limits.push(DescriptorActions { actions: made, methods });
        spans.push(actions.iter().map(|node| node.span()).collect());
    }
    spans
}

fn methods(reader: &mut Reader<'_>, node: &YamlNode) -> Box<[Box<str>]> {
    let errors_before = reader.errors.total();
    let nodes = reader.list("methods", Some(node));
    if nodes.is_empty() && reader.errors.total() == errors_before {
        no_methods(reader, node);
    }
    let mut methods: Vec<Box<str>> = Vec::new();
    for node in nodes {
        let Some(method) = reader.text("a method", node) else { continue };
        // Methods are case-sensitive: another spelling would match no request.
        let is_method =
            !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
        if !is_method {
            let error = reader.error(node.span(), format!("`{}` is not an HTTP method", quoted(method)));
            error.hint("write a method in capitals, such as GET");
        } else if methods.iter().any(|other| **other == *method) {
            reader.error(node.span(), format!("duplicate method `{method}`")).hint("remove one of them");
        } else {
            methods.push(method.into());
        }
    }
    methods.into()
}

fn no_methods(reader: &mut Reader<'_>, node: &YamlNode) {
    reader.error(node.span(), "the list of `methods` is empty").hint("remove it to apply to all methods");
}

pub(super) fn tier(reader: &mut Reader<'_>, node: &YamlNode) -> Option<Source> {
    let fields = reader.map(node, &TIER_OF)?;
    let (name, node) = exactly_one(reader, &fields, &TIER_OF, &["header_name", "extension"], node.span())?;
    let text = reader.text(name, node)?;
    if text.is_empty() {
        reader.error(node.span(), format!("the `{name}` is empty"));
        return None;
    }
    match name {
        "header_name" => header_name(reader, text, node.span()),
        _ => Some(Source::Extension(extension(reader, text, node.span()))),
    }
}

fn action(reader: &mut Reader<'_>, node: &YamlNode) -> Option<Action> {
    let fields = reader.map(node, &ACTION)?;
    let names: Vec<_> = ACTION.fields.iter().map(|field| field.name).collect();
    let (name, node) = exactly_one(reader, &fields, &ACTION, &names, node.span())?;
    let table = match name {
        "remote_address" => &REMOTE_ADDRESS,
        "masked_remote_address" => &MASKED_REMOTE_ADDRESS,
        "request_headers" => &REQUEST_HEADERS,
        "query_parameters" => &QUERY_PARAMETERS,
        "generic_key" => &GENERIC_KEY,
        "header_value_match" => &HEADER_VALUE_MATCH,
        "query_parameter_value_match" => &QUERY_PARAMETER_VALUE_MATCH,
        "extension" => &EXTENSION,
        _ => &KEYED,
    };
    let fields = reader.map(node, table)?;
    let (source, default_key) = match name {
        "remote_address" => (Some(Source::RemoteAddress), Some(name)),
        "masked_remote_address" => {
            let v4 = prefix(reader, &fields, "v4_prefix_mask_len", 32).unwrap_or(32);
            let v6 = prefix(reader, &fields, "v6_prefix_mask_len", 128);
            (Some(Source::MaskedRemoteAddress(v4, v6)), Some(name))
        }
        "request_headers" => {
            let (header, span) = reader.required("header_name", &fields, node, table);
            (header_name(reader, header, span), None)
        }
        "query_parameters" => {
            let (parameter, _) = reader.required("query_parameter_name", &fields, node, table);
            (Some(Source::QueryParameter(parameter.into())), None)
        }
        "generic_key" => {
            let (value, _) = reader.required("descriptor_value", &fields, node, table);
            (Some(Source::Constant(value.into())), Some(name))
        }
        "header_value_match" => {
            (matches(reader, node, table, &fields, ("headers", &HEADER)), Some("header_match"))
        }
        "query_parameter_value_match" => {
            let conditions = ("query_parameters", &QUERY_PARAMETER);
            (matches(reader, node, table, &fields, conditions), Some("query_match"))
        }
        "extension" => {
            let (named, span) = reader.required("name", &fields, node, table);
            (Some(Source::Extension(extension(reader, named, span))), Some(named))
        }
        "method" => (Some(Source::Method), Some(name)),
        "path" => (Some(Source::Path), Some(name)),
        _ => {
            let message = "`path_template` needs a service whose router has templates: axum or actix-web, with the \
                           feature `axum` or `actix` of tidegate-http";
            let mut unsupported = reader.source.error(node.span(), message);
            unsupported.hint("enable the feature, or use `path`");
            (Some(Source::PathTemplate(Box::new(unsupported))), Some(name))
        }
    };
    let key = match (fields.get("descriptor_key"), default_key) {
        (None, Some(default)) => default,
        _ => reader.required("descriptor_key", &fields, node, table).0,
    };
    let skip_if_absent = reader.flag("skip_if_absent", fields.get("skip_if_absent"));
    Some(Action { key: key.into(), source: source?, skip_if_absent })
}

/// Returns the one field of `names` that is present. Reports an error if there are none or several.
fn exactly_one<'n>(
    reader: &mut Reader<'_>,
    fields: &Fields<'n>,
    table: &FieldTable,
    names: &[&'static str],
    span: SourceSpan,
) -> Option<(&'static str, &'n YamlNode<'n>)> {
    let mut found = names.iter().filter_map(|name| Some((*name, fields.get(name)?)));
    match (found.next(), found.next()) {
        (Some(only), None) => Some(only),
        (Some((first, _)), Some((second, node))) => {
            let message = format!("`{second}` cannot be combined with `{first}` in {}", table.label);
            reader.error(node.span(), message).hint("remove one of them");
            None
        }
        (None, _) if fields.has_unknown => None,
        (None, _) => {
            let empty = names.iter().find(|name| fields.is_null(name));
            let hint = match empty {
                Some(name) => format!("write `{name}: {{}}`"),
                None => format!("add one of {}", names.join(", ")),
            };
            reader.error(span, format!("{} is incomplete", table.label)).hint(hint);
            None
        }
    }
}

fn prefix(reader: &mut Reader<'_>, fields: &Fields<'_>, name: &str, max: u8) -> Option<u8> {
    let node = fields.get(name)?;
    let bits = reader.count(name, 0, node)?;
    if bits > max.into() {
        reader.error(node.span(), format!("`{name}` must be at most {max}"));
    }
    u8::try_from(bits).ok()
}

/// Checks a header name. Accepts Envoy's pseudo-headers too; no other name can begin with a colon.
fn header_name(reader: &mut Reader<'_>, name: &str, span: SourceSpan) -> Option<Source> {
    let name = name.to_ascii_lowercase();
    let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() {
        return None;
    }
    if !PSEUDO_HEADERS.contains(&name.as_str()) && !name.bytes().all(is_token_byte) {
        let hint = match reader.closest(&name, PSEUDO_HEADERS) {
            Some(near) if name.starts_with(':') => format!("did you mean `{near}`?"),
            _ => format!("use an HTTP token, or one of {}", PSEUDO_HEADERS.join(", ")),
        };
        reader.error(span, format!("`{name}` is not a valid header name")).hint(hint);
        return None;
    }
    Some(Source::Header(name.into()))
}

fn extension(reader: &Reader<'_>, name: &str, span: SourceSpan) -> Extension {
    let unknown = reader.source.error(span, format!("this service provides no extension `{name}`"));
    Extension { name: name.into(), unknown: Box::new(unknown) }
}

fn matches(
    reader: &mut Reader<'_>,
    node: &YamlNode,
    table: &FieldTable,
    fields: &Fields<'_>,
    (list_name, condition_table): (&str, &FieldTable),
) -> Option<Source> {
    let (value, _) = reader.required("descriptor_value", fields, node, table);
    let expected = fields.get("expect_match").is_none_or(|node| reader.flag("expect_match", Some(node)));
    let nodes = reader.list(list_name, fields.get(list_name));
    if nodes.is_empty() {
        reader.error(node.span(), format!("{} needs `{list_name}`", table.label));
    }
    let conditions = nodes.iter().filter_map(|node| condition(reader, node, condition_table)).collect();
    Some(Source::Match(Match { value: value.into(), expected, conditions }))
}

fn condition(reader: &mut Reader<'_>, node: &YamlNode, table: &FieldTable) -> Option<Condition> {
    let fields = reader.map(node, table)?;
    let (name, span) = reader.required("name", &fields, node, table);
    let of = match table.label == HEADER.label {
        true => header_name(reader, name, span)?,
        false => Source::QueryParameter(name.into()),
    };
    let test = match (fields.get("string_match"), fields.get("present_match")) {
        (Some(_), Some(node)) => {
            let message = "`present_match` cannot be combined with `string_match`";
            reader.error(node.span(), message).hint("remove one of them");
            return None;
        }
        (Some(node), None) => string_match(reader, node)?,
        (None, Some(node)) => Test::Present(reader.flag("present_match", Some(node))),
        (None, None) => Test::Present(true),
    };
    let inverted = reader.flag("invert_match", fields.get("invert_match"));
    Some(Condition { of, test, inverted })
}

fn string_match(reader: &mut Reader<'_>, node: &YamlNode) -> Option<Test> {
    const MATCHES: [(&str, TextMatch); 4] = [
        ("exact", TextMatch::Exact),
        ("prefix", TextMatch::Prefix),
        ("suffix", TextMatch::Suffix),
        ("contains", TextMatch::Contains),
    ];
    let fields = reader.map(node, &STRING)?;
    let ignore_case = reader.flag("ignore_case", fields.get("ignore_case"));
    let (name, node) = exactly_one(reader, &fields, &STRING, &MATCHES.map(|(name, _)| name), node.span())?;
    let text = reader.text(name, node)?;
    let (_, how) = MATCHES.into_iter().find(|(other, _)| *other == name)?;
    if text.is_empty() && !matches!(how, TextMatch::Exact) {
        reader
            .error(node.span(), format!("an empty `{name}` matches every value"))
            .hint("use `present_match`");
    }
    Some(Test::Text { how, text: text.into(), ignore_case })
}
