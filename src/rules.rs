//! Limits from files, in the YAML of Lyft's and Envoy's ratelimit.
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
//! let ruling = limits.check("auth", &login).await?;
//! assert!(!ruling.is_allowed());
//! assert_eq!(ruling.binding().and_then(|verdict| verdict.rule()).unwrap().path(), "auth.auth_type_login.user");
//! # Ok(()) }
//! ```
#![doc = include_str!("rules/format.md")]

mod compile;
mod descriptor;
mod explain;
mod fields;
mod glance;
mod limit;
mod load;
#[cfg_attr(not(feature = "tower"), allow(dead_code, reason = "what is read is used by `http` alone"))]
mod mapping;
mod mistake;
mod reader;
mod rule;
mod ruled;
mod ruling;
mod schema;
mod source;
mod tree;
mod watched;
mod yaml;

pub use self::descriptor::Descriptor;
pub use self::explain::{Explanation, Met};
pub use self::load::{Loader, Rules};
#[cfg(feature = "tower")]
pub(crate) use self::mapping::{Action, Condition, Mapping, Match, Source};
pub use self::mistake::{Mistake, Mistakes};
pub use self::rule::Rule;
#[cfg(feature = "tower")]
pub(crate) use self::ruled::Plan;
pub use self::ruled::RuledLimiter;
pub use self::ruling::{Outcome, Ruling, Verdict};
pub use self::schema::schema;
#[cfg(feature = "tower")]
pub(crate) use self::watched::Need;
pub use self::watched::Watched;
