//! The fields of `rate_limits`, which maps a request to descriptors.

use super::{Field, FieldKind, FieldTable, field};

pub(crate) static RATE_LIMITS: FieldTable = FieldTable {
    label: "an entry of `rate_limits`",
    fields: &[
        field(
            "actions",
            FieldKind::Many(&ACTION),
            "Each action makes one entry of a descriptor. If an action makes none, there is no descriptor.",
        ),
        field(
            "methods",
            FieldKind::Texts,
            "The methods of the requests that have the descriptor; by default all.",
        ),
    ],
    required: &["actions"],
    unsupported: &[
        ("stage", "tidegate has no filter stages: remove it"),
        ("disable_key", "tidegate does not read Envoy's runtime: remove the entry from the file instead"),
        ("limit", "define limits in `descriptors` only"),
        ("hits_addend", "set the cost of a request with the layer's `cost` or the rule's `cost`"),
        ("apply_on_stream_done", "use the layer's `charge` to charge by the response"),
    ],
};

/// Exactly one of these fields must be set.
pub(crate) static ACTION: FieldTable = FieldTable {
    label: "an action",
    fields: &[
        field(
            "remote_address",
            FieldKind::One(&REMOTE_ADDRESS),
            "The client's address, for IPv6 its network. The service configures the trusted proxies.",
        ),
        field("masked_remote_address", FieldKind::One(&MASKED_REMOTE_ADDRESS), "The client's network."),
        field("request_headers", FieldKind::One(&REQUEST_HEADERS), "The value of a header."),
        field("query_parameters", FieldKind::One(&QUERY_PARAMETERS), "The value of a query parameter."),
        field("generic_key", FieldKind::One(&GENERIC_KEY), "A constant value for all requests."),
        field(
            "header_value_match",
            FieldKind::One(&HEADER_VALUE_MATCH),
            "A constant value for requests whose headers match.",
        ),
        field(
            "query_parameter_value_match",
            FieldKind::One(&QUERY_PARAMETER_VALUE_MATCH),
            "A constant value for requests whose query parameters match.",
        ),
        field("method", FieldKind::One(&KEYED), "The request's method; key: method."),
        field("path", FieldKind::One(&KEYED), "The request's path without the query; key: path."),
        field(
            "path_template",
            FieldKind::One(&KEYED),
            "The route that axum or actix-web matched, such as /users/{id}; key: path_template.",
        ),
        field("extension", FieldKind::One(&EXTENSION), "A value that the service provides under this name."),
    ],
    required: &[],
    unsupported: &[
        ("source_cluster", "tidegate does not know Envoy's clusters: use generic_key"),
        ("destination_cluster", "tidegate does not know Envoy's clusters: use generic_key"),
        ("metadata", "tidegate does not read Envoy's metadata: use extension"),
        ("dynamic_metadata", "tidegate does not read Envoy's metadata: use extension"),
    ],
};

const DESCRIPTOR_KEY: Field = field("descriptor_key", FieldKind::Text, "The key of the entry.");
const DESCRIPTOR_VALUE: Field = field("descriptor_value", FieldKind::Text, "The value of the entry.");
const SKIP_IF_ABSENT: Field = field(
    "skip_if_absent",
    FieldKind::Flag,
    "If true and the value is absent, the descriptor omits this entry. If false, there is no descriptor.",
);
const EXPECT_MATCH: Field = field(
    "expect_match",
    FieldKind::Flag,
    "Whether the entry is made for requests that match (default), or for the others.",
);

pub(crate) static REMOTE_ADDRESS: FieldTable =
    FieldTable { label: "a remote_address", fields: &[], required: &[], unsupported: &[] };

pub(crate) static MASKED_REMOTE_ADDRESS: FieldTable = FieldTable {
    label: "a masked_remote_address",
    fields: &[
        field(
            "v4_prefix_mask_len",
            FieldKind::Count(0),
            "The prefix length of an IPv4 network in bits; by default 32.",
        ),
        field(
            "v6_prefix_mask_len",
            FieldKind::Count(0),
            "The prefix length of an IPv6 network in bits; by default as in remote_address.",
        ),
    ],
    required: &[],
    unsupported: &[],
};

pub(crate) static REQUEST_HEADERS: FieldTable = FieldTable {
    label: "a request_headers",
    fields: &[
        field(
            "header_name",
            FieldKind::Text,
            "The name of the header; also `:method`, `:path` or `:authority`.",
        ),
        DESCRIPTOR_KEY,
        SKIP_IF_ABSENT,
    ],
    required: &["header_name", "descriptor_key"],
    unsupported: &[],
};

pub(crate) static QUERY_PARAMETERS: FieldTable = FieldTable {
    label: "a query_parameters",
    fields: &[
        field("query_parameter_name", FieldKind::Text, "The name of the parameter; its first value is used."),
        DESCRIPTOR_KEY,
        SKIP_IF_ABSENT,
    ],
    required: &["query_parameter_name", "descriptor_key"],
    unsupported: &[],
};

pub(crate) static GENERIC_KEY: FieldTable = FieldTable {
    label: "a generic_key",
    fields: &[DESCRIPTOR_VALUE, DESCRIPTOR_KEY],
    required: &["descriptor_value"],
    unsupported: &[("default_value", "`descriptor_value` is the only value: remove it")],
};

pub(crate) static HEADER_VALUE_MATCH: FieldTable = FieldTable {
    label: "a header_value_match",
    fields: &[
        DESCRIPTOR_VALUE,
        DESCRIPTOR_KEY,
        EXPECT_MATCH,
        field("headers", FieldKind::Many(&HEADER), "The conditions, all of which must match."),
    ],
    required: &["descriptor_value", "headers"],
    unsupported: &[],
};

pub(crate) static QUERY_PARAMETER_VALUE_MATCH: FieldTable = FieldTable {
    label: "a query_parameter_value_match",
    fields: &[
        DESCRIPTOR_VALUE,
        DESCRIPTOR_KEY,
        EXPECT_MATCH,
        field(
            "query_parameters",
            FieldKind::Many(&QUERY_PARAMETER),
            "The conditions, all of which must match.",
        ),
    ],
    required: &["descriptor_value", "query_parameters"],
    unsupported: &[],
};

const NAME: Field = field("name", FieldKind::Text, "The name of the header or query parameter.");
const STRING_MATCH: Field = field("string_match", FieldKind::One(&STRING), "The condition on the value.");
const PRESENT_MATCH: Field =
    field("present_match", FieldKind::Flag, "Whether it must be present (default) or absent.");

pub(crate) static HEADER: FieldTable = FieldTable {
    label: "a header to match",
    fields: &[
        NAME,
        STRING_MATCH,
        PRESENT_MATCH,
        field(
            "invert_match",
            FieldKind::Flag,
            "Inverts the condition. A `string_match` never matches an absent header, even if inverted.",
        ),
    ],
    required: &["name"],
    unsupported: &[
        ("exact_match", "Envoy has deprecated it: write `string_match: { exact: … }`"),
        ("prefix_match", "Envoy has deprecated it: write `string_match: { prefix: … }`"),
        ("suffix_match", "Envoy has deprecated it: write `string_match: { suffix: … }`"),
        ("contains_match", "Envoy has deprecated it: write `string_match: { contains: … }`"),
        ("safe_regex_match", "tidegate has no regular expressions: use prefix, suffix or contains"),
        ("range_match", "tidegate has no numeric ranges: use exact"),
        ("treat_missing_header_as_empty", "match an absent header with `present_match: false`"),
    ],
};

pub(crate) static QUERY_PARAMETER: FieldTable = FieldTable {
    label: "a query parameter to match",
    fields: &[NAME, STRING_MATCH, PRESENT_MATCH],
    required: &["name"],
    unsupported: &[],
};

/// Exactly one of the first four fields must be set.
pub(crate) static STRING: FieldTable = FieldTable {
    label: "a string_match",
    fields: &[
        field("exact", FieldKind::Text, "The whole value."),
        field("prefix", FieldKind::Text, "The start of the value."),
        field("suffix", FieldKind::Text, "The end of the value."),
        field("contains", FieldKind::Text, "A part of the value."),
        field("ignore_case", FieldKind::Flag, "Whether the comparison ignores ASCII case."),
    ],
    required: &[],
    unsupported: &[
        ("safe_regex", "tidegate has no regular expressions: use prefix, suffix or contains"),
        ("custom", "tidegate does not load Envoy's extensions: use exact, prefix, suffix or contains"),
    ],
};

pub(crate) static KEYED: FieldTable = FieldTable {
    label: "an action of a request",
    fields: &[DESCRIPTOR_KEY],
    required: &[],
    unsupported: &[],
};

pub(crate) static EXTENSION: FieldTable = FieldTable {
    label: "an extension",
    fields: &[
        field("name", FieldKind::Text, "The name under which the service provides the value."),
        field("descriptor_key", FieldKind::Text, "The key of the entry; by default the name."),
        SKIP_IF_ABSENT,
    ],
    required: &["name"],
    unsupported: &[(
        "typed_config",
        "tidegate does not load Envoy's extensions: the service provides values by name",
    )],
};

/// Exactly one of these fields must be set.
pub(crate) static TIER_OF: FieldTable = FieldTable {
    label: "the tier of a request",
    fields: &[
        field("header_name", FieldKind::Text, "A header that a gateway sets and clients cannot."),
        field("extension", FieldKind::Text, "A value that the service provides under this name."),
    ],
    required: &[],
    unsupported: &[],
};
