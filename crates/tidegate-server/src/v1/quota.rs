//! Quotas in requests, in the notation of rule files.

use serde_json::json;
use tidegate::Quota;
use tidegate_rules::{Limit, Rules};

use super::problem::Problem;
use super::request::QuotaSpec;

impl QuotaSpec {
    /// Returns the quota. It is read by the loader of rule files, so that the fields have the same meaning in both.
    pub(super) fn quota(&self, gate: &str) -> Result<Quota, Problem> {
        let rule = json!({ "domain": "quota", "descriptors": [{ "key": "quota", "rate_limit": self }] });
        // JSON is YAML.
        let rules = Rules::parse("quota", &rule.to_string()).map_err(|errors| {
            let errors: Vec<&str> = errors.iter().map(|error| error.message()).collect();
            Problem::invalid(format!("the `quota` of gate `{gate}`: {}", errors.join("; ")))
        })?;
        match rules.iter().next().map(|rule| rule.limit(None)) {
            Some(Limit::Quota(quota)) => Ok(quota),
            _ => Err(Problem::invalid(format!(
                "the `quota` of gate `{gate}` admits nothing: give at least 1 unit"
            ))),
        }
    }
}
