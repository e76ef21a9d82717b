//! Writes the fields of drafts that name the limits: a list of policies, and a list of current limits.

use smallvec::SmallVec;

use super::Spelling;
use super::header_values::{Fields, HeaderValues, byte_sequence};
use crate::policy::Policy;

/// Appends the fields, such as `"api";q=100;w=60` and `"api";r=99;t=60`. Of several limits with one name, lists the
/// one that binds.
pub(super) fn write(values: &HeaderValues<'_>, spelling: &Spelling, fields: &mut Fields) {
    let listed = listed(values);
    if listed.is_empty() {
        return;
    }
    let decisions = values.decision.each_alone();
    let comma = |index: usize| if index == 0 { "" } else { ", " };
    for (index, &(at, name)) in listed.iter().enumerate() {
        let policy = &values.policies[at];
        fields.push(comma(index)).push_quoted(name);
        fields.push(spelling.quota).push_number(decisions[at].limit());
        if let Some(unit) = policy.reported_unit() {
            fields.push(spelling.unit).push_quoted(unit);
        }
        if let Some(window_s) = policy.window_s {
            fields.push(spelling.window).push_number(window_s);
        }
        write_partition(policy, spelling, fields);
    }
    fields.end_list(spelling.policy_field.clone());
    for (index, &(at, name)) in listed.iter().enumerate() {
        let policy = &values.policies[at];
        fields.push(comma(index)).push_quoted(name);
        fields.push(spelling.remaining).push_number(decisions[at].remaining());
        if policy.window_s.is_some() {
            fields.push(spelling.reset).push_number(values.reset(at));
        }
        write_partition(policy, spelling, fields);
    }
    fields.end_list(spelling.limit_field.clone());
}

/// Returns the indices and names of the limits to list, in their order.
fn listed<'a>(values: &HeaderValues<'a>) -> SmallVec<[(usize, &'a str); 2]> {
    let mut listed = SmallVec::<[(usize, &str); 2]>::new();
    for at in values.reported() {
        let name = values.policies[at].name(&values.decision.each_alone()[at]);
        match listed.iter().position(|&(_, other)| other == name) {
            Some(index) if values.tighter(listed[index].0, at) != at => {}
            found => {
                found.map(|index| listed.remove(index));
                listed.push((at, name));
            }
        }
    }
    listed
}

fn write_partition(policy: &Policy, spelling: &Spelling, fields: &mut Fields) {
    if let Some(partition_key) = &policy.partition_key {
        fields.push(spelling.partition_key).push(&byte_sequence(partition_key));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderMap;
    use http::header::HeaderName;
    use tidegate::{AllDecision, Limiter, Quota};

    use super::*;
    use crate::headers::DRAFT_11;

    /// The names that pull request 166 of the draft's repository announces: `r` becomes `a`, and `t` becomes `w`. Its
    /// text is not known here, so no draft of this crate sends them.
    fn proposed() -> Spelling {
        Spelling { remaining: ";a=", reset: ";w=", ..DRAFT_11 }
    }

    /// A table in which every name is another one.
    const RENAMED: Spelling = Spelling {
        policy_field: HeaderName::from_static("policies"),
        limit_field: HeaderName::from_static("limits"),
        quota: ";quota=",
        unit: ";unit=",
        window: ";window=",
        remaining: ";left=",
        reset: ";reset=",
        partition_key: ";partition=",
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
        let mut fields = Fields::default();
        write(&values, spelling, &mut fields);
        fields.write(&mut headers);
        assert_eq!(headers.len(), 2);
        [&spelling.policy_field, &spelling.limit_field].map(|name| headers[name].to_str().unwrap().to_owned())
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
        assert_eq!(written(&proposed()).await, [policies, limits]);
        let policies = concat!(
            r#""burst";quota=100;unit="tokens";window=60;partition=:AAAAAAAAAAAAAAAA:, "#,
            r#""uploads";quota=10;unit="concurrent-requests""#
        );
        let limits = r#""burst";left=80;reset=60;partition=:AAAAAAAAAAAAAAAA:, "uploads";left=10"#;
        assert_eq!(written(&RENAMED).await, [policies, limits]);
    }
}
