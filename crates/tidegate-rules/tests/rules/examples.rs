//! The examples in the README of envoyproxy/ratelimit, decision by decision.

use std::path::Path;
use std::time::Duration;

use tidegate_rules::{Descriptor, RuleResult, Rules, RulesDecision, RulesLimiter};

use crate::support::world::World;

/// The fixture, its domain, and the checks to make. `500 x a=b, c=d + e=f -> …` makes 500 checks with two
/// descriptors, and expects [`describe`] to return the text after the arrow for each decision. `wait 1s`
/// advances the clock.
const EXAMPLES: &[(&str, &str, &str)] = &[
    (
        "1-two-values",
        "mongo_cps",
        "
        500 x database=users -> allowed: passes mongo_cps.database_users
        2 x database=users -> denied: denies mongo_cps.database_users
        500 x database=default -> allowed: passes mongo_cps.database_default
        1 x database=default -> denied: denies mongo_cps.database_default
        3 x database=other -> allowed: no rule
        wait 1s
        1 x database=users -> allowed: passes mongo_cps.database_users
        ",
    ),
    (
        "2-nested",
        "messaging",
        "
        5 x message_type=marketing, to_number=2061111111 + to_number=2061111111 -> allowed: passes messaging.message_type_marketing.to_number, passes messaging.to_number
        3 x message_type=marketing, to_number=2061111111 + to_number=2061111111 -> denied: denies messaging.message_type_marketing.to_number, passes messaging.to_number
        1 x message_type=marketing, to_number=2062222222 -> allowed: passes messaging.message_type_marketing.to_number
        3 x message_type=marketing -> allowed: no rule
        95 x to_number=2061111111 -> allowed: passes messaging.to_number
        1 x to_number=2061111111 -> denied: denies messaging.to_number
        1 x to_number=2062222222 -> allowed: passes messaging.to_number
        ",
    ),
    // As in Envoy's service, a rule that admits is charged even if another one denies.
    (
        "2-nested-each",
        "messaging_each",
        "
        5 x message_type=marketing, to_number=2061111111 + to_number=2061111111 -> allowed: passes messaging_each.message_type_marketing.to_number, passes messaging_each.to_number
        3 x message_type=marketing, to_number=2061111111 + to_number=2061111111 -> denied: denies messaging_each.message_type_marketing.to_number, passes messaging_each.to_number
        92 x to_number=2061111111 -> allowed: passes messaging_each.to_number
        1 x to_number=2061111111 -> denied: denies messaging_each.to_number
        ",
    ),
    (
        "3-most-specific",
        "edge_proxy_per_ip",
        "
        10 x remote_address=50.0.0.1 -> allowed: passes edge_proxy_per_ip.remote_address
        1 x remote_address=50.0.0.1 -> denied: denies edge_proxy_per_ip.remote_address
        10 x remote_address=50.0.0.2 -> allowed: passes edge_proxy_per_ip.remote_address
        3 x remote_address=50.0.0.5 -> denied: denies edge_proxy_per_ip.remote_address_50.0.0.5
        wait 1s
        1 x remote_address=50.0.0.5 -> denied: denies edge_proxy_per_ip.remote_address_50.0.0.5
        1 x remote_address=50.0.0.3 + remote_address=50.0.0.5 -> denied: not checked edge_proxy_per_ip.remote_address, denies edge_proxy_per_ip.remote_address_50.0.0.5
        10 x remote_address=50.0.0.3 -> allowed: passes edge_proxy_per_ip.remote_address
        ",
    ),
    ("4-depth", "shallow", "400 x key=value, subkey=subvalue -> allowed: no rule"),
    (
        "4-depth",
        "deep",
        "
        300 x key=value, subkey=subvalue -> allowed: passes deep.key_value.subkey
        1 x key=value, subkey=subvalue -> denied: denies deep.key_value.subkey
        1 x key=value, subkey=other -> allowed: passes deep.key_value.subkey
        400 x key=value -> allowed: no rule
        400 x subkey=subvalue -> allowed: no rule
        ",
    ),
    ("4-depth", "nowhere", "400 x key=value -> allowed: no rule"),
    (
        "5-unlimited",
        "internal",
        "
        400 x ldap=a -> allowed: unlimited internal.ldap
        100 x azure=a -> allowed: passes internal.azure
        1 x azure=a -> denied: denies internal.azure
        1 x azure=a + ldap=a -> denied: denies internal.azure, unlimited internal.ldap
        ",
    ),
    (
        "6-shadow",
        "example6",
        "
        10 x service=auth, user=user-a -> allowed: passes example6.service.user_user-a
        9 x service=auth, user=user-a -> allowed: watches example6.service.user_user-a
        20 x service=auth, user=user-b -> allowed: passes example6.service.user_user-b
        1 x service=auth, user=user-b -> denied: denies example6.service.user_user-b
        1 x service=web, user=user-b + service=auth, user=user-a -> allowed: passes example6.service.user_user-b, watches example6.service.user_user-a
        ",
    ),
    (
        "7-replaces",
        "example7",
        "
        5 x key_1=value_1, user=bkthomps -> allowed: passes example7.key_1_value_1.user_bkthomps
        1 x key_1=value_1, user=bkthomps -> denied: denies example7.key_1_value_1.user_bkthomps
        10 x key_2=value_2, user=bkthomps -> allowed: passes example7.key_2_value_2.user_bkthomps
        1 x key_2=value_2, user=bkthomps -> denied: denies example7.key_2_value_2.user_bkthomps
        wait 1s
        10 x key_1=value_1, user=bkthomps + key_2=value_2, user=bkthomps -> allowed: replaced example7.key_1_value_1.user_bkthomps, passes example7.key_2_value_2.user_bkthomps
        1 x key_1=value_1, user=bkthomps + key_2=value_2, user=bkthomps -> denied: replaced example7.key_1_value_1.user_bkthomps, denies example7.key_2_value_2.user_bkthomps
        5 x key_1=value_1, user=bkthomps -> allowed: passes example7.key_1_value_1.user_bkthomps
        1 x key_1=value_1, user=bkthomps -> denied: denies example7.key_1_value_1.user_bkthomps
        ",
    ),
    (
        "8-detailed-metric",
        "example8",
        "
        10 x key1=unspecified_value -> allowed: passes example8.key1_unspecified_value
        1 x key1=unspecified_value -> denied: denies example8.key1_unspecified_value
        10 x key1=unspecified_value2 -> allowed: passes example8.key1_unspecified_value2
        20 x key1=value1 -> allowed: passes example8.key1_value1
        1 x key1=value1 -> denied: denies example8.key1_value1
        ",
    ),
    (
        "9-wildcard",
        "example9",
        "
        20 x key1=value1 -> allowed: passes example9.key1_value*
        1 x key1=value1 -> denied: denies example9.key1_value*
        20 x key1=value2 -> allowed: passes example9.key1_value*
        1 x key1=value -> allowed: passes example9.key1_value*
        9 x key1=valu -> allowed: no rule
        ",
    ),
    (
        "10-share-threshold",
        "example10",
        "
        6 x files=files/a.pdf -> allowed: passes example10.files_files/*
        4 x files=files/b/c.csv -> allowed: passes example10.files_files/*
        1 x files=files/d.txt -> denied: denies example10.files_files/*
        10 x files=images/a.png -> allowed: passes example10.files_images/*
        1 x files=images/a.png -> denied: denies example10.files_images/*
        1 x files=images/b.png -> allowed: passes example10.files_images/*
        1 x parent=top/a, user=1 -> allowed: passes example10.parent_top/*.user
        1 x parent=top/b, user=1 -> allowed: passes example10.parent_top/*.user
        1 x parent=top/c, user=1 -> denied: denies example10.parent_top/*.user
        1 x parent=top/c, user=2 -> allowed: passes example10.parent_top/*.user
        ",
    ),
    (
        "11-value-to-metric",
        "example11",
        "
        1 x route=api, http_method=GET, subject_id=123 -> allowed: passes example11.route_api.http_method_GET.subject_id
        1 x path=api/v1 -> allowed: passes example11.path_api/v1
        1 x plain=api/v1 -> allowed: passes example11.plain_api*
        1 x shared=api/v1 -> allowed: passes example11.shared_api*
        ",
    ),
    (
        "14-wildcards",
        "wildcards",
        "
        3 x noVal=foo1 -> allowed: passes wildcards.noVal
        3 x noVal=foo2 -> allowed: passes wildcards.noVal
        3 x wild=foo1 -> allowed: passes wildcards.wild_foo*
        1 x wild=foo1 -> denied: denies wildcards.wild_foo*
        3 x wild=foo2 -> allowed: passes wildcards.wild_foo*
        3 x nestedWild=val1, wild=goo2 -> allowed: passes wildcards.nestedWild_val1.wild_goo*
        9 x wild=bar -> allowed: no rule
        9 x noWild=foo1 -> allowed: no rule
        3 x midWild=barab -> allowed: passes wildcards.midWild_bar*b
        1 x midWild=barab -> denied: denies wildcards.midWild_bar*b
        3 x midWild=bar123b -> allowed: passes wildcards.midWild_bar*b
        3 x midWild=barb -> allowed: passes wildcards.midWild_bar*b
        9 x midWild=bara -> allowed: no rule
        9 x midWild=xbarb -> allowed: no rule
        9 x midWild=ba -> allowed: no rule
        2 x multiWild=foo123bar456baz -> allowed: passes wildcards.multiWild_foo*bar*baz
        1 x multiWild=foo123bar456baz -> denied: denies wildcards.multiWild_foo*bar*baz
        2 x multiWild=foobarbaz -> allowed: passes wildcards.multiWild_foo*bar*baz
        9 x multiWild=foo123baz -> allowed: no rule
        9 x multiWild=bar456baz -> allowed: no rule
        2 x path=/api/123/action -> allowed: passes wildcards.path_/api/*/action
        1 x path=/api/123/action -> denied: denies wildcards.path_/api/*/action
        2 x path=/api/a/b/action -> allowed: passes wildcards.path_/api/*/action
        9 x path=/api/123/other -> allowed: no rule
        2 x route=/api/v1/resource/123/action -> allowed: passes wildcards.route_/api/v1/resource/123/action
        1 x route=/api/v1/resource/123/action -> denied: denies wildcards.route_/api/v1/resource/123/action
        2 x route=/api/v2/resource/456/action -> allowed: passes wildcards.route_/api/v2/resource/456/action
        2 x host=a.example.com -> allowed: passes wildcards.host_*.example.com
        1 x host=a.example.com -> denied: denies wildcards.host_*.example.com
        9 x host=example.com -> allowed: no rule
        ",
    ),
    (
        "15-shared-wildcards",
        "shared",
        "
        1 x file=test1 -> allowed: passes shared.file_test1
        1 x file=test1 -> denied: denies shared.file_test1
        1 x file=test2 -> allowed: passes shared.file_test*
        1 x file=test3 -> allowed: passes shared.file_test*
        1 x file=test4 -> denied: denies shared.file_test*
        1 x midpath=/api/v1 -> allowed: passes shared.midpath_/api*v1
        1 x midpath=/api-beta-v1 -> allowed: passes shared.midpath_/api*v1
        1 x midpath=/apiXYZv1 -> allowed: passes shared.midpath_/api*v1
        1 x midpath=/apiv1 -> denied: denies shared.midpath_/api*v1
        9 x midpath=/api/v2 -> allowed: no rule
        1 x multiroute=svcAepBrpc -> allowed: passes shared.multiroute_svc*ep*rpc
        1 x multiroute=svcXXXepYYYrpc -> allowed: passes shared.multiroute_svc*ep*rpc
        1 x multiroute=svceprpc -> allowed: passes shared.multiroute_svc*ep*rpc
        1 x multiroute=svcepeprpc -> denied: denies shared.multiroute_svc*ep*rpc
        9 x multiroute=svcABCrpc -> allowed: no rule
        1 x midroute=/api/v2 -> allowed: passes shared.midroute_/api*v2
        1 x midroute=/api-beta-v2 -> allowed: passes shared.midroute_/api*v2
        1 x midroute=/api/v2 -> denied: denies shared.midroute_/api*v2
        1 x tenant=t1prod, resource=resAv2 -> allowed: passes shared.tenant_t*prod.resource_res*v2
        1 x tenant=t99prod, resource=resBBBv2 -> allowed: passes shared.tenant_t*prod.resource_res*v2
        1 x tenant=t1prod, resource=resAv2 -> denied: denies shared.tenant_t*prod.resource_res*v2
        ",
    ),
    (
        "16-quota",
        "quota",
        "
        1 x service=service_1 + service=service_2 -> allowed: passes quota.service_service_1, passes quota.service_service_2
        1 x service=service_1 + service=service_2 -> allowed: denies quota.service_service_1, passes quota.service_service_2
        1 x service=service_1 + service=service_2 -> denied: denies quota.service_service_1, denies quota.service_service_2
        1 x service=service_1 -> denied: denies quota.service_service_1
        1 x service=other -> allowed: no rule
        wait 60s
        1 x service=service_1 + service=service_2 + user=ada -> allowed: passes quota.service_service_1, passes quota.service_service_2, passes quota.user
        4 x user=ada -> allowed: passes quota.user
        1 x service=service_2 + user=ada -> denied: passes quota.service_service_2, denies quota.user
        ",
    ),
    (
        "13-allowed-without-limit",
        "exceptions",
        "
        1 x user=ada -> allowed: passes exceptions.user
        1 x user=ada -> denied: denies exceptions.user
        9 x user=monitor -> allowed: no rule
        ",
    ),
];

fn rules(fixture: &str) -> Rules {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules/fixtures/examples");
    Rules::load(folder.join(format!("{fixture}.yaml"))).unwrap()
}

fn descriptor(text: &str) -> Descriptor<'_> {
    let entries = text.split(", ").map(|entry| entry.split_once('=').unwrap());
    entries.fold(Descriptor::new(), |descriptor, (key, value)| descriptor.entry(key, value))
}

fn describe(decision: &RulesDecision) -> String {
    let outcomes = decision.outcomes().iter().map(|outcome| {
        let verb = match outcome.result() {
            RuleResult::NoRule => return "no rule".to_owned(),
            RuleResult::Unlimited => "unlimited",
            RuleResult::Replaced => "replaced",
            RuleResult::NotChecked => "not checked",
            RuleResult::Decided(decision) if decision.is_shadow() => "watches",
            RuleResult::Decided(decision) if decision.is_allowed() => "passes",
            RuleResult::Decided(_) => "denies",
            _ => "nothing known",
        };
        format!("{verb} {}", outcome.metric().unwrap())
    });
    let allowed = if decision.is_allowed() { "allowed" } else { "denied" };
    format!("{allowed}: {}", outcomes.collect::<Vec<_>>().join(", "))
}

async fn assert_step(world: &World, limits: &RulesLimiter, domain: &str, line: &str) {
    if let Some(seconds) = line.strip_prefix("wait ").and_then(|wait| wait.strip_suffix('s')) {
        world.advance(Duration::from_secs(seconds.parse().unwrap()));
        return;
    }
    let (times, rest) = line.split_once(" x ").unwrap();
    let (descriptors, expected) = rest.split_once(" -> ").unwrap();
    let descriptors: Vec<_> = descriptors.split(" + ").map(descriptor).collect();
    for check in 1..=times.parse().unwrap() {
        let decision = limits.check(domain, &descriptors).await.unwrap();
        assert_eq!(describe(&decision), expected, "{domain}, check {check}: {line}");
    }
}

async fn assert_examples(world: impl Fn() -> World) {
    for (fixture, domain, steps) in EXAMPLES {
        let world = world();
        let limits = rules(fixture).bind(&world.limiter);
        for line in steps.lines().map(str::trim).filter(|line| !line.is_empty()) {
            assert_step(&world, &limits, domain, line).await;
        }
    }
}

#[tokio::test]
async fn decisions_match_envoys_readme_in_memory() {
    assert_examples(World::memory).await;
}

#[tokio::test]
async fn decisions_match_envoys_readme_with_redis() {
    assert_examples(World::redis).await;
}

#[tokio::test]
async fn units_have_the_length_of_envoys() {
    let world = World::memory();
    let limits = rules("12-units").bind(&world.limiter);
    let units = [
        ("second", "1/s"),
        ("minute", "1/min"),
        ("hour", "1/h"),
        ("day", "1/d"),
        ("week", "1/week"),
        ("month", "1/30d"),
        ("year", "1/365d"),
        ("quarter", "1/15min"),
    ];
    for (unit, expected) in units {
        let rule = limits.rules().find("units", &Descriptor::from([(unit, "x")])).unwrap();
        assert_eq!(rule.quota().unwrap().to_string(), expected);
    }
}
