//! Large fleets: each page is bounded in size, and in the work that it makes.
#![allow(clippy::print_stdout, reason = "prints sizes and times, which no test asserts")]

use std::time::Instant;

use super::fixture::{Console, MAX_PAGE_BYTES, PAGES, RULES, client};
use crate::support::fixture::soon;

/// Returns the weight of a page with the style sheet, the script and the icon.
async fn weight(console: &Console, path: &str) -> usize {
    let mut bytes = console.page(path, 200).await.len();
    for asset in ["/assets/console.css", "/assets/console.js", "/assets/icon.svg"] {
        bytes += client().get(console.url(asset)).send().await.unwrap().bytes().await.unwrap().len();
    }
    bytes
}

#[tokio::test]
async fn pages_of_a_fleet_with_300_gates_are_bounded() {
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for gate in 0..300 {
        rules += &format!(
            "  - key: gate_{gate}\n    rate_limit: {{ unit: minute, requests_per_unit: {} }}\n",
            gate + 1
        );
    }
    let console = Console::start(&rules).await;
    let gates: Vec<String> = (0..300).map(|gate| format!("shop.gate_{gate}")).collect();
    let gates: Vec<&str> = gates.iter().map(|gate| &**gate).collect();
    console.publish(&gates, 60, "a/redis=100 n/redis=5 a/lease=7 d/redis=3 e=1");
    for path in PAGES.into_iter().chain(["/gates?page=2", "/gate?name=shop.gate_299"]) {
        let start = Instant::now();
        let bytes = weight(&console, path).await;
        eprintln!("300 gates: {path} weighs {} kB, in {:?}", bytes / 1_000, start.elapsed());
        assert!(bytes < MAX_PAGE_BYTES, "{path} weighs {bytes} bytes");
    }
    let last = console.page("/gates?page=2", 200).await;
    assert!(last.contains("Page 3 of 3") && !last.contains("rel=\"next\""), "{last}");
    assert!(console.page("/gates?q=GATE_299", 200).await.contains("1 gate for"));
    console.stop().await;
}

/// Writes states as a fixed window has them, of which each tenth has no unit left.
const FILL: &str = "
    local time = redis.call('TIME')
    local ends = (time[1] + 3000) .. '000000'
    for key = 1, 100000 do
        local used = key % 10 == 0 and 3 or 1
        redis.call('SET', ARGV[1] .. ':2:shop.user:fixed_window/60s:key-' .. key, used .. ' until ' .. ends, 'EX', 600)
    end
    return 'OK'";

#[tokio::test]
async fn lists_of_100_000_keys_are_bounded() {
    let console = Console::start(RULES).await;
    console.server.cli(&["EVAL", FILL, "0", &console.namespace]).unwrap();
    let start = Instant::now();
    let bytes = weight(&console, "/keys").await;
    eprintln!("100,000 keys: /keys weighs {} kB, in {:?}", bytes / 1_000, start.elapsed());
    assert!(bytes < MAX_PAGE_BYTES, "{bytes}");
    // Each reading is a part of the keys.
    assert!(console.page("/keys", 200).await.contains("each refresh reads"));
    soon("all keys have been read", async || console.page("/keys", 200).await.contains("100,000 keys")).await;
    let page = console.page("/keys", 200).await;
    assert!(page.contains("25 or more keys are denied now"), "{page}");
    assert!(console.page("/key?key=key-77770", 200).await.contains("no unit is left"));
    console.server.cli(&["EVAL", "for key = 1, 100000 do redis.call('UNLINK', ARGV[1] .. ':2:shop.user:fixed_window/60s:key-' .. key) end return 'OK'", "0", &console.namespace]).unwrap();
    console.stop().await;
}

#[tokio::test]
async fn long_rule_file_is_shown_in_windows() {
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for gate in 0..3_000 {
        rules += &format!("  - key: gate_{gate}\n    rate_limit: {{ unit: minute, requests_per_unit: 1 }}\n");
    }
    let console = Console::start(&rules).await;
    for path in ["/rules", "/rules?line=3001", "/rules?line=999999", "/gates?page=29"] {
        let bytes = weight(&console, path).await;
        assert!(bytes < MAX_PAGE_BYTES, "{path} weighs {bytes} bytes");
    }
    let page = console.page("/rules?file=0&line=3001", 200).await;
    assert!(page.contains("id=\"L3001\"") && page.contains("Previous lines") && page.contains("Next lines"));
    console.stop().await;
}
