//! The metrics: every name with its labels, its unit and its description. No other code of this crate
//! contains the names. A test checks the dashboard, the alerts and the documents against them.

pub use metrics::Unit;

/// A metric: its name and properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// The name passed to the recorder, such as `tidegate_decisions_total`.
    pub name: &'static str,
    /// The unit of its values.
    pub unit: Unit,
    /// Counter, gauge or histogram.
    pub kind: MetricKind,
    /// The names of its labels. No label holds a key.
    pub labels: &'static [&'static str],
    /// The description passed to the recorder.
    pub description: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only increases.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// A distribution of values.
    Histogram,
}

/// Upper bucket bounds for histograms in [`Unit::Seconds`]: from 0.1 ms, the reply time of a nearby Redis, to
/// beyond the default deadline of 0.1 s.
pub const SECONDS: [f64; 12] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];

/// Upper bucket bounds for histograms in [`Unit::Count`]: checks per call.
pub const CHECKS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 512.0, 4_096.0];

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal in $unit:ident by $labels:tt, $description:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $description)]
            pub const $constant: Metric = Metric {
                name: $name,
                unit: Unit::$unit,
                kind: MetricKind::$kind,
                labels: &$labels,
                description: $description,
            };
        )*

        /// All metrics.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    DECISIONS: Counter "tidegate_decisions_total" in Count by ["gate", "outcome", "source"],
        "Checks that were decided.";
    GRANT_UNITS: Counter "tidegate_grant_units_total" in Count by ["gate", "outcome"],
        "Units that partial grants were asked for, granted or denied.";
    DEBT_CAPPED: Counter "tidegate_debt_capped_units_total" in Count by ["gate"],
        "Units used that were not charged, because the debt of their key had reached its cap.";
    BANS: Counter "tidegate_bans_total" in Count by ["gate"],
        "Bans begun.";
    NEAR_LIMIT: Counter "tidegate_near_limit_total" in Count by ["gate"],
        "Checks that the store admitted with less than a fifth of the limit left.";
    WAIT: Histogram "tidegate_wait_seconds" in Seconds by [],
        "Time that callers waited for the store, in the queue and in flight; one wait in eight is sampled.";
    CALL: Histogram "tidegate_call_seconds" in Seconds by [],
        "Duration of calls to the store.";
    CALL_CHECKS: Histogram "tidegate_call_checks" in Count by [],
        "Checks per call to the store.";
    CALL_GROUPS: Counter "tidegate_call_groups_total" in Count by [],
        "Requests sent to the store after coalescing. Low relative to checks means hot keys.";
    ERRORS: Counter "tidegate_errors_total" in Count by ["kind"],
        "Checks and charges that the store did not answer, or rejected.";
    WARNINGS: Counter "tidegate_warnings_total" in Count by ["code"],
        "Mistakes in the setup of the process, by their code.";
    BREAKER_OPEN: Gauge "tidegate_breaker_open" in Count by [],
        "Open circuit breakers: 1 while checks are not sent to Redis.";
    BREAKER_OPENED: Counter "tidegate_breaker_opened_total" in Count by [],
        "Times that a circuit breaker opened.";
    LEASE_UNITS: Counter "tidegate_lease_units_total" in Count by ["gate", "fate"],
        "Units that leases took, spent, returned or stranded.";
    LEASE_HELD: Gauge "tidegate_lease_units_held" in Count by ["gate"],
        "Units that leases hold: taken, and not yet reported as spent, returned or stranded.";
    SETTLEMENTS: Counter "tidegate_settlements_total" in Count by ["gate", "result"],
        "Checks of reservations that were settled, by what was found.";
    PERMITS_HELD: Gauge "tidegate_permits_held" in Count by ["gate"],
        "Units of permits that this process holds.";
    PERMITS_WAITING: Gauge "tidegate_permits_waiting" in Count by ["gate"],
        "Acquires that wait for their permit.";
    PERMITS_LAPSED: Counter "tidegate_permits_lapsed_total" in Count by ["gate"],
        "Units of permits that the store counted no more, since the lease of this process had ended.";
    PERMITS_RESTORED: Counter "tidegate_permits_restored_total" in Count by ["gate"],
        "Units of permits that the store counts again after a lapse.";
    ADAPTIVE_LIMIT: Gauge "tidegate_adaptive_limit" in Count by ["gate"],
        "The adaptive in-flight limit that this process has learned last; of a gate with several keys, of any.";
    INSTANCES: Gauge "tidegate_instances" in Count by [],
        "Processes that share the quotas, by the latest count of this process.";
    OVERRIDES: Gauge "tidegate_overrides" in Count by ["kind"],
        "Active overrides by operators: switched gates, and keys with another quota.";
    CUT_OFF: Gauge "tidegate_replication_cut_off" in Count by ["peer"],
        "1 while a region is cut off: not heard of for longer than `cut_off_after`, otherwise 0.";
    HEARD: Gauge "tidegate_replication_heard_seconds" in Seconds by ["peer"],
        "Time since a region was heard of: this region knew all that it had sent.";
    STALENESS: Gauge "tidegate_replication_staleness_seconds" in Seconds by ["peer"],
        "Age of the oldest change in the last read of a region that had any.";
    LAG: Gauge "tidegate_replication_lag_seconds" in Seconds by ["peer"],
        "How far the last read stayed behind the end of a region's stream, 0 if it reached the end.";
    OUTBOX_KEYS: Gauge "tidegate_replication_outbox_keys" in Count by [],
        "Changes that the last flush left in the outbox, or found there if it failed.";
    CHANGES: Counter "tidegate_replication_changes_total" in Count by ["peer", "fate"],
        "Changes of a region that this process read, by their fate.";
    FENCED: Counter "tidegate_replication_fenced_total" in Count by ["peer"],
        "Reads of a region without effect: another process was faster, or the read was too old.";
    GAP: Counter "tidegate_replication_gap_total" in Count by ["peer"],
        "Times that entries of a region were trimmed before this region read them.";
    REWOUND: Counter "tidegate_replication_rewound_total" in Count by ["peer"],
        "Times that a region had lost its stream, or the end of it.";
    RULES: Gauge "tidegate_rules" in Count by [],
        "Active rules.";
    RULES_LOADED: Gauge "tidegate_rules_loaded_timestamp_seconds" in Seconds by [],
        "Unix time at which the active rules were loaded.";
    RELOADS: Counter "tidegate_rules_reloads_total" in Count by ["result"],
        "Reloads of the rules files, by result.";
    RELOAD_GOOD: Gauge "tidegate_rules_last_reload_good" in Count by [],
        "0 while the files contain an error and the previous rules stay active, otherwise 1.";
}
