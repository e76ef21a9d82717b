//! Keys, gates and rule files that try to run a script in the browser of an operator.

use std::time::Duration;

use tidegate::Quota;

use super::super::html::fixture::{Console, OPERATOR};
use super::driver::Browser;

/// Each payload sets the marker.
const RULES: &str = r#"
domain: "<script>window.marked='domain'</script>"
descriptors:
  - key: "\"><img src=x onerror=\"window.marked='key'\">"
    value: "'><svg onload='window.marked=1'>"
    rate_limit: { unit: day, requests_per_unit: 3, name: "<iframe srcdoc='<script>parent.marked=1</script>'></iframe>" }
  - key: "</code></li></ol></div><script>window.marked='source'</script>"
    rate_limit: { unit: hour, requests_per_unit: 5 }
  - key: "</title></head><body onload=\"window.marked='title'\">"
    rate_limit: { unit: day, requests_per_unit: 5 }
"#;

const KEYS: [&str; 5] = [
    "\"><img src=x onerror=\"window.marked='stored'\">",
    "<script>window.marked='script'</script>",
    "javascript:window.marked='link'",
    "' autofocus onfocus='window.marked=1",
    "</datalist></form><details open ontoggle=\"window.marked=1\">",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn markup_in_keys_gates_and_rules_runs_nothing() {
    let console = Console::start(RULES).await;
    let limiter = console.limiter();
    let gate = limiter.gate("in-code", Quota::fixed_window(1, Duration::from_secs(3_600)));
    let mut paths: Vec<String> =
        ["/", "/gates", "/keys", "/overrides", "/rules", "/explain", "/health"].map(str::to_owned).into();
    for key in KEYS {
        let _ = gate.check(key).await.unwrap();
        let (two, hour) = (Quota::fixed_window(2, Duration::from_secs(60)), Duration::from_secs(3_600));
        gate.block(key, hour).await.unwrap();
        limiter.control().set_override("in-code", key, two, hour).await.unwrap();
    }
    console.publish(&["in-code", KEYS[0]], 60, "a/redis=1 d/redis=9");
    for payload in KEYS.into_iter().chain(["<script>window.marked='domain'</script>", "\u{202e}"]) {
        let value: String = form_urlencoded::byte_serialize(payload.as_bytes()).collect();
        paths.extend([
            format!("/gates?q={value}"),
            format!("/gate?name={value}"),
            format!("/keys?gate={value}"),
            format!("/key?key={value}"),
            format!("/overrides?gate={value}"),
            format!("/explain?domain={value}&descriptor={value}"),
            format!("/explain?domain={value}&request={value}&headers={value}&ip={value}"),
            format!("/change?verb=override&gate={value}&key={value}&limit={value}&reason={value}"),
        ]);
    }
    let browser = Browser::start().await;
    browser.log_in(&console, OPERATOR).await;
    browser.sees("gate").await;
    for path in paths {
        browser.open(&console, &path).await;
        assert_eq!(browser.eval("return window.marked ?? null").await, serde_json::Value::Null, "{path}");
        let odd = "return document.querySelectorAll('main iframe, main img, main script, [onload], [onerror], [onfocus], [ontoggle], a[href^=\"javascript\" i]').length";
        assert_eq!(browser.eval(odd).await, 0, "{path}");
        // The policy of the page had nothing to block: no markup has become an element.
        let errors = browser.errors().await;
        let errors: Vec<_> = errors
            .iter()
            .filter(|error| !error.contains("status of 404") && !error.contains("status of 400"))
            .collect();
        assert!(errors.is_empty(), "{path}: {errors:?}");
    }
    browser.close().await;
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_blocks_a_script_that_a_page_would_contain() {
    let console =
        Console::start("{domain: d, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]}")
            .await;
    let browser = Browser::start().await;
    browser.log_in(&console, OPERATOR).await;
    browser.sees("No decisions in the last hour").await;
    browser
        .eval(
            "document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.marked=1\">');
             const script = document.createElement('script');
             script.src = 'https://evil.example/x.js';
             document.querySelector('main').append(script);",
        )
        .await;
    crate::support::fixture::soon("the policy reports", async || {
        browser.errors().await.iter().any(|error| error.contains("Content Security Policy"))
    })
    .await;
    assert_eq!(browser.eval("return window.marked ?? null").await, serde_json::Value::Null);
    browser.close().await;
    console.stop().await;
}
