//! What may stand in `rate_limits`: how a request becomes descriptors.

use super::{Field, Kind, Table, field};

pub(in crate::rules) static RATE_LIMITS: Table = Table {
    what: "an entry of `rate_limits`",
    fields: &[field(
        "actions",
        Kind::Many(&ACTION),
        "Each makes one entry of a descriptor. Where one makes none, there is no descriptor.",
    )],
    required: &["actions"],
    refused: &[
        ("stage", "there is one layer here, not stages of a filter: leave it out"),
        ("disable_key", "there is no runtime of Envoy's here: take the entry out of the file instead"),
        ("limit", "limits stand in `descriptors` alone"),
        ("hits_addend", "how much a request costs is said by the layer's `cost`, or by the rule's `cost`"),
        ("apply_on_stream_done", "what a response changes is said by the layer's `charge`"),
    ],
};

/// One of these fields is the action.
pub(in crate::rules) static ACTION: Table = Table {
    what: "an action",
    fields: &[
        field(
            "remote_address",
            Kind::One(&REMOTE_ADDRESS),
            "The client's address, IPv6 by its network; the service says which proxies it trusts.",
        ),
        field("masked_remote_address", Kind::One(&MASKED_REMOTE_ADDRESS), "The client's network."),
        field("request_headers", Kind::One(&REQUEST_HEADERS), "The value of a header."),
        field("query_parameters", Kind::One(&QUERY_PARAMETERS), "The value of a query parameter."),
        field("generic_key", Kind::One(&GENERIC_KEY), "The same for all requests."),
        field(
            "header_value_match",
            Kind::One(&HEADER_VALUE_MATCH),
            "A value of yours for requests with such headers.",
        ),
        field(
            "query_parameter_value_match",
            Kind::One(&QUERY_PARAMETER_VALUE_MATCH),
            "A value of yours for requests with such query parameters.",
        ),
        field("method", Kind::One(&KEYED), "The request's method; key: method."),
        field("path", Kind::One(&KEYED), "The request's path without the query; key: path."),
        field(
            "path_template",
            Kind::One(&KEYED),
            "The route that axum matched, such as /users/{id}; key: path_template.",
        ),
        field("extension", Kind::One(&EXTENSION), "What the service provides by this name."),
    ],
    required: &[],
    refused: &[
        ("source_cluster", "there are no clusters of Envoy's here: use generic_key"),
        ("destination_cluster", "there are no clusters of Envoy's here: use generic_key"),
        ("metadata", "there is no metadata of Envoy's here: use extension"),
        ("dynamic_metadata", "there is no metadata of Envoy's here: use extension"),
    ],
};

const DESCRIPTOR_KEY: Field = field("descriptor_key", Kind::Text, "The key of the entry.");
const DESCRIPTOR_VALUE: Field = field("descriptor_value", Kind::Text, "The value of the entry.");
const SKIP_IF_ABSENT: Field = field(
    "skip_if_absent",
    Kind::Flag,
    "Where it is absent, the descriptor is made without this entry; otherwise there is none.",
);
const EXPECT_MATCH: Field = field(
    "expect_match",
    Kind::Flag,
    "Whether the entry is for requests that match (default), or for others.",
);

pub(in crate::rules) static REMOTE_ADDRESS: Table =
    Table { what: "a remote_address", fields: &[], required: &[], refused: &[] };

pub(in crate::rules) static MASKED_REMOTE_ADDRESS: Table = Table {
    what: "a masked_remote_address",
    fields: &[
        field("v4_prefix_mask_len", Kind::Count(0), "Bits of an IPv4 address that count; by default 32."),
        field(
            "v6_prefix_mask_len",
            Kind::Count(0),
            "Bits of an IPv6 address that count; by default as in remote_address.",
        ),
    ],
    required: &[],
    refused: &[],
};

pub(in crate::rules) static REQUEST_HEADERS: Table = Table {
    what: "a request_headers",
    fields: &[
        field("header_name", Kind::Text, "Also `:method`, `:path` and `:authority`."),
        DESCRIPTOR_KEY,
        SKIP_IF_ABSENT,
    ],
    required: &["header_name", "descriptor_key"],
    refused: &[],
};

pub(in crate::rules) static QUERY_PARAMETERS: Table = Table {
    what: "a query_parameters",
    fields: &[
        field("query_parameter_name", Kind::Text, "The first of this name counts."),
        DESCRIPTOR_KEY,
        SKIP_IF_ABSENT,
    ],
    required: &["query_parameter_name", "descriptor_key"],
    refused: &[],
};

pub(in crate::rules) static GENERIC_KEY: Table = Table {
    what: "a generic_key",
    fields: &[DESCRIPTOR_VALUE, DESCRIPTOR_KEY],
    required: &["descriptor_value"],
    refused: &[("default_value", "there is no other value than `descriptor_value`: leave it out")],
};

pub(in crate::rules) static HEADER_VALUE_MATCH: Table = Table {
    what: "a header_value_match",
    fields: &[
        DESCRIPTOR_VALUE,
        DESCRIPTOR_KEY,
        EXPECT_MATCH,
        field("headers", Kind::Many(&HEADER), "All of them have to be met."),
    ],
    required: &["descriptor_value", "headers"],
    refused: &[],
};

pub(in crate::rules) static QUERY_PARAMETER_VALUE_MATCH: Table = Table {
    what: "a query_parameter_value_match",
    fields: &[
        DESCRIPTOR_VALUE,
        DESCRIPTOR_KEY,
        EXPECT_MATCH,
        field("query_parameters", Kind::Many(&QUERY_PARAMETER), "All of them have to be met."),
    ],
    required: &["descriptor_value", "query_parameters"],
    refused: &[],
};

const NAME: Field = field("name", Kind::Text, "Its name.");
const STRING_MATCH: Field = field("string_match", Kind::One(&STRING), "What its value has to be.");
const PRESENT_MATCH: Field =
    field("present_match", Kind::Flag, "Whether it has to be there (default), or must not be.");

pub(in crate::rules) static HEADER: Table = Table {
    what: "a header to match",
    fields: &[
        NAME,
        STRING_MATCH,
        PRESENT_MATCH,
        field("invert_match", Kind::Flag, "Is met where it would not be; one that is absent has no value."),
    ],
    required: &["name"],
    refused: &[
        ("exact_match", "Envoy has given it up: write `string_match: { exact: … }`"),
        ("prefix_match", "Envoy has given it up: write `string_match: { prefix: … }`"),
        ("suffix_match", "Envoy has given it up: write `string_match: { suffix: … }`"),
        ("contains_match", "Envoy has given it up: write `string_match: { contains: … }`"),
        ("safe_regex_match", "there are no regular expressions here: use prefix, suffix or contains"),
        ("range_match", "there are no ranges of numbers here: use exact"),
        ("treat_missing_header_as_empty", "match an absent header by `present_match: false`"),
    ],
};

pub(in crate::rules) static QUERY_PARAMETER: Table = Table {
    what: "a query parameter to match",
    fields: &[NAME, STRING_MATCH, PRESENT_MATCH],
    required: &["name"],
    refused: &[],
};

/// One of the first four is the test.
pub(in crate::rules) static STRING: Table = Table {
    what: "a string_match",
    fields: &[
        field("exact", Kind::Text, "The whole value."),
        field("prefix", Kind::Text, "How it begins."),
        field("suffix", Kind::Text, "How it ends."),
        field("contains", Kind::Text, "What stands in it."),
        field("ignore_case", Kind::Flag, "Whether A is as good as a, in ASCII."),
    ],
    required: &[],
    refused: &[
        ("safe_regex", "there are no regular expressions here: use prefix, suffix or contains"),
        ("custom", "there are no extensions of Envoy's here: use exact, prefix, suffix or contains"),
    ],
};

pub(in crate::rules) static KEYED: Table =
    Table { what: "an action of a request", fields: &[DESCRIPTOR_KEY], required: &[], refused: &[] };

pub(in crate::rules) static EXTENSION: Table = Table {
    what: "an extension",
    fields: &[
        field("name", Kind::Text, "By which the service provides it."),
        field("descriptor_key", Kind::Text, "The key of the entry; by default the name."),
        SKIP_IF_ABSENT,
    ],
    required: &["name"],
    refused: &[(
        "typed_config",
        "there are no extensions of Envoy's here: the service provides values by names",
    )],
};

/// One of these fields says it.
pub(in crate::rules) static TIER_OF: Table = Table {
    what: "the tier of a request",
    fields: &[
        field("header_name", Kind::Text, "A header that no client can write."),
        field("extension", Kind::Text, "What the service provides by this name."),
    ],
    required: &[],
    refused: &[],
};
