//! Bans of rules.

use std::time::Duration;

use tidegate::{Limiter, Quota, Rate};
use tidegate_rules::{Descriptor, Loader, Rules, RulesLimiter};

use super::loading::Folder;
use super::reloading::Reloads;
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::builder;

/// The longest wait because of a limit.
const LIMIT_WAIT: Duration = Duration::from_secs(7_200);

const LOGIN: &str = "
domain: auth
descriptors:
  - key: user
    rate_limit:
      unit: hour
      requests_per_unit: 1
      algorithm: token_bucket
      tiers: { pro: { requests_per_unit: 2, burst: 2 }, staff: { unlimited: true } }
      ban: { after: 3, within: 10m, for: 5h }
  - key: all
    rate_limit: { unit: hour, requests_per_unit: 2, algorithm: token_bucket }
  - key: tried
    shadow_mode: true
    rate_limit: { unit: hour, requests_per_unit: 1, algorithm: token_bucket, ban: { after: 1, within: 10m, for: 5h } }
";

/// Returns the time after which such a request is admitted: up to [`LIMIT_WAIT`] because of a limit, otherwise because
/// of a ban.
async fn retry_after(limits: &RulesLimiter, descriptors: &[Descriptor<'_>]) -> Duration {
    limits.check("auth", descriptors).await.unwrap().retry_after()
}

fn of(key: &'static str, value: &'static str) -> Descriptor<'static> {
    Descriptor::from([(key, value)])
}

#[tokio::test]
async fn denials_of_a_rule_ban_its_key() {
    let server = tidegate_testkit::shared();
    for limiter in [Limiter::in_memory(), builder(server.url()).build().unwrap()] {
        let limits = Rules::parse("auth.yaml", LOGIN).unwrap().bind(&limiter);
        let user = [of("user", "ada")];
        assert_eq!(retry_after(&limits, &user).await, Duration::ZERO);
        for denial in 1..=4 {
            let wait = retry_after(&limits, &user).await;
            assert!(!wait.is_zero());
            assert_eq!(wait > LIMIT_WAIT, denial >= 3, "denial {denial}: {wait:?}");
        }
        assert_eq!(retry_after(&limits, &[of("user", "bob")]).await, Duration::ZERO);
        let gate = limiter.gate("auth.user", Quota::token_bucket(1, Rate::per_hour(1)));
        gate.unblock("ada").await.unwrap();
        let wait = retry_after(&limits, &user).await;
        assert!(!wait.is_zero() && wait <= LIMIT_WAIT, "unblocked, and denied by the limit");
    }
}

#[tokio::test]
async fn only_the_rule_that_denies_counts() {
    let limits = Rules::parse("auth.yaml", LOGIN).unwrap().bind(&Limiter::in_memory());
    let both = |user| [of("user", user), of("all", "")];
    for user in ["ada", "bob"] {
        assert_eq!(retry_after(&limits, &both(user)).await, Duration::ZERO);
    }
    // `all` denies, not the rule of this user.
    for _ in 0..9 {
        assert!(!retry_after(&limits, &both("eve")).await.is_zero());
    }
    assert_eq!(retry_after(&limits, &[of("user", "eve")]).await, Duration::ZERO);
}

#[tokio::test]
async fn tiers_share_the_count_and_shadow_mode_counts_nothing() {
    let limits = Rules::parse("auth.yaml", LOGIN).unwrap().bind(&Limiter::in_memory());
    let tier = |tier: &'static str| [of("user", "ada").tier(tier)];
    for _ in 0..2 {
        assert_eq!(retry_after(&limits, &tier("pro")).await, Duration::ZERO);
    }
    assert!(retry_after(&limits, &tier("pro")).await <= LIMIT_WAIT);
    assert!(retry_after(&limits, &tier("free")).await <= LIMIT_WAIT);
    assert!(retry_after(&limits, &tier("pro")).await > LIMIT_WAIT);
    assert_eq!(
        retry_after(&limits, &tier("staff")).await,
        Duration::ZERO,
        "an unlimited tier makes no check"
    );
    for _ in 0..9 {
        let decision = limits.check("auth", &[of("tried", "x")]).await.unwrap();
        assert!(decision.is_allowed());
        assert!(decision.outcomes()[0].decision().unwrap().retry_after() <= LIMIT_WAIT);
    }
}

#[tokio::test]
async fn requests_that_need_no_check_of_the_rule_count_nothing() {
    let text = LOGIN
        .replace("staff: { unlimited: true }", "staff: { unlimited: true }, free: { requests_per_unit: 0 }");
    let rules = Rules::parse("auth.yaml", &text).unwrap();
    let user = || Descriptor::from([("user", "ada")]);
    let rule = rules.explain("auth", &user()).rule().cloned().unwrap();
    let ban = rule.ban().unwrap();
    assert_eq!((ban.denials(), ban.within()), (3, Duration::from_secs(600)));
    let limits = rules.bind(&Limiter::in_memory());
    let own = || user().limit(1, Duration::from_secs(3_600)).unwrap();
    assert_eq!(retry_after(&limits, &[own()]).await, Duration::ZERO);
    for _ in 0..9 {
        for descriptor in [user().tier("free"), own()] {
            let wait = retry_after(&limits, &[descriptor]).await;
            assert!(!wait.is_zero() && wait <= LIMIT_WAIT, "{wait:?}");
        }
    }
    assert_eq!(retry_after(&limits, &[user()]).await, Duration::ZERO, "nothing was counted");
    for _ in 0..3 {
        let _ = retry_after(&limits, &[user()]).await;
    }
    assert!(retry_after(&limits, &[user()]).await > LIMIT_WAIT);
    assert_eq!(retry_after(&limits, &[user().tier("staff")]).await, Duration::ZERO, "passes during the ban");
}

#[tokio::test]
async fn denials_count_beside_a_limit_in_flight_if_each_rule_is_charged_apart() {
    let text = "domain: auth\ncharge: each\ndescriptors: [{ key: user, rate_limit: { unit: hour, requests_per_unit: 1, algorithm: token_bucket, ban: { after: 3, within: 10m, for: 5h } } }, { key: upload, rate_limit: { in_flight: 9 } }]";
    let limits = Rules::parse("auth.yaml", text).unwrap().bind(&Limiter::in_memory());
    let both = [of("user", "ada"), of("upload", "x")];
    for denials in 0..=3 {
        let acquired = limits.acquire("auth", &both).await.unwrap();
        assert_eq!(acquired.decision().is_allowed(), denials == 0);
        assert_eq!(acquired.decision().retry_after() > LIMIT_WAIT, denials == 3, "denial {denials}");
    }
}

#[tokio::test]
async fn reload_keeps_the_count_and_applies_the_new_ban() {
    let folder = Folder::new("bans");
    let rules = |ban: &str| {
        format!(
            "domain: auth\ndescriptors: [{{ key: user, rate_limit: {{ unit: hour, requests_per_unit: 1, algorithm: token_bucket{ban} }} }}]\n"
        )
    };
    folder.write("a.yaml", rules(", ban: { after: 9, within: 1h, for: 5h }"));
    let reloads = Reloads::default();
    let limiter = Limiter::builder().in_memory().observer(reloads.clone()).build().unwrap();
    let watched = Loader::new().watch(&folder.0, &limiter).unwrap();
    let user = [of("user", "ada")];
    for _ in 0..4 {
        let _ = retry_after(&watched.limits(), &user).await;
    }
    folder.write("a.yaml", rules(", ban: { after: 4, within: 1h, for: 5h }"));
    reloads.wait_for(1).await;
    assert!(retry_after(&watched.limits(), &user).await > LIMIT_WAIT);
    // A ban in force stays after its rule has lost it.
    folder.write("a.yaml", rules(""));
    reloads.wait_for(2).await;
    assert!(retry_after(&watched.limits(), &user).await > LIMIT_WAIT);
}
