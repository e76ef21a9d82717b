//! Rules whose windows are those of a calendar.

use tidegate_rules::Rules;

fn load(rate_limit: &str) -> Result<Rules, String> {
    let text = format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{ {rate_limit} }}\n");
    Rules::parse("d.yaml", &text).map_err(|errors| errors.to_string())
}

#[cfg(feature = "calendar")]
mod with_the_feature {
    use std::time::Duration;

    use tidegate::Quota;
    use tidegate::quota::Calendar;
    use tidegate_rules::{Descriptor, Limit};

    use super::load;
    use crate::support::world::World;

    fn quota(rate_limit: &str) -> String {
        load(rate_limit).unwrap().iter().next().unwrap().quota().unwrap().to_string()
    }

    #[test]
    fn rule_has_the_calendar_of_its_fields() {
        for (rate_limit, expected) in [
            ("every: month, requests_per_unit: 5", "month in UTC"),
            ("every: Day, requests_per_unit: 5, zone: Europe/Berlin", "day in Europe/Berlin"),
            (
                "every: month, zone: europe/berlin, anchor: 15, requests_per_unit: 5",
                "month from 15 in Europe/Berlin",
            ),
            ("every: week, anchor: 7, requests_per_unit: 5, algorithm: fixed_window", "week from 7 in UTC"),
            ("every: quarter, anchor: 02-15, requests_per_unit: 5", "quarter from 02-15 in UTC"),
            (
                "every: year, anchor: 02-29, zone: Asia/Kolkata, requests_per_unit: 5",
                "year from 02-29 in Asia/Kolkata",
            ),
            ("every: year, anchor: '4-6', requests_per_unit: 5", "year from 04-06 in UTC"),
        ] {
            assert_eq!(quota(rate_limit), format!("5/{expected}"), "{rate_limit}");
        }
    }

    #[test]
    fn number_of_a_tier_has_the_same_calendar() {
        let rules =
            load("every: month, anchor: 31, requests_per_unit: 0, tiers: { pro: { requests_per_unit: 9 } }");
        let rules = rules.unwrap();
        let rule = rules.iter().next().unwrap();
        let month = Calendar::MONTH.anchored_to_day(31).unwrap();
        assert_eq!(rule.limit(Some("pro")), Limit::Quota(Quota::calendar_window(9, month)));
        // 0 denies all requests, with the mean length of the window as the retry time.
        assert_eq!(rule.limit(None), Limit::DenyAll(Duration::from_secs(2_629_746)));
    }

    #[tokio::test]
    async fn requests_are_limited_until_the_month_of_the_zone_ends() {
        // The clock begins at 2020-01-01 00:00 UTC.
        for world in [World::memory(), World::redis()] {
            let rules = load("every: month, zone: Europe/Berlin, requests_per_unit: 2").unwrap();
            let limits = rules.bind(&world.limiter);
            let request = [Descriptor::from([("k", "v")])];
            for is_allowed in [true, true, false] {
                let decision = limits.check("d", &request).await.unwrap();
                assert_eq!(decision.is_allowed(), is_allowed);
            }
            let hour = Duration::from_secs(3_600);
            let denied = limits.check("d", &request).await.unwrap();
            let wait = denied.binding().unwrap().decision().unwrap().retry_after();
            assert_eq!(wait, (31 * 24 - 1) * hour);
            world.advance(wait);
            assert!(limits.check("d", &request).await.unwrap().is_allowed());
        }
    }

    #[test]
    fn errors_are_at_their_fields() {
        for (rate_limit, expected) in [
            (
                "every: month, zone: Europe/Berln, requests_per_unit: 5",
                "`Europe/Berln`: did you mean `Europe/Berlin`?",
            ),
            ("every: month, anchor: 32, requests_per_unit: 5", "the anchor of a month is a day, 1 to 31"),
            ("every: day, anchor: 1, requests_per_unit: 5", "a day has no anchor"),
            ("every: year, anchor: 15, requests_per_unit: 5", "such as 02-29"),
            ("every: month, zone: [], requests_per_unit: 5", "`zone` must be a string"),
            ("unit: month, zone: Europe/Berlin, requests_per_unit: 5", "`zone` needs a window of a calendar"),
            ("every: 30d, anchor: 15, requests_per_unit: 5", "`anchor` needs a window of a calendar"),
            ("unit: month, every: month, requests_per_unit: 5", "`every` cannot be combined with `unit`"),
            ("every: month, unit_multiplier: 2, requests_per_unit: 5", "cannot be combined with `every`"),
            (
                "every: month, algorithm: sliding_log, requests_per_unit: 5",
                "a sliding_log has no window of a calendar",
            ),
            ("every: month, burst: 9, requests_per_unit: 5", "a fixed_window has no `burst`"),
            ("every: month, cost: 9, requests_per_unit: 5", "a cost of 9 can never pass a limit of 5"),
            ("in_flight: 5, every: month", "`every` cannot be combined with `in_flight`"),
            ("in_flight: 5, zone: UTC", "`zone` cannot be combined with `in_flight`"),
            ("unlimited: true, anchor: 15", "`anchor` cannot be combined with `unlimited`"),
            ("every: fortnight, requests_per_unit: 5", "or day, week, month, quarter, year"),
        ] {
            let errors = load(rate_limit).unwrap_err();
            assert!(errors.contains(expected), "{rate_limit}: {errors}");
        }
    }
}

#[cfg(not(feature = "calendar"))]
#[test]
fn calendar_needs_its_feature() {
    for rate_limit in
        ["every: month, requests_per_unit: 5", "every: day, zone: Europe/Berlin, requests_per_unit: 5"]
    {
        let errors = load(rate_limit).unwrap_err();
        assert!(errors.contains("needs the feature `calendar` of the crate tidegate-rules"), "{errors}");
    }
}
