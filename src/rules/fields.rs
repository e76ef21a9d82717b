//! What may stand in a file. The reader and the schema know fields from here
//! alone.

mod actions;

pub(super) use self::actions::{
    ACTION, EXTENSION, GENERIC_KEY, HEADER, HEADER_VALUE_MATCH, KEYED, MASKED_REMOTE_ADDRESS,
    QUERY_PARAMETER, QUERY_PARAMETER_VALUE_MATCH, QUERY_PARAMETERS, RATE_LIMITS, REMOTE_ADDRESS,
    REQUEST_HEADERS, STRING, TIER_OF,
};

/// What a map may hold.
pub(super) struct Table {
    /// What it is called in messages.
    pub(super) what: &'static str,
    pub(super) fields: &'static [Field],
    /// Those of them that have to be there.
    pub(super) required: &'static [&'static str],
    /// Fields of Envoy's that are not honoured, with the reason.
    pub(super) refused: &'static [(&'static str, &'static str)],
}

pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
}

pub(super) enum Kind {
    Text,
    Flag,
    /// A whole number, at least so much.
    Count(u64),
    /// Such as `15m`.
    Duration,
    Choice(&'static [&'static str]),
    One(&'static Table),
    Many(&'static Table),
    /// By names that the user gives.
    Named(&'static Table),
}

const fn field(name: &'static str, kind: Kind, help: &'static str) -> Field {
    Field { name, kind, help }
}

/// With `all` the whole request is charged or nothing is.
pub(super) const CHARGES: &[&str] = &["all", "each"];

/// Units as Envoy's, in seconds.
pub(super) const UNITS: &[&str] = &["second", "minute", "hour", "day", "week", "month", "year"];
pub(super) const UNIT_SECONDS: [u64; 7] = [1, 60, 3_600, 86_400, 604_800, 2_592_000, 31_536_000];

pub(super) const ALGORITHMS: &[&str] =
    &["fixed_window", "token_bucket", "leaky_bucket", "sliding_log", "sliding_counter"];

pub(super) const ON_FAILURES: &[&str] = &["local", "error", "open", "closed"];

pub(super) static DOCUMENT: Table = Table {
    what: "a document",
    fields: &[
        field("domain", Kind::Text, "Whose rules these are. A request names it."),
        field("descriptors", Kind::Many(&DESCRIPTOR), "The rules."),
        field(
            "charge",
            Kind::Choice(CHARGES),
            "Whether all rules of a request are charged or none (all, the default), or each by itself, as Envoy's service does.",
        ),
        field(
            "rate_limits",
            Kind::Many(&RATE_LIMITS),
            "How an HTTP request becomes descriptors, as in a route of Envoy's.",
        ),
        field("tier", Kind::One(&TIER_OF), "Where the tier of an HTTP request stands."),
    ],
    required: &["domain"],
    refused: &[("name", "it names a resource of Envoy's xDS, which is not read here: leave it out")],
};

pub(super) static DESCRIPTOR: Table = Table {
    what: "a descriptor",
    fields: &[
        field("key", Kind::Text, "The key of an entry that is met here."),
        field("value", Kind::Text, "Its value; with `*` at the end, what begins so; without it, any value."),
        field("rate_limit", Kind::One(&RATE_LIMIT), "The limit of what ends here."),
        field("descriptors", Kind::Many(&DESCRIPTOR), "The rules for what follows."),
        field("shadow_mode", Kind::Flag, "Decides and counts, and never denies."),
        field("detailed_metric", Kind::Flag, "The metric's name holds all values of the request."),
        field("value_to_metric", Kind::Flag, "The metric's name holds the value of this entry."),
        field("share_threshold", Kind::Flag, "All values that a `*` stands for share one count."),
    ],
    required: &["key"],
    refused: &[(
        "quota_mode",
        "it fills metadata for Envoy's filter, of which there is none here: use shadow_mode, or leave it out",
    )],
};

pub(super) static RATE_LIMIT: Table = Table {
    what: "a rate_limit",
    fields: &[
        field("unit", Kind::Choice(UNITS), "The length of the window. A month has 30 days, a year 365."),
        field("unit_multiplier", Kind::Count(1), "So many units make the window."),
        field(
            "requests_per_unit",
            Kind::Count(0),
            "The units that are admitted in each window; 0 denies all.",
        ),
        field("unlimited", Kind::Flag, "Everything passes, and Redis is not asked."),
        field("name", Kind::Text, "By which another rule can replace it."),
        field("replaces", Kind::Many(&REPLACES), "Rules that do not count where this one is met too."),
        field("every", Kind::Duration, "The length of the window, such as 15m, instead of a unit."),
        field("algorithm", Kind::Choice(ALGORITHMS), "By default fixed_window, by the wall clock."),
        field(
            "burst",
            Kind::Count(1),
            "The capacity of a token bucket, or the queue of a leaky one; by default requests_per_unit.",
        ),
        field("cost", Kind::Count(1), "The units that one request costs; by default 1."),
        field("on_failure", Kind::Choice(ON_FAILURES), "What a request gets when Redis does not answer."),
        field("lease", Kind::One(&LEASE), "Takes units in blocks and spends them without asking."),
        field("tiers", Kind::Named(&TIER), "Other numbers for requests of a tier."),
    ],
    required: &[],
    refused: &[],
};

pub(super) static REPLACES: Table = Table {
    what: "a replaced rule",
    fields: &[field("name", Kind::Text, "The `name` of its rate_limit.")],
    required: &["name"],
    refused: &[],
};

pub(super) static LEASE: Table = Table {
    what: "a lease",
    fields: &[
        field("max_units", Kind::Count(1), "The most units of one key that are held at once."),
        field("hold", Kind::Duration, "The longest that a unit is held; by default 1s."),
    ],
    required: &[],
    refused: &[],
};

pub(super) static TIER: Table = Table {
    what: "a tier",
    fields: &[
        field("requests_per_unit", Kind::Count(0), "Instead of that of the rate_limit; 0 denies all."),
        field("burst", Kind::Count(1), "Instead of that of the rate_limit."),
        field("unlimited", Kind::Flag, "Everything of this tier passes."),
    ],
    required: &[],
    refused: &[],
};

/// All of them, to say where a field belongs that stands in the wrong one; that of a document first.
pub(super) static TABLES: [&Table; 21] = [
    &DOCUMENT,
    &DESCRIPTOR,
    &RATE_LIMIT,
    &REPLACES,
    &LEASE,
    &TIER,
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

/// The one of them that was meant, if one is like it.
pub(super) fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let near = known.into_iter().map(|name| (strsim::damerau_levenshtein(&word, name), name));
    let (distance, name) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + name.len() / 4).then_some(name)
}
