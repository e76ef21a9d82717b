//! Writes the fields of drafts that name the limits: a list of policies, and a list of current limits.

use std::fmt::Write as _;

use http::HeaderMap;
use http::header::HeaderName;

use super::spelling::Spelling;
use super::values::{HeaderValues, append, byte_sequence, quoted};

/// Appends the fields, such as `"api";q=100;w=60` and `"api";r=99;t=60`. Of several limits with one name, lists the
/// binding one, or else the one with the fewest remaining units.
pub(super) fn write(headers: &mut HeaderMap, values: &HeaderValues<'_>, spelling: &Spelling) {
    let (mut policies, mut limits) = (String::new(), String::new());
    let decisions = values.decision.each_alone();
    let names: Vec<&str> =
        (0..values.policies.len()).map(|at| values.policies[at].name(&decisions[at])).collect();
    for at in values.reported() {
        let rank = |at: usize| (at != values.decision.binding_index(), decisions[at].remaining(), at);
        if values.reported().any(|other| names[other] == names[at] && rank(other) < rank(at)) {
            continue;
        }
        let comma = if policies.is_empty() { "" } else { ", " };
        let (policy, name) = (&values.policies[at], quoted(names[at]));
        let (limit, remaining) = (decisions[at].limit(), decisions[at].remaining());
        // Writing to a String cannot fail.
        let _ = write!(policies, "{comma}{name};{}={limit}", spelling.quota);
        let _ = write!(limits, "{comma}{name};{}={remaining}", spelling.remaining);
        if let Some(unit) = policy.reported_unit() {
            let _ = write!(policies, ";{}={}", spelling.unit, quoted(unit));
        }
        if let Some(window_s) = policy.window_s {
            let _ = write!(policies, ";{}={window_s}", spelling.window);
            let _ = write!(limits, ";{}={}", spelling.reset, values.reset(at));
        }
        if let Some(partition_key) = &policy.partition_key {
            let parameter = format!(";{}={}", spelling.partition_key, byte_sequence(partition_key));
            policies.push_str(&parameter);
            limits.push_str(&parameter);
        }
    }
    if !policies.is_empty() {
        append(headers, HeaderName::from_static(spelling.policy_field), policies);
        append(headers, HeaderName::from_static(spelling.limit_field), limits);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate::{AllDecision, Limiter, Quota};

    use super::super::spelling::DRAFT_11;
    use super::*;
    use crate::policy::Policy;

    /// The names that pull request 166 of the draft's repository announces: `r` becomes `a`, and `t` becomes `w`. Its
    /// text is not known here, so no draft of this crate sends them.
    const PROPOSED: Spelling = Spelling { remaining: "a", reset: "w", ..DRAFT_11 };

    /// A table in which every name is another one.
    const RENAMED: Spelling = Spelling {
        policy_field: "policies",
        limit_field: "limits",
        quota: "quota",
        unit: "unit",
        window: "window",
        remaining: "left",
        reset: "reset",
        partition_key: "partition",
    };

    /// Returns both fields for a window with a unit and a partition, and for an in-flight limit without.
    async fn written(spelling: &Spelling) -> [String; 2] {
        let limiter = Limiter::in_memory();
        let tokens = limiter.gate("tokens", Quota::fixed_window(100, Duration::from_secs(60)));
        let uploads = limiter.gate("uploads", Quota::in_flight(10));
        let decision = tokens.check_cost("a", 20).await.unwrap();
        let decision = AllDecision::of_each(vec![decision, uploads.peek("a").await.unwrap()]);
        let with_both = Policy {
            unit: Some("tokens".into()),
            partition_key: Some([0; 12]),
            ..Policy::new(&tokens, Some("burst".into()))
        };
        let policies = [with_both, Policy::new(&uploads, None)];
        let mut headers = HeaderMap::new();
        write(&mut headers, &HeaderValues { decision: &decision, policies: &policies, wait: None }, spelling);
        assert_eq!(headers.len(), 2);
        [spelling.policy_field, spelling.limit_field].map(|name| headers[name].to_str().unwrap().to_owned())
    }

    #[tokio::test]
    async fn renamed_draft_is_another_table() {
        let policies = concat!(
            r#""burst";q=100;qu="tokens";w=60;pk=:AAAAAAAAAAAAAAAA:, "#,
            r#""uploads";q=10;qu="concurrent-requests""#
        );
        let limits = r#""burst";r=80;t=60;pk=:AAAAAAAAAAAAAAAA:, "uploads";r=10"#;
        assert_eq!(written(&DRAFT_11).await, [policies, limits]);
        let limits = r#""burst";a=80;w=60;pk=:AAAAAAAAAAAAAAAA:, "uploads";a=10"#;
        assert_eq!(written(&PROPOSED).await, [policies, limits]);
        let policies = concat!(
            r#""burst";quota=100;unit="tokens";window=60;partition=:AAAAAAAAAAAAAAAA:, "#,
            r#""uploads";quota=10;unit="concurrent-requests""#
        );
        let limits = r#""burst";left=80;reset=60;partition=:AAAAAAAAAAAAAAAA:, "uploads";left=10"#;
        assert_eq!(written(&RENAMED).await, [policies, limits]);
    }
}
