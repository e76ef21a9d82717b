//! Text of clients, operators and files that tries to be markup.

use super::fixture::{Console, OPERATOR, PAGES, USERS, client};
use std::time::Duration;
use tidegate::Quota;

use crate::support::fixture::soon;

/// Markup in each part of a rule that a page shows.
const HOSTILE_RULES: &str = r#"
domain: "<script>alert('domain')</script>"
descriptors:
  - key: "\"><img src=x onerror=alert('key')>"
    value: "' onmouseover='alert(1)"
    rate_limit: { unit: day, requests_per_unit: 3, name: "<svg/onload=alert('name')>" }
  - key: "{{ 7 + 7 }}</code></li></ol><script>alert('template')</script>"
    rate_limit: { unit: hour, requests_per_unit: 5 }
  - key: "javascript:alert(1)"
    rate_limit: { unit: day, requests_per_unit: 5 }
"#;

/// Text that would be markup if a page did not escape it.
const MARKUP: [&str; 5] =
    ["<script>alert", "<img src=x", "<svg/onload", "' onmouseover='", "href=\"javascript:"];

const KEYS: [&[u8]; 9] = [
    b"",
    b"bob\n",
    b"bob\0",
    b"\"><img src=x onerror=alert('stored')>",
    b"<script>alert(1)</script>",
    b"' onmouseover='alert(1)",
    b"\xff\xfe\x00\n",
    "\u{202e}moc.live\u{200b}".as_bytes(),
    b"a&b=c#d/../e?f%41+g h",
];

fn assert_escaped(path: &str, page: &str) {
    // The markup of the pages themselves has none of this.
    let page = page.replace("<script src=\"/assets/", "");
    for markup in MARKUP {
        assert!(!page.contains(markup), "{path} has {markup}: {page}");
    }
    assert!(!page.contains('\u{202e}'), "{path} has text that runs backwards: {page}");
}

#[tokio::test]
async fn markup_in_rules_and_keys_is_text_on_each_page() {
    let console = Console::start(HOSTILE_RULES).await;
    let gate = console.limiter().gate("in-code", Quota::fixed_window(1, Duration::from_secs(3_600)));
    for key in KEYS {
        let _ = gate.check(key).await.unwrap();
        gate.block(key, Duration::from_secs(3_600)).await.unwrap();
        console
            .limiter()
            .control()
            .set_override(
                "in-code",
                key,
                Quota::fixed_window(2, Duration::from_secs(60)),
                Duration::from_secs(60),
            )
            .await
            .unwrap();
    }
    console.publish(&["in-code", "<script>alert(1)</script>", USERS], 60, "a/redis=1 d/redis=9");
    for path in PAGES {
        assert_escaped(path, &console.page(path, 200).await);
    }
    for markup in MARKUP.into_iter().chain(["\u{202e}", "%", "\\", "\0"]) {
        let value: String = form_urlencoded::byte_serialize(markup.as_bytes()).collect();
        for path in [
            format!("/gates?q={value}"),
            format!("/gate?name={value}"),
            format!("/keys?gate={value}"),
            format!("/key?key={value}"),
            format!("/key?written={value}"),
            format!("/overrides?gate={value}"),
            format!("/explain?domain={value}&descriptor={value}"),
            format!("/explain?domain={value}&request={value}&headers={value}&ip={value}"),
            format!("/rules?file={value}&line={value}"),
            format!("/login?next={value}"),
            format!("/change?verb={value}"),
        ] {
            let response = console.get(&path).await;
            assert!(response.status().as_u16() < 500, "{path}: {}", response.status());
            assert_escaped(&path, &response.text().await.unwrap());
        }
        let path = format!(
            "/change?verb=override&gate={value}&key={value}&limit={value}&reason={value}&for={value}"
        );
        let form = client().get(console.url(&path)).bearer_auth(OPERATOR).header("accept", "text/html");
        assert_escaped(&path, &form.send().await.unwrap().text().await.unwrap());
    }
    console.stop().await;
}

#[tokio::test]
async fn key_of_any_bytes_is_found_by_the_link_of_the_list() {
    let console = Console::start(HOSTILE_RULES).await;
    let gate = console.limiter().gate("in-code", Quota::fixed_window(9, Duration::from_secs(3_600)));
    for key in KEYS {
        let _ = gate.check(key).await.unwrap();
    }
    let links_of = |lists: &str| lists.matches("href=\"/key?written=").count();
    // A refresh reads a part of the database, which other tests share.
    soon("all keys are listed", async || {
        links_of(&console.page("/keys?gate=in-code", 200).await) == KEYS.len()
    })
    .await;
    let lists = console.page("/keys?gate=in-code", 200).await;
    let links: Vec<&str> = lists
        .split("href=\"")
        .filter(|link| link.starts_with("/key?written="))
        .map(|link| link.split('"').next().unwrap())
        .collect();
    assert_eq!(links.len(), KEYS.len(), "{lists}");
    assert!(lists.contains("(empty key)"), "{lists}");
    for link in links {
        let page = console.page(link, 200).await;
        assert!(page.contains("1 used; resets in"), "{link}: {page}");
    }
    console.stop().await;
}

#[tokio::test]
async fn headers_let_nothing_run_that_a_page_did_not_escape() {
    let console = Console::start(HOSTILE_RULES).await;
    for path in PAGES {
        let response = console.get(path).await;
        let policy = response.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}: {policy}");
        let page = response.text().await.unwrap();
        for inline in [" style=\"", " onclick=", "<style", "src=\"http", "href=\"http", "url("] {
            assert!(!page.contains(inline), "{path} has {inline}");
        }
    }
    console.stop().await;
}

#[tokio::test]
async fn large_numbers_are_grouped_and_readable() {
    let rules = "{domain: big, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 12000}}]}";
    let console = Console::start(rules).await;
    console.publish(&["big.k"], 1, "a/redis=1234567");
    for path in PAGES.into_iter().chain(["/gate?name=big.k", "/explain?domain=big&descriptor=k=x"]) {
        let page = console.page(path, 200).await;
        assert!(!page.contains("\\u{"), "{path}: {page}");
    }
    assert!(console.page("/gates", 200).await.contains("12000/d"));
    console.stop().await;
}

#[tokio::test]
async fn numbers_of_another_writer_make_no_page_fail() {
    let console = Console::start(HOSTILE_RULES).await;
    let most = u64::MAX;
    let text = format!(
        "a/redis={most} a/local={most} n/redis={most} d/redis={most} d/closed={most} s/redis={most} e={most}"
    );
    console.publish(&["in-code", "other", USERS, "in-code..candidate"], 60, &text);
    // The audit log: a change in the last millisecond that an entry can have.
    let (audit, id) = (format!("{}:1:audit", console.namespace), format!("{most}-1"));
    console.server.cli(&["XADD", &audit, &id, "verb", "block", "gate", "in-code", "key", "bob"]).unwrap();
    assert!(console.page("/key?key=bob", 200).await.contains("9999-12-31 23:59:59 UTC"));
    for path in PAGES.into_iter().chain(["/gate?name=in-code"]) {
        let page = console.page(path, 200).await;
        assert!(!page.contains("NaN") && !page.contains("inf/s"), "{path}: {page}");
    }
    console.stop().await;
}
