//! The fields of a rule file. The JSON Schema is made from these tables. The reader takes the names of fields from them, and
//! reads each value with limits of its own.

mod actions;

use tidegate::algorithm::NAMES;

pub(super) use self::actions::{
    ACTION, EXTENSION, GENERIC_KEY, HEADER, HEADER_VALUE_MATCH, KEYED, MASKED_REMOTE_ADDRESS,
    QUERY_PARAMETER, QUERY_PARAMETER_VALUE_MATCH, QUERY_PARAMETERS, RATE_LIMITS, REMOTE_ADDRESS,
    REQUEST_HEADERS, STRING, TIER_OF,
};

/// Values of `charge`. With `all`, a request charges all its rules or none.
pub(super) const CHARGES: &[&str] = &["all", "each"];

/// Envoy's units.
pub(super) const UNITS: &[&str] = &["second", "minute", "hour", "day", "week", "month", "year"];
/// The length of each unit in [`UNITS`], in seconds.
pub(super) const UNIT_SECONDS: [u64; 7] = [1, 60, 3_600, 86_400, 604_800, 2_592_000, 31_536_000];

/// The names of the algorithms of rates. The first is the default.
pub(super) const ALGORITHMS: &[&str] = &default_first();

/// Leaves `in_flight` out: such a limit has a field of its own.
const fn default_first() -> [&'static str; NAMES.len() - 1] {
    let (mut names, mut from, mut to) = (["fixed_window"; NAMES.len() - 1], 0, 1);
    while from < NAMES.len() {
        if !matches!(NAMES[from].as_bytes(), b"fixed_window" | b"in_flight") {
            names[to] = NAMES[from];
            to += 1;
        }
        from += 1;
    }
    names
}

/// The modes in which several regions share a limit.
pub(super) const REGIONS: &[&str] = &["gossip"];

pub(super) const ON_FAILURES: &[&str] = &["local", "error", "open", "closed"];

pub(super) static DOCUMENT: FieldTable = FieldTable {
    label: "a document",
    fields: &[
        field("domain", FieldKind::Text, "The domain of these rules. A request names its domain."),
        field("descriptors", FieldKind::Many(&DESCRIPTOR), "The rules."),
        field(
            "charge",
            FieldKind::Choice(CHARGES),
            "all (default): a request charges all its rules or none. each: every rule is charged independently, as in Envoy's service.",
        ),
        field(
            "rate_limits",
            FieldKind::Many(&RATE_LIMITS),
            "How an HTTP request maps to descriptors, as in Envoy's routes.",
        ),
        field("tier", FieldKind::One(&TIER_OF), "Where to read the tier of an HTTP request."),
        field("name", FieldKind::Text, "The name of an xDS resource, which is not read."),
    ],
    required: &["domain"],
    unsupported: &[],
};

pub(super) static DESCRIPTOR: FieldTable = FieldTable {
    label: "a descriptor",
    fields: &[
        field("key", FieldKind::Text, "The key of the entry to match."),
        field(
            "value",
            FieldKind::Text,
            "The value to match, in which each `*` matches any characters; any value if absent.",
        ),
        field(
            "networks",
            FieldKind::Texts,
            "Instead of a value: networks and addresses, one of which contains the value, an address.",
        ),
        field(
            "rate_limit",
            FieldKind::OneOrText(&RATE_LIMIT),
            "The limit for descriptors that end at this entry; or as text, such as `100/day` or `10 in flight`.",
        ),
        field("descriptors", FieldKind::Many(&DESCRIPTOR), "The rules for the entries that follow."),
        field("shadow_mode", FieldKind::Flag, "Decides and counts, but never denies."),
        field(
            "charge_used",
            FieldKind::Flag,
            "Charges units that were used already, also above the limit; 0 hits only check.",
        ),
        field("detailed_metric", FieldKind::Flag, "The metric name contains all values of the request."),
        field("value_to_metric", FieldKind::Flag, "The metric name contains the value of this entry."),
        field("share_threshold", FieldKind::Flag, "All values that match the `*` share one count."),
        field(
            "quota_mode",
            FieldKind::Flag,
            "Denies a request only if all rules in quota mode deny it; needs `charge: each`.",
        ),
        field("metadata", FieldKind::Map, "Any values, for the service: Rule::metadata."),
    ],
    required: &["key"],
    unsupported: &[],
};

pub(super) static RATE_LIMIT: FieldTable = FieldTable {
    label: "a rate_limit",
    fields: &[
        field("unit", FieldKind::Choice(UNITS), "The length of the window. A month has 30 days, a year 365."),
        field("unit_multiplier", FieldKind::Count(1), "The number of units in the window."),
        field(
            "requests_per_unit",
            FieldKind::Count(0),
            "The number of units admitted in each window; 0 denies all requests.",
        ),
        field("unlimited", FieldKind::Flag, "Every request passes without a call to Redis."),
        field("name", FieldKind::Text, "The name by which another rule can replace this one."),
        field(
            "replaces",
            FieldKind::Many(&REPLACES),
            "Rules that are neither checked nor charged if this one matches the same request.",
        ),
        field(
            "every",
            FieldKind::Window,
            "Instead of a unit: the length of the window, such as 15m, or a period of the calendar: day, week, month, quarter, year.",
        ),
        field(
            "zone",
            FieldKind::Text,
            "With a period of the calendar: the time zone in which it begins, such as Europe/Berlin; by default UTC.",
        ),
        field(
            "anchor",
            FieldKind::Text,
            "With a period of the calendar: the day on which it begins: 1 to 31 for a month, 1 (Monday) to 7 for a week, 02-29 for a year.",
        ),
        field(
            "algorithm",
            FieldKind::Choice(ALGORITHMS),
            "The algorithm; by default fixed_window, aligned to the wall clock.",
        ),
        field(
            "burst",
            FieldKind::Count(1),
            "The capacity of a token bucket, or the queue length of a leaky bucket; by default requests_per_unit.",
        ),
        field(
            "in_flight",
            FieldKind::Count(0),
            "Instead of a rate: the number of units in flight at the same time; 0 denies all requests.",
        ),
        field("cost", FieldKind::Count(1), "The units that one request costs; by default 1."),
        field("on_failure", FieldKind::Choice(ON_FAILURES), "The failure policy while Redis is unavailable."),
        field(
            "lease",
            FieldKind::One(&LEASE),
            "Takes units in blocks and spends them without a call to Redis.",
        ),
        field("tiers", FieldKind::Named(&TIER), "Other numbers for requests of a tier."),
        field("ban", FieldKind::One(&BAN), "Blocks a key after too many denials."),
        field(
            "regions",
            FieldKind::Choice(REGIONS),
            "Several regions share the limit: gossip, with debt. Each decides on its own Redis.",
        ),
        field(
            "candidate",
            FieldKind::One(&CANDIDATE),
            "A stricter limit to try: it decides and counts beside this one, and denies nothing.",
        ),
    ],
    required: &[],
    unsupported: &[(
        "fair",
        "processes that wait do not queue; remove it. Within one process, callers are admitted in order of arrival",
    )],
};

pub(super) static REPLACES: FieldTable = FieldTable {
    label: "a replaced rule",
    fields: &[field("name", FieldKind::Text, "The `name` of its rate_limit.")],
    required: &["name"],
    unsupported: &[],
};

pub(super) static LEASE: FieldTable = FieldTable {
    label: "a lease",
    fields: &[
        field("max_units", FieldKind::Count(1), "The maximum units of one key that are held at once."),
        field("hold", FieldKind::Duration, "The maximum time that a unit is held; by default 1s."),
    ],
    required: &[],
    unsupported: &[],
};

pub(super) static BAN: FieldTable = FieldTable {
    label: "a ban",
    fields: &[
        field("after", FieldKind::Count(1), "The number of denials that block the key."),
        field(
            "within",
            FieldKind::Duration,
            "The period in which they are counted, which begins with the first one.",
        ),
        field("for", FieldKind::Duration, "How long the block lasts."),
    ],
    required: &["after", "within", "for"],
    unsupported: &[("lasts", "write `for`")],
};

pub(super) static TIER: FieldTable = FieldTable {
    label: "a tier",
    fields: &[
        field(
            "requests_per_unit",
            FieldKind::Count(0),
            "Replaces requests_per_unit of the rate_limit; 0 denies all requests.",
        ),
        field("burst", FieldKind::Count(1), "Replaces burst of the rate_limit."),
        field(
            "in_flight",
            FieldKind::Count(0),
            "Replaces in_flight of the rate_limit; 0 denies all requests.",
        ),
        field("unlimited", FieldKind::Flag, "Every request of this tier passes."),
    ],
    required: &[],
    unsupported: &[],
};

pub(super) static CANDIDATE: FieldTable = FieldTable {
    label: "a candidate",
    fields: &[
        field("requests_per_unit", FieldKind::Count(1), "Replaces requests_per_unit of the rate_limit."),
        field("burst", FieldKind::Count(1), "Replaces burst of the rate_limit."),
        field("in_flight", FieldKind::Count(1), "Replaces in_flight of the rate_limit."),
    ],
    required: &[],
    unsupported: &[],
};

/// All tables, the table of a document first. The reader uses them to suggest where a misplaced field
/// belongs.
pub(super) static TABLES: [&FieldTable; 23] = [
    &DOCUMENT,
    &DESCRIPTOR,
    &RATE_LIMIT,
    &REPLACES,
    &LEASE,
    &BAN,
    &TIER,
    &CANDIDATE,
    &RATE_LIMITS,
    &ACTION,
    &REMOTE_ADDRESS,
    &MASKED_REMOTE_ADDRESS,
    &REQUEST_HEADERS,
    &QUERY_PARAMETERS,
    &GENERIC_KEY,
    &HEADER_VALUE_MATCH,
    &QUERY_PARAMETER_VALUE_MATCH,
    &HEADER,
    &QUERY_PARAMETER,
    &STRING,
    &KEYED,
    &EXTENSION,
    &TIER_OF,
];

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
    /// The fields of this table, or a text.
    OneOrText(&'static FieldTable),
    Many(&'static FieldTable),
    /// A map from names that the operator chooses.
    Named(&'static FieldTable),
}

pub(super) const fn field(name: &'static str, kind: FieldKind, help: &'static str) -> Field {
    Field { name, kind, help }
}
