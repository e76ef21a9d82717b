//! Each page in each size and color scheme: no overflow, no error, no foreign request, a low weight.
#![allow(clippy::print_stdout, reason = "prints sizes and times, which no test asserts")]

use std::time::Duration;

use serde_json::Value;

use super::super::html::fixture::{Console, MAX_PAGE_BYTES, OPERATOR, RULES, USERS, users_quota};
use super::driver::{Browser, Scheme};
use crate::support::fixture::soon;
use tidegate::{Quota, Switch};

pub const WIDTHS: [u32; 4] = [360, 768, 1280, 1920];

/// All pages that an operator can open.
pub const PAGES: [&str; 14] = [
    "/",
    "/gates",
    "/gate?name=shop.user",
    "/keys",
    "/key?key=user-of-a-tenant-with-a-long-name%3A1234567890",
    "/overrides",
    "/rules",
    "/explain?domain=shop&descriptor=user%3Dbob",
    "/health",
    "/change?verb=block&gate=shop.user&key=bob",
    "/change?verb=override&gate=shop.user&key=bob",
    "/change?verb=switch&to=closed&gate=shop.user",
    "/nothing",
    "/login",
];

/// Fills a fleet, so that each list has rows.
pub async fn fill(console: &Console) {
    console.publish(
        &[USERS, "shop.path-_search.-a1b2c3d4e5f6a7b8c9d0", "in-code"],
        60,
        "a/redis=120 n/redis=14 a/lease=40 d/redis=31 s/redis=2 e=1",
    );
    let limiter = console.limiter();
    let gate = limiter.gate(USERS, users_quota());
    for key in ["bob", "user-of-a-tenant-with-a-long-name:1234567890", "<img src=x onerror=alert(1)>"] {
        for _ in 0..4 {
            let _ = gate.check(key).await.unwrap();
        }
    }
    gate.block("bob", Duration::from_secs(3_600)).await.unwrap();
    let control = limiter.control();
    control.switch("in-code", Switch::Closed, None).await.unwrap();
    let ten = Quota::fixed_window(10, Duration::from_secs(60));
    control.set_override(USERS, "partner", ten, Duration::from_secs(7_200)).await.unwrap();
}

/// The origins of all requests of the page, its weight, and the time of its first paint.
const PERFORMANCE: &str = "
    const entries = performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource'));
    const paint = performance.getEntriesByName('first-contentful-paint')[0];
    return {
        origins: [...new Set(entries.map((entry) => new URL(entry.name).origin))],
        bytes: entries.reduce((sum, entry) => sum + entry.decodedBodySize, 0),
        paint: paint ? paint.startTime : null,
    };";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_fit_each_width_in_light_and_dark_without_errors() {
    let console = Console::start(RULES).await;
    fill(&console).await;
    let browser = Browser::start().await;
    browser.log_in(&console, OPERATOR).await;
    browser.sees("3 gates deny requests").await;
    for path in PAGES {
        browser.open(&console, path).await;
        soon("the page is painted", async || !browser.eval(PERFORMANCE).await["paint"].is_null()).await;
        let found = browser.eval(PERFORMANCE).await;
        let origin = console.url("");
        assert_eq!(found["origins"], serde_json::json!([origin]), "{path}");
        let bytes = found["bytes"].as_u64().unwrap_or_default() as usize;
        eprintln!("{path} weighs {} kB, first paint after {} ms", bytes / 1_000, found["paint"]);
        assert!((1..MAX_PAGE_BYTES).contains(&bytes), "{path} weighs {bytes} bytes");
        for scheme in [Scheme::Light, Scheme::Dark] {
            browser.prefer(scheme).await;
            for width in WIDTHS {
                browser.resize(width).await;
                let overflow = browser.eval(OVERFLOW).await;
                assert_eq!(overflow, Value::Null, "{path} at {width} px, {}", scheme.as_str());
            }
        }
        let errors = browser.errors().await;
        // The page of an error is the answer to a request for a page that does not exist.
        let errors: Vec<_> = errors.iter().filter(|error| !error.contains("/nothing")).collect();
        assert!(errors.is_empty(), "{path}: {errors:?}");
    }
    browser.close().await;
    console.stop().await;
}

/// The first element that makes the page wider than the window; null if it fits.
const OVERFLOW: &str = "
    const root = document.documentElement;
    if (root.scrollWidth <= root.clientWidth) return null;
    const wide = [...document.querySelectorAll('body *')].find((element) =>
        element.getBoundingClientRect().right > root.clientWidth + 1 && !element.closest('.scroll, .source, pre'));
    return root.scrollWidth + ' > ' + root.clientWidth + ': ' + (wide ? wide.outerHTML.slice(0, 300) : '?');";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_part_is_replaced_and_keeps_the_focus() {
    let console = Console::start(RULES).await;
    let browser = Browser::start().await;
    browser.log_in(&console, OPERATOR).await;
    browser.sees("No decisions in the last hour").await;
    fill(&console).await;
    browser.sees("3 gates deny requests").await;
    let status = browser.eval("return document.getElementById('live-status').textContent").await;
    assert!(status.as_str().is_some_and(|status| status.contains("gates deny")), "{status}");
    browser.eval("document.getElementById('d-1').focus()").await;
    browser.eval("document.getElementById('d-1').dataset.old = 'yes'").await;
    soon("the part is replaced", async || {
        browser.eval("return document.getElementById('d-1')?.dataset.old ?? 'new'").await == "new"
    })
    .await;
    assert_eq!(browser.eval("return document.activeElement.id").await, "d-1");
    browser.click("#live-pause").await;
    assert_eq!(
        browser.eval("return document.getElementById('live-pause').textContent").await,
        "Resume updates"
    );
    let errors = browser.errors().await;
    assert!(errors.is_empty(), "{errors:?}");
    browser.close().await;
    console.stop().await;
}
