#![cfg_attr(docsrs, feature(doc_cfg))]
// The first definition of a label applies: here, links of the README lead to items.
//! [tidegate]: tidegate
//! [rules.md]: crate::guide::rules
//! [format.md]: crate#file-format
#![doc = include_str!("../README.md")]
//! # Guide
//!
//! The module [`guide`] holds the page of the guide.
#![doc = include_str!("format.md")]

mod calendar;
mod compile;
mod config_error;
mod decision;
mod descriptor;
mod explain;
mod fields;
mod files;
mod limit;
mod limit_reader;
mod limit_shape;
mod limiter;
mod load;
pub mod mapping;
mod mapping_reader;
mod metadata;
mod network_reader;
mod networks;
mod reader;
mod regex_like;
mod regions;
mod reloading;
mod rule;
mod rule_gate;
mod schema;
mod timed_reader;
mod tree;
mod unmatched;
mod wildcard;
mod yaml;

pub use self::config_error::{ConfigError, ConfigErrors, similar_name};
pub use self::decision::{RuleOutcome, RuleResult, RulesDecision};
pub use self::descriptor::Descriptor;
pub use self::explain::{Explanation, MatchedEntry};
pub use self::limit::Limit;
pub use self::limiter::{ChargedDenials, Mode, Plan, PlannedCheck, RulesGrant, RulesLimiter};
pub use self::load::{Loader, Rules};
pub use self::reloading::{Need, Reload, ReloadingRules};
pub use self::rule::Rule;
pub use self::rule_gate::RuleGate;
pub use self::schema::schema;

/// The guide: limits from files. [`tidegate::guide`] has the pages about the limiter.
///
/// The module holds no items. Its documentation is a page of `docs/guide`, so the example there is tested.
pub mod guide {
    // `src/guide.rs` of `tidegate` explains the labels.

    /// [cli.md]: tidegate::guide#other-pages
    #[doc = include_str!("../docs/rules.md")]
    pub mod rules {}
}
