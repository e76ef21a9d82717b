//! What the pages show.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Limiter, Switch};
use tidegate_rules::Rules;
use tidegate_server::RateLimitService;
use tidegate_testkit::{Server, shared};

use super::fixture::{Console, OPERATOR, PAGES, RULES, Session, USERS, client, limiter, users_quota};
use crate::support::fixture::{builder, namespace, soon};

#[tokio::test]
async fn pages_of_an_empty_fleet_are_shown() {
    let console = Console::start(RULES).await;
    for path in PAGES {
        let page = console.page(path, 200).await;
        assert!(!page.contains("NaN") && !page.contains("Infinity"), "{path}: {page}");
    }
    assert!(console.page("/", 200).await.contains("No decisions in the last hour"));
    assert!(console.page("/key?key=nobody", 200).await.contains("There is no state of this key"));
    console.page("/gate?name=shop.user", 200).await;
    console.page("/gate?name=unknown", 404).await;
    console.page("/nothing", 404).await;
    console.stop().await;
}

#[tokio::test]
async fn pages_without_redis_have_the_rules_and_keys_and_say_what_is_missing() {
    let limiter = Limiter::in_memory();
    let service = RateLimitService::new(Rules::parse("shop.yaml", RULES).unwrap().bind(&limiter));
    let _ = limiter.gate(USERS, users_quota()).check("bob").await.unwrap();
    let console = Console::of(shared(), namespace(), service, None).await;
    for path in PAGES {
        console.page(path, 200).await;
    }
    let page = console.page("/", 200).await;
    assert!(page.contains("enable `publish_figures`"), "{page}");
    for false_text in ["00:00:00 UTC", "<figure", "class=\"tiles\""] {
        assert!(!page.contains(false_text), "{false_text}: {page}");
    }
    assert!(console.page("/keys", 200).await.contains("1 of 3 used"));
    assert!(!console.page("/health", 200).await.contains("Redis decides for this process"));
    assert!(console.page("/gates", 200).await.contains("data-label=\"Allowed\">-<"));
    assert!(console.page("/gates", 200).await.contains("3/d"));
    assert!(console.page("/key?key=bob", 200).await.contains("1 of 3 used"));
    console.stop().await;
}

#[tokio::test]
async fn figures_in_memory_are_those_of_the_process_up_to_now() {
    let limiter = Limiter::builder().in_memory().publish_figures(true).build().unwrap();
    let service = RateLimitService::new(Rules::parse("shop.yaml", RULES).unwrap().bind(&limiter));
    let console = Console::of(shared(), namespace(), service, None).await;
    let users = limiter.gate(USERS, users_quota());
    for _ in 0..5 {
        let _ = users.check("bob").await.unwrap();
    }
    // A bucket of figures ends after 5 s.
    soon("the denials are shown", async || console.page("/", 200).await.contains("1 gate denies requests"))
        .await;
    let page = console.page("/", 200).await;
    assert!(page.contains("the store in memory decided") && !page.contains("Wait for Redis"), "{page}");
    console.stop().await;
}

#[tokio::test]
async fn pages_are_shown_while_redis_is_paused_and_say_so_until_it_replies_again() {
    let redis = Arc::new(Server::process(&[]).unwrap());
    let namespace = namespace();
    let deadline = Duration::from_millis(100);
    let limiter = builder(redis.url())
        .publish_figures(true)
        .deadline(deadline)
        .operator_deadline(deadline)
        .namespace(&namespace);
    let rules = Rules::parse("shop.yaml", RULES).unwrap().bind(&limiter.build().unwrap());
    let console = Console::of(redis.clone(), namespace, RateLimitService::new(rules), None).await;
    let session = Session::begin(&console, OPERATOR).await;
    let csrf = session.csrf(&console).await;
    let block = [("csrf", &*csrf), ("confirmed", "yes"), ("verb", "block"), ("gate", USERS), ("key", "bob")];
    let block = [&block[..], &[("for", "1h"), ("reason", "abuse")]].concat();
    let decides = async || console.page("/health", 200).await.contains("Redis decides for this process");
    soon("Redis decides", decides).await;

    let paused = redis.pause().unwrap();
    for path in PAGES {
        console.page(path, 200).await;
    }
    soon("the overview says so", async || {
        console.page("/", 200).await.contains("Redis does not answer this process")
    })
    .await;
    assert!(console.page("/gates", 200).await.contains("3/d"));
    let response = session.post(&console, "/change", &block).await;
    assert_eq!(response.status(), 503);
    drop(paused);

    soon("the change is made", async || session.post(&console, "/change", &block).await.status() == 303)
        .await;
    soon("Redis decides again", decides).await;
    soon("the overview says no more that it does not answer", async || {
        !console.page("/", 200).await.contains("Redis does not answer this process")
    })
    .await;
    console.stop().await;
}

#[tokio::test]
async fn health_shows_the_regions_and_which_are_silent() {
    let (here, mut there) = (Arc::new(Server::process(&[]).unwrap()), Server::process(&[]).unwrap());
    let namespace = namespace();
    let region = |name: &str, own: &str, peer: &str, url: &str| {
        builder(own).namespace(&namespace).region(name).peer(peer, url).build().unwrap()
    };
    let rules = Rules::parse("shop.yaml", RULES).unwrap().bind(&limiter(&here, &namespace));
    let console = Console::of(here.clone(), namespace.clone(), RateLimitService::new(rules), None).await;
    let page = console.page("/health", 200).await;
    assert!(page.contains("No gate is replicated.") && !page.contains("Regions that share limits"), "{page}");
    let _eu = region("eu", here.url(), "us", there.url());
    let _us = region("us", there.url(), "eu", here.url());
    let shows = async |text: &str| console.page("/health", 200).await.contains(text);
    soon("the region is heard of", async || shows("All regions are heard of.").await).await;
    let page = console.page("/health", 200).await;
    assert!(page.contains(">us</th>") && page.contains("0 changes wait"), "{page}");
    assert!(!page.contains("cut off</span>"), "{page}");
    there.kill();
    soon("the region is silent", async || shows("silent: cut off</span>").await).await;
    soon("the entry fires", async || shows("Silent regions: us.").await).await;
    console.stop().await;
}

#[tokio::test]
async fn pages_need_a_token() {
    let console = Console::start(RULES).await;
    for path in PAGES.into_iter().chain(["/key?key=bob", "/gate?name=shop.user", "/change?verb=block"]) {
        let response = client().get(console.url(path)).header("accept", "text/html").send().await.unwrap();
        assert_eq!(response.status(), 303, "{path}");
        assert!(response.headers()["location"].to_str().unwrap().starts_with("/login?next="), "{path}");
        let response = client().get(console.url(path)).send().await.unwrap();
        assert_eq!(response.status(), 401, "{path}");
    }
    for path in ["/login", "/assets/console.css", "/assets/console.js", "/assets/icon.svg"] {
        assert_eq!(client().get(console.url(path)).send().await.unwrap().status(), 200, "{path}");
    }
    console.stop().await;
}

#[tokio::test]
async fn overview_shows_the_gates_that_deny_and_why() {
    let console = Console::start(RULES).await;
    console.publish(&[USERS, "in-code"], 60, "a/redis=10 n/redis=5 d/redis=30 s/redis=1 e=2");
    let page = console.page("/", 200).await;
    assert!(page.contains("2 gates deny requests"), "{page}");
    for text in
        ["6/s", "65 %", "keys over 3/d", "shop.yaml:4", "a service defines in its code", "3f2a", "Redis 7"]
    {
        assert!(page.contains(text), "{text}: {page}");
    }
    console.limiter().control().switch(USERS, Switch::Closed, None).await.unwrap();
    let page = console.page("/gate?name=shop.user", 200).await;
    assert!(page.contains("switched closed: denies every check"), "{page}");
    soon("the overview names the switch", async || {
        console.page("/", 200).await.contains("an operator has switched the gate closed")
    })
    .await;
    let health = console.page("/health", 200).await;
    assert!(health.contains("Switched now: shop / user") && health.contains("2 entries fire"), "{health}");
    console.stop().await;
}

#[tokio::test]
async fn gates_are_shown_by_their_rules_with_their_names_in_redis_beside_them() {
    let console = Console::start(RULES).await;
    console.publish(&[USERS], 60, "a/redis=10 d/redis=30");
    for path in ["/gates", "/gates?q=shop+%2F+user"] {
        let page = console.page(path, 200).await;
        let link = format!("<a href=\"/gate?name={USERS}\">shop / user</a>");
        let stored = format!("<span class=\"soft small mono\">{USERS}</span>");
        assert!(page.contains(&link) && page.contains(&stored), "{path}: {page}");
    }
    assert!(console.page("/gates", 200).await.contains(">shop / path=/search</a>"));
    let page = console.page("/gate?name=shop.user", 200).await;
    assert!(page.contains("<h1>shop / user</h1>") && page.contains("Stored as"), "{page}");
    for path in ["/", "/keys?gate=shop.user", "/explain?domain=shop&descriptor=user=bob"] {
        assert!(console.page(path, 200).await.contains("shop / user"), "{path}");
    }
    console.stop().await;
}

#[tokio::test]
async fn state_of_a_key_is_shown_in_words() {
    let console = Console::start(RULES).await;
    let gate = console.limiter().gate(USERS, users_quota());
    for _ in 0..4 {
        let _ = gate.check("bob").await.unwrap();
    }
    let page = console.page("/key?key=bob", 200).await;
    assert!(page.contains("3 of 3 used: no unit is left, so checks are denied"), "{page}");
    // A refresh reads a part of the database, which other tests share.
    soon("the key is listed", async || {
        let lists = console.page("/keys", 200).await;
        lists.contains("1 key is denied now") && lists.contains("/key?written=bob")
    })
    .await;
    gate.block("bob", Duration::from_secs(3_600)).await.unwrap();
    let page = console.page("/key?written=bob", 200).await;
    assert!(page.contains("Blocked: every check is denied for 59m"), "{page}");
    assert!(page.contains("A program has blocked it"), "{page}");
    soon("the block is listed", async || console.page("/keys?gate=shop.user", 200).await.contains("blocked"))
        .await;
    soon("all keys of another gate are read", async || {
        console.page("/keys?gate=other", 200).await.contains("No key is denied now")
    })
    .await;
    console.stop().await;
}

/// Redis reads at most 10,000 keys per refresh.
#[tokio::test]
async fn no_verdict_on_denied_keys_before_all_keys_are_read_and_readable() {
    let redis = Arc::new(Server::process(&[]).unwrap());
    let namespace = namespace();
    let limiter = builder(redis.url()).publish_figures(true).namespace(&namespace).build().unwrap();
    let gate = limiter.gate(USERS, users_quota());
    let keys: Vec<String> = (0..12_000).map(|key| key.to_string()).collect();
    assert!(gate.check_many(keys).await.iter().all(Result::is_ok));
    let rules = Rules::parse("shop.yaml", RULES).unwrap().bind(&limiter);
    let console = Console::of(redis.clone(), namespace, RateLimitService::new(rules), None).await;

    let first = console.page("/keys", 200).await;
    assert!(first.contains("No key is denied among those read so far"), "{first}");
    assert!(!first.contains("No key is denied now") && !first.contains("verdict good"), "{first}");
    let shows = async |text: &str| console.page("/keys", 200).await.contains(text);
    soon("all keys are read", async || shows("No key is denied now").await).await;
    assert!(shows("verdict good").await);

    let key = gate.redis_key("7").unwrap();
    redis.cli(&["DEL", &key]).unwrap();
    redis.cli(&["SET", &key, "of another program"]).unwrap();
    soon("the key is found", async || shows("No key is denied among those that can be read").await).await;
    assert!(!shows("verdict good").await);
    console.stop().await;
}

#[tokio::test]
async fn ban_of_a_key_is_told_from_a_block() {
    let rules = RULES.replacen(": 3 }", ": 3, ban: { after: 2, within: 1h, for: 2h } }", 1);
    let console = Console::start(&rules).await;
    let rules = Rules::parse("shop.yaml", &rules).unwrap().bind(&console.limiter());
    let descriptors = [tidegate_rules::Descriptor::from([("user", "bob")])];
    for _ in 0..5 {
        let _ = rules.check("shop", &descriptors).await.unwrap();
    }
    let page = console.page("/key?written=bob", 200).await;
    assert!(page.contains("Blocked: every check is denied for 1h 59m"), "{page}");
    assert!(page.contains("Its rule bans it (2 denials within 1h)"), "{page}");
    soon("the list names the ban", async || console.page("/keys", 200).await.contains("Its rule bans it"))
        .await;
    console.stop().await;
}

#[tokio::test]
async fn explanation_names_the_rule_and_its_line() {
    let console = Console::start(RULES).await;
    let page = console.page("/explain?domain=shop&descriptor=user%3Dbob", 200).await;
    assert!(page.contains("3/d") && page.contains("shop.yaml:4"), "{page}");
    let page = console.page("/explain?domain=shop&descriptor=usr%3Dbob", 200).await;
    assert!(page.contains("No rule applies") && page.contains("did you mean user?"), "{page}");
    for odd in
        ["descriptor=user", "request=G%20E%20T%20x", "request=GET+/&headers=x", "request=GET+/&ip=1.2.3"]
    {
        let page = console.page(&format!("/explain?domain=shop&{odd}"), 200).await;
        assert!(page.contains("role=\"alert\"") || page.contains("no descriptor"), "{odd}: {page}");
    }
    console.stop().await;
}

#[tokio::test]
async fn rejected_rule_file_is_shown_with_its_errors_beside_the_active_rules() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.yaml");
    fs::write(&file, RULES).unwrap();
    let console = Console::watching(folder.path()).await;
    assert!(console.page("/rules", 200).await.contains("have not changed since"));
    fs::write(folder.path().join("new"), RULES.replace("unit: day", "unit: dya")).unwrap();
    fs::rename(folder.path().join("new"), &file).unwrap();
    soon("the reload fails", async || console.page("/rules", 200).await.contains("are not applied")).await;
    let page = console.page("/rules", 200).await;
    for text in ["there is no unit `dya`", "The previous rules stay active", "unit: day"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(!page.contains("unit: dya"), "the rejected text: {page}");
    assert!(console.page("/health", 200).await.contains("The last reload in this process failed"));
    fs::write(folder.path().join("new"), RULES.replace("requests_per_unit: 3", "requests_per_unit: 4"))
        .unwrap();
    fs::rename(folder.path().join("new"), &file).unwrap();
    soon("the reload succeeds", async || console.page("/rules", 200).await.contains("ago: valid")).await;
    assert!(console.page("/gates", 200).await.contains("4/d"));
    console.stop().await;
}

#[tokio::test]
async fn key_page_shows_switches_before_the_state() {
    let console = Console::start(RULES).await;
    console.limiter().control().switch(USERS, Switch::Closed, None).await.unwrap();
    let page = console.page("/key?key=nobody", 200).await;
    let closed = "shop / user is switched closed: every check of this key there is denied";
    let (switch, state) = (page.find(closed), page.find("There is no state of this key"));
    assert!(switch.is_some() && switch < state, "{page}");
    console.stop().await;
}

#[tokio::test]
async fn key_of_a_rule_in_shadow_mode_is_over_limit_and_not_denied() {
    let console = Console::start(RULES).await;
    let rules = Rules::parse("shop.yaml", RULES).unwrap();
    let rule = rules.iter().find(|rule| rule.is_shadow()).unwrap();
    let gate = console.limiter().gate(&rule.gate_name(), rule.quota().unwrap());
    assert!(gate.check_cost("bob", 100).await.unwrap().is_allowed());
    let page = console.page("/key?key=bob", 200).await;
    assert!(page.contains("100 of 100 used: no unit is left; shadow mode admits the checks"), "{page}");
    assert!(page.contains("over limit") && !page.contains("checks are denied"), "{page}");
    soon("the key is listed", async || {
        console.page("/keys", 200).await.contains("href=\"/key?written=bob\"")
    })
    .await;
    soon("all keys are read", async || console.page("/keys", 200).await.contains("No key is denied now"))
        .await;
    console.stop().await;
}

#[tokio::test]
async fn candidates_are_shown_in_a_line_of_their_own() {
    let console = Console::start(RULES).await;
    console.publish(&[USERS], 60, "a/redis=600");
    console.publish(&["shop.user..candidate"], 60, "a/redis=60 s/redis=420");
    let page = console.page("/", 200).await;
    assert!(page.contains("Candidate quotas of rules, the last hour"), "{page}");
    assert!(page.contains("<dt>Decisions, last minute</dt><dd class=\"\">120/s</dd>"), "{page}");
    assert!(page.contains("<dt>Over limit (shadow)</dt><dd class=\"\">0/s</dd>"), "{page}");
    console.stop().await;
}

/// Asserts that no key is denied after all keys were read.
async fn assert_none_denied(console: &Console) {
    soon("the key is listed", async || {
        console.page("/keys", 200).await.contains("href=\"/key?written=bob\"")
    })
    .await;
    soon("all keys are read", async || console.page("/keys", 200).await.contains("No key is denied now"))
        .await;
}

#[tokio::test]
async fn key_with_an_override_is_denied_by_the_limit_of_the_override() {
    let console = Console::start(RULES).await;
    let gate = console.limiter().gate(USERS, users_quota());
    assert!(gate.check_cost("bob", 3).await.unwrap().is_allowed());
    let (more, hour) = (users_quota().try_with_limit(10).unwrap(), Duration::from_secs(3_600));
    console.limiter().control().set_override(USERS, "bob", more, hour).await.unwrap();
    assert_none_denied(&console).await;
    assert!(console.page("/keys", 200).await.contains("3 of 10 used"));
    console.stop().await;
}

#[tokio::test]
async fn key_of_a_rule_with_tiers_is_not_denied_by_the_limit_of_others() {
    let rules = RULES.replacen(": 3 }", ": 3, tiers: { pro: { requests_per_unit: 9 } } }", 1);
    let console = Console::start(&rules).await;
    let gate = console.limiter().gate(USERS, users_quota().try_with_limit(9).unwrap());
    assert!(gate.check_cost("bob", 3).await.unwrap().is_allowed());
    let page = console.page("/key?key=bob", 200).await;
    assert!(page.contains("3 used; resets in") && page.contains("tiers have limits of their own"), "{page}");
    assert_none_denied(&console).await;
    console.stop().await;
}

#[tokio::test]
async fn key_over_a_quota_in_quota_mode_is_not_called_denied() {
    let rules =
        RULES.replacen("3 }", "3 }\n    quota_mode: true", 1).replacen("shop", "shop\ncharge: each", 1);
    let console = Console::start(&rules).await;
    let gate = console.limiter().gate(USERS, users_quota());
    assert!(gate.check_cost("bob", 3).await.unwrap().is_allowed());
    let page = console.page("/key?key=bob", 200).await;
    assert!(page.contains("no unit is left; in quota mode, another quota can admit the request"), "{page}");
    assert!(page.contains("over limit") && !page.contains("checks are denied"), "{page}");
    assert_none_denied(&console).await;
    console.stop().await;
}

#[tokio::test]
async fn key_of_a_gate_that_is_switched_closed_is_denied() {
    let console = Console::start(RULES).await;
    let gate = console.limiter().gate(USERS, users_quota());
    assert!(gate.check("bob").await.unwrap().is_allowed());
    console.limiter().control().switch(USERS, Switch::Closed, None).await.unwrap();
    let page = console.page("/key?key=bob", 200).await;
    assert!(page.contains("1 of 3 used, but the gate is switched closed: checks are denied"), "{page}");
    assert!(page.contains("<span class=\"tag bad\">denied</span>"), "{page}");
    soon("the key is listed", async || console.page("/keys", 200).await.contains("1 key is denied now"))
        .await;
    console.stop().await;
}
