//! Operators at work: log in, block, unblock, and what a linked library decides.
#![allow(clippy::print_stdout, reason = "prints sizes and times, which no test asserts")]

use std::time::{Duration, Instant};

use tidegate::ManualClock;
use tidegate_rules::Rules;
use tidegate_server::RateLimitService;
use tidegate_testkit::shared;

use super::super::html::fixture::{Console, OPERATOR, RULES, USERS, VIEWER, limiter, users_quota};
use super::driver::Browser;
use crate::support::fixture::{namespace, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_that_is_blocked_in_the_browser_is_denied_by_a_linked_library() {
    let console = Console::start(RULES).await;
    // A service of the fleet that links the library, with the quota of the rule.
    let service = console.limiter();
    let users = service.gate(USERS, users_quota());
    assert!(users.peek("bob").await.unwrap().is_allowed());

    let browser = Browser::start().await;
    browser.log_in(&console, OPERATOR).await;
    browser.sees("No decisions in the last hour").await;
    browser.open(&console, "/keys").await;
    browser.fill("#key", "bob").await;
    browser.click("main form button").await;
    browser.fill("#gate", USERS).await;
    browser.click("button[value=block]").await;
    browser.fill("#for", "15m").await;
    browser.fill("#reason", "abuse of the search").await;
    browser.click("main button.primary").await;
    browser.sees("Block bob at shop / user for 15m?").await;
    assert!(users.peek("bob").await.unwrap().is_allowed(), "nothing changes before the confirmation");
    browser.click("button.danger").await;
    let start = Instant::now();
    // Peeks: checks would use up the quota before the click takes effect.
    soon("the library denies the key", async || !users.peek("bob").await.unwrap().is_allowed()).await;
    eprintln!("a linked library denied the key {:?} after the click", start.elapsed());
    assert!(!users.check("bob").await.unwrap().is_allowed());
    assert!(users.check("ada").await.unwrap().is_allowed());
    browser.sees("Blocked: every check is denied").await;
    browser.sees("abuse of the search").await;

    browser.fill("#gate", USERS).await;
    browser.click("button[value=unblock]").await;
    browser.fill("#reason", "was a test").await;
    browser.click("main button.primary").await;
    browser.click("button.danger").await;
    soon("the library allows the key", async || users.peek("bob").await.unwrap().is_allowed()).await;
    // Until then, the denial of the check before is cached.
    soon("a check is allowed", async || users.check("bob").await.unwrap().is_allowed()).await;
    browser.sees("was a test").await;
    let errors = browser.errors().await;
    assert!(errors.is_empty(), "{errors:?}");
    browser.close().await;
    console.stop().await;
}

async fn overridden_keys(console: &Console) -> Vec<String> {
    let overrides = console.limiter().control().overrides().await.unwrap();
    let key = |entry| match entry {
        tidegate::Override::Quota { key, .. } => Some(key),
        _ => None,
    };
    overrides.into_iter().filter_map(key).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_in_the_browser_is_of_the_key_that_is_shown() {
    let console = Console::start(RULES).await;
    let users = console.limiter().gate(USERS, users_quota());
    let browser = Browser::start().await;
    browser.log_in(&console, OPERATOR).await;
    browser.sees("No decisions in the last hour").await;
    for (key, stored) in [("bob\n", "bob%0A"), ("bob\0", "bob%00")] {
        let _ = users.check(key).await.unwrap();
        let link: String = form_urlencoded::byte_serialize(stored.as_bytes()).collect();
        browser.open(&console, &format!("/key?written={link}")).await;
        browser.click("button[value=block]").await;
        browser.fill("#for", "15m").await;
        browser.fill("#reason", "abuse of the search").await;
        browser.click("main button.primary").await;
        browser.sees(stored).await;
        browser.click("button.danger").await;
        soon("the key is denied", async || !users.peek(key).await.unwrap().is_allowed()).await;
        browser.sees("Blocked: every check is denied").await;
        browser.open(&console, &format!("/change?verb=override&gate={USERS}&stored=true&key={link}")).await;
        browser.fill("#limit", "7").await;
        browser.fill("#for", "15m").await;
        browser.fill("#reason", "a partner").await;
        browser.click("main button.primary").await;
        browser.click("button.danger").await;
        browser.sees("7/d").await;
        // The confirmation shows the quota, too.
        soon("the override is stored", async || overridden_keys(&console).await.contains(&stored.to_owned()))
            .await;
    }
    for other in ["bob", "bob\r\n", "bob\u{fffd}", "bob%0A"] {
        assert!(users.peek(other).await.unwrap().is_allowed(), "{other:?}");
    }
    let keys = overridden_keys(&console).await;
    assert!(keys.len() == 2, "{keys:?}");
    browser.close().await;
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_shows_that_its_figures_are_stale_until_the_service_answers_again() {
    let console = Console::start(RULES).await;
    let browser = Browser::start().await;
    browser.log_in(&console, VIEWER).await;
    browser.sees("No decisions in the last hour").await;
    // The page refreshes when it becomes visible.
    let is_stale = async || {
        let script = "document.dispatchEvent(new Event('visibilitychange'));
            const status = document.getElementById('live-status').getBoundingClientRect();
            return document.querySelector('.live').classList.contains('stale') && status.height > 10";
        browser.eval(script).await == true
    };
    assert!(!is_stale().await);
    browser.eval("window.answering = fetch; window.fetch = () => Promise.reject(); return null").await;
    soon("the page is stale", is_stale).await;
    browser.eval("window.fetch = window.answering; return null").await;
    soon("the page is current", async || !is_stale().await).await;
    browser.close().await;
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn form_with_a_mistake_is_shown_again_with_the_values() {
    let console = Console::start(RULES).await;
    let browser = Browser::start().await;
    browser.log_in(&console, OPERATOR).await;
    browser.sees("No decisions in the last hour").await;
    browser.open(&console, "/change?verb=override&gate=shop.user&key=bob").await;
    browser.fill("#limit", "0").await;
    browser.fill("#for", "1h").await;
    browser.fill("#reason", "a partner").await;
    browser.click("main button.primary").await;
    soon("the mistake is shown", async || {
        browser.eval("return document.getElementById('form-error') !== null").await == true
    })
    .await;
    assert_eq!(browser.eval("return document.getElementById('reason').value").await, "a partner");
    browser.close().await;
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_token_and_ended_session_lead_to_the_login() {
    let (server, namespace, clock) = (shared(), namespace(), ManualClock::new());
    let rules = Rules::parse("shop.yaml", RULES).unwrap().bind(&limiter(&server, &namespace));
    let console = Console::of(server, namespace, RateLimitService::new(rules), Some(clock.clone())).await;
    let browser = Browser::start().await;
    browser.open(&console, "/gates").await;
    browser.fill("#token", "wrong-token-000000001").await;
    browser.click("main button").await;
    browser.sees("the token is wrong").await;
    browser.fill("#token", VIEWER).await;
    browser.click("main button").await;
    browser.sees("Gates of the rules").await;
    assert!(!browser.text().await.contains("Deny all"), "a viewer changes nothing");
    browser.open(&console, "/change?verb=switch&gate=shop.user").await;
    browser.sees("this needs a token with the role").await;

    browser.open(&console, "/").await;
    browser.sees("No decisions in the last hour").await;
    clock.advance(Duration::from_secs(13 * 3_600));
    // The script of the page notices it.
    soon("the login is shown", async || browser.text().await.contains("Log in with a token")).await;
    browser.close().await;
    console.stop().await;
}
