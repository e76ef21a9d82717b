//! Limits read from files, in the YAML format of Lyft's and Envoy's ratelimit service.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
//! use tidegate::Limiter;
//! use tidegate::rules::{Descriptor, Rules};
//!
//! let rules = Rules::parse(
//!     "auth.yaml", // Rules::load("/etc/tidegate/rules") reads a file or a folder
//!     "
//! domain: auth
//! descriptors:
//!   - key: auth_type
//!     value: login
//!     descriptors:
//!       - key: user
//!         rate_limit: { unit: minute, requests_per_unit: 2 }
//! ",
//! )?;
//! let limits = rules.bind(&Limiter::in_memory());
//!
//! let login = [Descriptor::from([("auth_type", "login"), ("user", "ada")])];
//! assert!(limits.check("auth", &login).await?.is_allowed());
//! assert!(limits.check("auth", &login).await?.is_allowed());
//! let decision = limits.check("auth", &login).await?;
//! assert!(!decision.is_allowed());
//! let rule = decision.binding().and_then(|outcome| outcome.rule()).unwrap();
//! assert_eq!(rule.path(), "auth.auth_type_login.user");
//! # Ok(()) }
//! ```
#![doc = include_str!("rules/format.md")]

mod compile;
mod config_error;
mod decision;
mod descriptor;
mod explain;
mod fields;
mod file_stamps;
mod limit;
mod load;
#[cfg_attr(not(feature = "tower"), allow(dead_code, reason = "only `http` uses the mapping"))]
mod mapping;
mod reader;
mod reloading;
mod rule;
mod ruled;
mod schema;
mod source;
mod tree;
mod yaml;

pub use self::config_error::{ConfigError, ConfigErrors};
pub use self::decision::{Outcome, RuleOutcome, RulesDecision};
pub use self::descriptor::Descriptor;
pub use self::explain::{Explanation, Met};
pub use self::load::{Loader, Rules};
#[cfg(feature = "tower")]
pub(crate) use self::mapping::{Action, Condition, Mapping, Match, Source};
#[cfg(feature = "tower")]
pub(crate) use self::reloading::Need;
pub use self::reloading::ReloadingRules;
pub use self::rule::Rule;
#[cfg(feature = "tower")]
pub(crate) use self::ruled::Plan;
pub use self::ruled::RulesLimiter;
pub use self::schema::schema;
