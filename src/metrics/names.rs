//! What is counted: every name, with its labels, its unit and what it says. Nothing else in this
//! crate spells them; the dashboard, the alerts and the documents are held to them by a test.

pub use metrics::Unit;

/// A metric by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// As the recorder is told it, such as `tidegate_decisions_total`.
    pub name: &'static str,
    /// What it counts in.
    pub unit: Unit,
    /// What kind of metric it is.
    pub kind: Kind,
    /// By what it is told apart. Never by a key.
    pub labels: &'static [&'static str],
    /// One sentence, as it is given to the recorder.
    pub description: &'static str,
}

/// What kind of metric it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only ever grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How values are spread.
    Histogram,
}

/// Upper bounds for histograms in [`Unit::Seconds`]: from a tenth of a millisecond, as Redis next door
/// answers, past the default deadline of 0.1 s.
pub const SECONDS: [f64; 12] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];

/// Upper bounds for histograms in [`Unit::Count`]: asks of one call.
pub const ASKS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 512.0, 4_096.0];

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal in $unit:ident by $labels:tt, $description:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $description)]
            pub const $constant: Metric = Metric {
                name: $name,
                unit: Unit::$unit,
                kind: Kind::$kind,
                labels: &$labels,
                description: $description,
            };
        )*

        /// All of them.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    DECISIONS: Counter "tidegate_decisions_total" in Count by ["gate", "outcome", "source"],
        "Asks that were decided.";
    NEAR_LIMIT: Counter "tidegate_near_limit_total" in Count by ["gate"],
        "Asks that the store admitted, with less than a fifth of the limit left after them.";
    WAIT: Histogram "tidegate_wait_seconds" in Seconds by [],
        "How long callers waited for the store, in line and for its answer; one in eight is looked at.";
    CALL: Histogram "tidegate_call_seconds" in Seconds by [],
        "How long calls to the store took.";
    CALL_ASKS: Histogram "tidegate_call_asks" in Count by [],
        "How many asks went to the store in one call.";
    CALL_GROUPS: Counter "tidegate_call_groups_total" in Count by [],
        "What the store was asked after equal asks were merged; few beside the asks mean hot keys.";
    ERRORS: Counter "tidegate_errors_total" in Count by ["kind"],
        "Asks and charges that the store did not answer, or refused.";
    BREAKER_OPEN: Gauge "tidegate_breaker_open" in Count by [],
        "Circuit breakers that are open: 1 while Redis is not asked.";
    BREAKER_OPENED: Counter "tidegate_breaker_opened_total" in Count by [],
        "How often a circuit breaker opened.";
    LEASE_UNITS: Counter "tidegate_lease_units_total" in Count by ["gate", "fate"],
        "Units that leases took, and what became of them.";
    LEASE_HELD: Gauge "tidegate_lease_units_held" in Count by ["gate"],
        "Units that leases hold: taken, and not known to be spent, returned or stranded.";
    INSTANCES: Gauge "tidegate_instances" in Count by [],
        "Processes that share the quotas, as this one counted them last.";
    ORDERS: Gauge "tidegate_orders" in Count by ["kind"],
        "Orders of operators in force: gates that are switched, keys with another quota.";
    RULES: Gauge "tidegate_rules" in Count by [],
        "Rules in force.";
    RULES_LOADED: Gauge "tidegate_rules_loaded_timestamp_seconds" in Seconds by [],
        "When the rules in force were loaded, since 1970.";
    RELOADS: Counter "tidegate_rules_reloads_total" in Count by ["result"],
        "How often files of rules were read anew.";
    RELOAD_GOOD: Gauge "tidegate_rules_last_reload_good" in Count by [],
        "0 where the files hold a mistake and older rules are in force, else 1.";
}
