//! A fleet with the figures of an ordinary hour, for the screenshots.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tidegate::{Quota, Rate, Switch};

use super::super::html::fixture::{Console, OPERATOR, Session};
use super::driver::Scheme;

const RULES: &str = "\
# Limits of the shop. Reviewed by the platform team.
domain: shop
descriptors:
  # Logins by account: five attempts a minute.
  - key: login
    rate_limit: { algorithm: token_bucket, unit: minute, requests_per_unit: 5 }
  # All requests of a tenant.
  - key: tenant
    rate_limit: { unit: minute, requests_per_unit: 600 }
  - key: path
    value: /search
    rate_limit: { unit: second, requests_per_unit: 50 }
    shadow_mode: true
  - key: export
    rate_limit: { unit: hour, requests_per_unit: 20 }
";

/// More pages, to look at.
pub const MORE_SHOTS: &[(&str, &str, u32, Scheme)] = &[
    ("x-overview-1920", "/", 1920, Scheme::Light),
    ("x-overview-768", "/", 768, Scheme::Dark),
    ("x-keys", "/keys", 1280, Scheme::Light),
    ("x-keys-phone", "/keys", 360, Scheme::Dark),
    ("x-gate", "/gate?name=shop.tenant", 1280, Scheme::Light),
    ("x-overrides", "/overrides", 1280, Scheme::Light),
    ("x-overrides-dark", "/overrides", 360, Scheme::Dark),
    ("x-health", "/health", 1280, Scheme::Light),
    ("x-explain", "/explain?domain=shop&descriptor=tenant%3D7", 1280, Scheme::Light),
    ("x-change", "/change?verb=override&gate=shop.tenant&key=tenant%3A7", 1280, Scheme::Light),
    ("x-rules-light", "/rules", 360, Scheme::Light),
    ("x-error", "/nothing", 768, Scheme::Light),
];

/// Writes an hour of figures. The load rises and falls, and logins are under attack since a quarter of an hour.
const HOUR: &str = "
    local time = redis.call('TIME')
    local now = time[1] - time[1] % 5
    math.randomseed(7)
    local function near(mean) return math.floor(mean * (0.85 + 0.3 * math.random())) end
    for ago = 3600, 0, -5 do
        local key = ARGV[1] .. ':1:figures/' .. (now - ago)
        local wave = 1 + 0.45 * math.sin(ago / 500)
        local denied = ago < 900 and near(160) or near(3)
        redis.call('HSET', key,
            'shop.login', 'a/redis=' .. near(70 * wave) .. ' n/redis=' .. near(9) .. ' d/redis=' .. math.floor(denied / 3) .. ' d/deny_cache=' .. denied,
            'shop.tenant', 'a/redis=' .. near(420 * wave) .. ' a/lease=' .. near(900 * wave) .. ' n/redis=' .. near(20) .. ' d/redis=' .. near(11),
            'shop.path-_search', 'a/redis=' .. near(190 * wave) .. ' s/redis=' .. near(40 * wave),
            'shop.export', 'a/redis=' .. near(3),
            'payments.card', 'a/redis=' .. near(55 * wave) .. ' d/redis=' .. (ago % 300 == 0 and 4 or 0),
            '(latency)', '256=' .. near(300) .. ' 512=' .. near(160) .. ' 1024=' .. near(30) .. ' 2048=' .. near(6) .. (ago % 700 < 40 and ' 16384=20' or ''))
        redis.call('EXPIRE', key, 900)
    end
    local key = ARGV[1] .. ':1:instances/' .. (time[1] - time[1] % 15)
    for index, id in ipairs({ '3f2a91c07d4e', '71bb0e5a2c88', 'a90d2f6677e1' }) do
        redis.call('HSET', key, id, 'version=0.1.0 breaker=closed errors=' .. (index == 2 and 14 or 0) .. ' at=' .. (time[1] - index) .. '000000')
    end
    redis.call('EXPIRE', key, 900)
    return 'OK'";

pub async fn start(folder: &Path) -> Console {
    fs::write(folder.join("shop.yaml"), RULES).unwrap();
    let console = Console::watching_in(folder, "shop".to_owned()).await;
    console.server.cli(&["EVAL", HOUR, "0", &console.namespace]).unwrap();
    let limiter = console.limiter();
    let minute = Duration::from_secs(60);
    let login = limiter.gate("shop.login", Quota::token_bucket(5, Rate::per_minute(5)));
    let tenant = limiter.gate("shop.tenant", Quota::fixed_window(600, minute));
    for account in ["ada@example.org", "bob@example.org", "mallory@example.net"] {
        for _ in 0..7 {
            let _ = login.check(account).await.unwrap();
        }
    }
    let operator = Session::begin(&console, OPERATOR).await;
    let csrf = operator.csrf(&console).await;
    let block = [
        ("csrf", &*csrf),
        ("confirmed", "yes"),
        ("verb", "block"),
        ("gate", "shop.login"),
        ("key", "mallory@example.net"),
        ("for", "1h"),
        ("reason", "stolen passwords are tried, ticket 4711"),
    ];
    assert_eq!(operator.post(&console, "/change", &block).await.status(), 303);
    for (key, cost) in [("tenant:7", 588), ("tenant:12", 340), ("tenant:31", 77)] {
        let _ = tenant.check_cost(key, cost).await.unwrap();
    }
    let control = limiter.control();
    let more = Quota::fixed_window(2_000, minute);
    control.set_override("shop.tenant", "tenant:12", more, Duration::from_secs(86_400)).await.unwrap();
    control.switch("shop.export", Switch::Shadow, Some(Duration::from_secs(7_200))).await.unwrap();
    // A change that is not applied.
    fs::write(
        folder.join("new"),
        RULES.replace("requests_per_unit: 20", "requests_per_unit: 10").replace("unit: hour", "unit: hours"),
    )
    .unwrap();
    fs::rename(folder.join("new"), folder.join("shop.yaml")).unwrap();
    crate::support::fixture::soon("the reload fails", async || {
        console.page("/rules", 200).await.contains("are not applied")
    })
    .await;
    console
}
