//! Writes the fields of drafts that name the limits: a list of policies, and a list of current limits.

use std::fmt::Write as _;

use http::HeaderMap;
use http::header::HeaderName;

use super::Spelling;
use super::header_values::{HeaderValues, Quoted, ValueText, byte_sequence};
use crate::policy::Policy;

/// Appends the fields, such as `"api";q=100;w=60` and `"api";r=99;t=60`. Of several limits with one name, lists the
/// one that binds.
pub(super) fn write(
    headers: &mut HeaderMap,
    values: &HeaderValues<'_>,
    spelling: &Spelling,
    text: &mut ValueText,
) {
    let decisions = values.decision.each_alone();
    let name = |at: usize| values.policies[at].name(&decisions[at]);
    let is_listed = |at: &usize| {
        let named = values.reported().filter(|other| name(*other) == name(*at));
        named.reduce(|a, b| values.tighter(a, b)) == Some(*at)
    };
    let listed = || values.reported().filter(is_listed).enumerate();
    let comma = |index: usize| if index == 0 { "" } else { ", " };
    // Writing a text cannot fail.
    for (index, at) in listed() {
        let policy = &values.policies[at];
        let (name, limit) = (Quoted(name(at)), decisions[at].limit());
        let _ = write!(text, "{}{name};{}={limit}", comma(index), spelling.quota);
        if let Some(unit) = policy.reported_unit() {
            let _ = write!(text, ";{}={}", spelling.unit, Quoted(unit));
        }
        if let Some(window_s) = policy.window_s {
            let _ = write!(text, ";{}={window_s}", spelling.window);
        }
        write_partition(policy, spelling, text);
    }
    if listed().next().is_none() {
        return;
    }
    text.append_to(headers, HeaderName::from_static(spelling.policy_field));
    for (index, at) in listed() {
        let policy = &values.policies[at];
        let (name, remaining) = (Quoted(name(at)), decisions[at].remaining());
        let _ = write!(text, "{}{name};{}={remaining}", comma(index), spelling.remaining);
        if policy.window_s.is_some() {
            let _ = write!(text, ";{}={}", spelling.reset, values.reset(at));
        }
        write_partition(policy, spelling, text);
    }
    text.append_to(headers, HeaderName::from_static(spelling.limit_field));
}

fn write_partition(policy: &Policy, spelling: &Spelling, text: &mut ValueText) {
    if let Some(partition_key) = &policy.partition_key {
        let _ = write!(text, ";{}={}", spelling.partition_key, byte_sequence(partition_key));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate::{AllDecision, Limiter, Quota};

    use super::*;
    use crate::headers::DRAFT_11;

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
        let values = HeaderValues { decision: &decision, policies: &policies, wait: None };
        write(&mut headers, &values, spelling, &mut ValueText::of_limits(2));
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
