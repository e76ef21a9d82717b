//! Describes the fields of a map in a rule file.

/// The fields of a map.
pub(super) struct FieldTable {
    /// The name of the map in messages, with its article.
    pub(super) label: &'static str,
    pub(super) fields: &'static [Field],
    /// The names of the required fields.
    pub(super) required: &'static [&'static str],
    /// Envoy's fields that are not supported, each with the reason.
    pub(super) unsupported: &'static [(&'static str, &'static str)],
}

pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: FieldKind,
    pub(super) help: &'static str,
}

pub(super) enum FieldKind {
    Text,
    /// A list of strings.
    Texts,
    Flag,
    /// A whole number with this minimum.
    Count(u64),
    /// A duration such as `15m`.
    Duration,
    /// A duration, or a period of a calendar such as `month`.
    Window,
    Choice(&'static [&'static str]),
    /// A map of any values.
    Map,
    One(&'static FieldTable),
    Many(&'static FieldTable),
    /// A map from names that the operator chooses.
    Named(&'static FieldTable),
}

pub(super) const fn field(name: &'static str, kind: FieldKind, help: &'static str) -> Field {
    Field { name, kind, help }
}
